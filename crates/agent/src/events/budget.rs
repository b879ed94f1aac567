//! How often this agent may ask anything of the API server about Events.

use jiff::{SignedDuration, Timestamp};

/// So many requests at once, and then one each interval.
const BURST: i32 = 10;
const INTERVAL: SignedDuration = SignedDuration::from_secs(10);

/// A token bucket, kept as the time at which it is full again.
#[derive(Debug)]
pub(super) struct Budget {
    full: Timestamp,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { full: Timestamp::MIN }
    }

    /// From when on a request may be made: `at`, or later.
    pub(super) fn ready(&self, at: Timestamp) -> Timestamp {
        (self.full_after(at) - INTERVAL * (BURST - 1)).max(at)
    }

    /// A request is made.
    pub(super) fn take(&mut self, at: Timestamp) {
        self.full = self.full_after(at) + INTERVAL;
    }

    /// When it is full again, if nothing is taken from `at` on. Further away than an empty bucket's is a time from before
    /// the clock was set back.
    fn full_after(&self, at: Timestamp) -> Timestamp {
        if self.full > at + INTERVAL * BURST { at } else { self.full.max(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn ten_requests_are_made_at_once_and_then_one_each_ten_seconds() {
        let mut budget = Budget::new();
        let mut spent = Vec::new();
        for now in 0..35 {
            while budget.ready(second(now)) <= second(now) {
                budget.take(second(now));
                spent.push(now);
            }
        }
        let mut expected = vec![0; 10];
        expected.extend([10, 20, 30]);
        assert_eq!(spent, expected);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_silence_it() {
        let mut budget = Budget::new();
        budget.take(second(2_000_000_000));
        assert_eq!(budget.ready(second(0)), second(0));
    }
}
