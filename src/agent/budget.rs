//! A share of one core, as a bucket: it fills with time, and work takes from it what the work cost.

use std::time::{Duration, Instant};

/// Processor time that one kind of work may use.
///
/// What a piece of work costs is known only when it is done. So work may begin while the bucket is not in debt, and what
/// it cost is charged afterwards: a piece that cost more than there was makes the next one wait.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    /// Seconds of processor time for each second that passes.
    share: f64,
    /// At most this many seconds are saved up.
    most: f64,
    /// Seconds that may be used now; below zero it is a debt.
    level: f64,
    at: Instant,
}

impl Budget {
    /// A full bucket. `burst` is how long nothing has to be used until it is full.
    pub(super) fn new(share: f64, burst: Duration, now: Instant) -> Self {
        let most = share * burst.as_secs_f64();
        Self { share, most, level: most, at: now }
    }

    /// Another share from now on. What was saved or is owed stays.
    pub(super) fn set_share(&mut self, share: f64, burst: Duration, now: Instant) {
        self.fill(now);
        self.share = share;
        self.most = share * burst.as_secs_f64();
        self.level = self.level.min(self.most);
    }

    /// Takes what a piece of work cost.
    pub(super) fn charge(&mut self, cost: Duration, now: Instant) {
        self.fill(now);
        self.level -= cost.as_secs_f64();
    }

    /// Forgives a debt that takes longer than this to pay back.
    pub(super) fn forgive(&mut self, longest: Duration) {
        self.level = self.level.max(-self.share * longest.as_secs_f64());
    }

    /// How long work has to wait; zero if it may begin. At most [`LONGEST`].
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        self.fill(now);
        if self.level >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.level / self.share).map_or(LONGEST, |wait| wait.min(LONGEST))
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + passed * self.share).min(self.most);
        self.at = self.at.max(now);
    }
}

/// The longest wait, however large the debt: a cost that was measured wrongly must not end the work.
pub(super) const LONGEST: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn bucket(now: Instant) -> Budget {
        Budget::new(0.01, 10 * SECOND, now)
    }

    #[test]
    fn work_waits_until_the_work_before_is_paid() {
        let now = Instant::now();
        let mut budget = bucket(now);
        assert_eq!(budget.wait(now), Duration::ZERO);
        budget.charge(Duration::from_millis(300), now);
        // A tenth of a second was saved; two tenths are owed, at a hundredth of a core.
        assert_eq!(budget.wait(now).as_secs_f64().round(), 20.0);
        assert_eq!(budget.wait(now + 15 * SECOND).as_secs_f64().round(), 5.0);
        assert_eq!(budget.wait(now + 21 * SECOND), Duration::ZERO);
    }

    #[test]
    fn no_more_is_saved_up_than_a_burst() {
        let now = Instant::now();
        let mut budget = bucket(now);
        let later = now + 3600 * SECOND;
        budget.charge(Duration::from_millis(200), later);
        assert!(budget.wait(later) > 9 * SECOND);
    }

    #[test]
    fn whatever_is_asked_for_no_more_is_used_than_the_share_and_one_piece() {
        let begun = Instant::now();
        let (mut now, mut budget, mut used) = (begun, bucket(begun), Duration::ZERO);
        let piece = Duration::from_millis(7);
        while now < begun + 1000 * SECOND {
            if budget.wait(now) == Duration::ZERO {
                budget.charge(piece, now);
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
        let mut budget = bucket(now);
        budget.charge(Duration::from_secs(100_000), now);
        assert_eq!(budget.wait(now), LONGEST);
    }

    #[test]
    fn a_debt_that_is_forgiven_is_paid_back_in_time() {
        let now = Instant::now();
        let mut budget = bucket(now);
        budget.charge(Duration::from_secs(60), now);
        budget.forgive(20 * SECOND);
        assert_eq!(budget.wait(now).as_secs_f64().round(), 20.0);
        budget.forgive(30 * SECOND);
        assert_eq!(budget.wait(now).as_secs_f64().round(), 20.0, "a smaller one stays");
    }

    #[test]
    fn another_share_counts_from_now_on() {
        let now = Instant::now();
        let mut budget = bucket(now);
        budget.charge(Duration::from_millis(300), now);
        budget.set_share(0.1, 10 * SECOND, now);
        assert_eq!(budget.wait(now).as_secs_f64().round(), 2.0);
    }
}
