//! A bucket of units: it fills with time, and what is done takes units from it. A unit is what its owner says: a second of
//! processor time, a line of the log, a review.

use std::time::{Duration, Instant};

/// Units that one kind of work may use.
///
/// What a piece of work costs may be known only when it is done. So work may begin while the bucket is not in debt, and what
/// it cost is charged afterwards: a piece that cost more than there was makes the next one wait.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Units for each second that passes.
    rate: f64,
    /// At most this many units are saved up.
    most: f64,
    /// Units that may be used now; below zero it is a debt.
    level: f64,
    /// What of a debt is for [bounded](Self::charge_within) charges.
    bounded: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket. `burst` is how long nothing has to be used until it is full.
    pub(super) fn new(rate: f64, burst: Duration, now: Instant) -> Self {
        let most = rate * burst.as_secs_f64();
        Self { rate, most, level: most, bounded: 0.0, at: now }
    }

    /// Another rate from now on. What was saved or is owed stays.
    pub(super) fn set_rate(&mut self, rate: f64, burst: Duration, now: Instant) {
        self.fill(now);
        self.rate = rate;
        self.most = rate * burst.as_secs_f64();
        self.level = self.level.min(self.most);
    }

    /// Takes what a piece of work cost, in units.
    pub(super) fn charge(&mut self, cost: f64, now: Instant) {
        self.fill(now);
        self.level -= cost;
    }

    /// The same, as long as all that was charged so is paid back within `longest`; the rest is charged to nobody.
    pub(super) fn charge_within(&mut self, cost: f64, longest: Duration, now: Instant) {
        self.fill(now);
        let room = (self.rate * longest.as_secs_f64() - self.bounded).max(0.0);
        let cost = cost.min(room);
        self.level -= cost;
        self.bounded += cost;
    }

    /// How long work has to wait; zero if it may begin. At most [`LONGEST`].
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        self.fill(now);
        if self.level >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.level / self.rate).map_or(LONGEST, |wait| wait.min(LONGEST))
    }

    fn fill(&mut self, now: Instant) {
        let more = now.saturating_duration_since(self.at).as_secs_f64() * self.rate;
        self.level = (self.level + more).min(self.most);
        self.bounded = (self.bounded - more).max(0.0);
        self.at = self.at.max(now);
    }
}

/// The longest wait, however large the debt: a cost that was measured wrongly must not end the work.
pub(super) const LONGEST: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn full(now: Instant) -> Bucket {
        Bucket::new(0.01, 10 * SECOND, now)
    }

    #[test]
    fn work_waits_until_the_work_before_is_paid() {
        let now = Instant::now();
        let mut bucket = full(now);
        assert_eq!(bucket.wait(now), Duration::ZERO);
        bucket.charge(0.3, now);
        // A tenth of a second was saved; two tenths are owed, at a hundredth of a core.
        assert_eq!(bucket.wait(now).as_secs_f64().round(), 20.0);
        assert_eq!(bucket.wait(now + 15 * SECOND).as_secs_f64().round(), 5.0);
        assert_eq!(bucket.wait(now + 21 * SECOND), Duration::ZERO);
    }

    #[test]
    fn no_more_is_saved_up_than_a_burst() {
        let now = Instant::now();
        let mut bucket = full(now);
        let later = now + 3600 * SECOND;
        bucket.charge(0.2, later);
        assert!(bucket.wait(later) > 9 * SECOND);
    }

    #[test]
    fn whatever_is_asked_for_no_more_is_used_than_the_rate_and_one_piece() {
        let begun = Instant::now();
        let (mut now, mut bucket, mut used) = (begun, full(begun), Duration::ZERO);
        let piece = Duration::from_millis(7);
        while now < begun + 1000 * SECOND {
            if bucket.wait(now) == Duration::ZERO {
                bucket.charge(piece.as_secs_f64(), now);
                used += piece;
            }
            now += Duration::from_millis(10);
        }
        assert!(used <= Duration::from_secs_f64(0.01 * 1010.0) + piece, "{used:?}");
        assert!(used >= Duration::from_secs_f64(0.01 * 1000.0), "{used:?}");
    }

    #[test]
    fn a_wait_has_an_end_whatever_was_charged() {
        let now = Instant::now();
        let mut bucket = full(now);
        bucket.charge(100_000.0, now);
        assert_eq!(bucket.wait(now), LONGEST);
    }

    #[test]
    fn what_is_charged_within_a_time_is_paid_back_in_it_and_other_debts_stay() {
        let now = Instant::now();
        let mut bucket = full(now);
        bucket.charge(0.3, now);
        for _ in 0..10 {
            bucket.charge_within(60.0, 20 * SECOND, now);
        }
        // Two tenths are owed for the first, at a hundredth a second.
        assert_eq!(bucket.wait(now).as_secs_f64().round(), 40.0);
        let later = now + 10 * SECOND;
        bucket.charge_within(60.0, 20 * SECOND, later);
        assert_eq!(bucket.wait(later).as_secs_f64().round(), 40.0, "what was paid back meanwhile may be charged again");
    }

    #[test]
    fn another_rate_counts_from_now_on() {
        let now = Instant::now();
        let mut bucket = full(now);
        bucket.charge(0.3, now);
        bucket.set_rate(0.1, 10 * SECOND, now);
        assert_eq!(bucket.wait(now).as_secs_f64().round(), 2.0);
    }
}
