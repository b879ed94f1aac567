//! The age of a scan, and the age at which a scan is too old.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use portreeve_facts::{Gap, Source, Why};

/// The largest allowed difference between the clocks of two machines.
const APART: SignedDuration = SignedDuration::from_mins(10);
/// The longest interval between an agent's scans. For a snapshot, which lacks the interval, this value is assumed.
pub const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);
/// The longest time between two readings of connections by an agent, even if a reading is very expensive.
pub const OLDEST_CONNECTIONS: Duration = Duration::from_secs(1200);

/// The age of a scan, by the monotonic clock of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanAge {
    /// The time since the scan was judged.
    pub age: Duration,
    /// The age from which the scan is too old, because the agent should have made newer scans.
    pub old_after: Duration,
}

impl ScanAge {
    /// The age of a scan. `longest` is the longest time between two scans of the agent.
    pub fn new(age: Duration, longest: Duration) -> Self {
        // At the age `longest`, the next scan is late. At twice this age, the scan is too old.
        Self { age, old_after: longest.saturating_mul(2) }
    }

    /// Whether the scan is too old.
    pub fn is_old(self) -> bool {
        self.age >= self.old_after
    }

    /// The reason why a scan cannot be trusted at the time `now`. `at` is the time of the scan by the clock of the
    /// node. `reported` is the age that the agent reports. Some agents do not report the age.
    pub fn gap(at: Timestamp, reported: Option<Self>, now: Timestamp) -> Option<Gap> {
        let stale = |why: &str| Some(Gap::new(Source::Agent, Why::Stale, format!("its last scan, at {at:.0}, {why}")));
        if reported.is_some_and(Self::is_old) {
            return stale("is too old: the agent no longer reads its node");
        }
        let age = now.duration_since(at);
        let expected = reported.map(|reported| SignedDuration::try_from(reported.age).unwrap_or(SignedDuration::MAX));
        match expected {
            // The agent measures the age with a monotonic clock. So the difference shows that a wall clock is wrong.
            Some(expected) if !(-APART..=APART).contains(&age.saturating_sub(expected)) => {
                stale("does not fit the clock of this machine: one of the two clocks is wrong")
            }
            None if age < -APART => stale("is in the future: one of the two clocks is wrong"),
            None if Duration::try_from(age).is_ok_and(|age| Self::new(age, LONGEST_INTERVAL).is_old()) => {
                stale("is too old")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn a_look_is_old_once_one_more_should_have_come_for_sure() {
        let of = |age| ScanAge::new(Duration::from_secs(age), Duration::from_secs(15));
        assert!(!of(0).is_old() && !of(29).is_old() && of(30).is_old());
        assert!(!ScanAge::new(Duration::MAX / 2, Duration::MAX).is_old());
    }

    #[test]
    fn a_look_of_another_time_is_not_believed_whatever_its_agent_says() {
        let now = at("2026-11-21T12:00:00Z");
        let fresh = Some(ScanAge::new(Duration::from_secs(3), Duration::from_secs(15)));
        for sound in ["2026-11-21T11:59:57Z", "2026-11-21T12:04:00Z", "2026-11-21T11:55:00Z"] {
            assert_eq!(ScanAge::gap(at(sound), fresh, now), None, "{sound}");
            assert_eq!(ScanAge::gap(at(sound), None, now), None, "{sound}");
        }
        for wrong in ["1970-01-01T00:00:00Z", "2026-11-21T10:00:00Z", "2026-11-21T13:00:00Z", "9999-12-30T00:00:00Z"] {
            for told in [fresh, None] {
                assert_eq!(ScanAge::gap(at(wrong), told, now).map(|gap| gap.why), Some(Why::Stale), "{wrong}");
            }
        }
    }

    #[test]
    fn the_largest_numbers_are_no_fresh_scan() {
        let now = at("2026-11-21T12:00:00Z");
        let hostile = Some(ScanAge { age: Duration::from_secs(i64::MAX as u64), old_after: Duration::MAX });
        for time in ["9999-12-30T00:00:00Z", "2026-11-21T12:00:01Z"] {
            assert_eq!(ScanAge::gap(at(time), hostile, now).map(|gap| gap.why), Some(Why::Stale), "{time}");
        }
    }

    #[test]
    fn a_look_that_its_agent_calls_old_is_old_and_one_of_a_slow_agent_is_not() {
        let now = at("2026-11-21T12:00:00Z");
        let told = |age, interval| Some(ScanAge::new(Duration::from_secs(age), Duration::from_secs(interval)));
        let gap = ScanAge::gap(at("2026-11-21T11:58:00Z"), told(120, 15), now).expect("it is old");
        assert!(gap.why == Why::Stale && gap.detail.contains("2026-11-21T11:58:00Z"), "{gap:?}");
        for told in [told(3660, 3600), None] {
            assert_eq!(ScanAge::gap(at("2026-11-21T10:59:00Z"), told, now), None, "it may look every hour");
        }
    }
}
