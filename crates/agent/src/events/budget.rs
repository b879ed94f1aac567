//! Limits this agent's requests to the API server about Events.

use jiff::{SignedDuration, Timestamp};

/// The requests of a burst. After it, one request each interval.
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

    /// The earliest time of the next request: `at`, or later.
    pub(super) fn ready(&self, at: Timestamp) -> Timestamp {
        (self.full_after(at) - INTERVAL * (BURST - 1)).max(at)
    }

    /// Counts a request.
    pub(super) fn take(&mut self, at: Timestamp) {
        self.full = self.full_after(at) + INTERVAL;
    }

    /// When the bucket is full again, if no request comes after `at`. A time that is too far away even for an empty bucket is from
    /// before the clock was set back.
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
