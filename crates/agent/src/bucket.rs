//! Limits how often something happens: first a burst, then a steady rate.

use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    every: Duration,
    most: u32,
    /// The time at which the bucket will be full. This time is in the past while the bucket is full.
    full: Instant,
}

impl Bucket {
    /// A full bucket with `most` tokens. One token returns to the bucket in each interval `every`.
    pub(super) fn new(most: u32, every: Duration, now: Instant) -> Self {
        Self { every, most, full: now }
    }

    pub(super) fn take(&mut self, now: Instant) -> bool {
        let full = self.full.max(now) + self.every;
        let is_there = full.duration_since(now) <= self.every * self.most;
        if is_there {
            self.full = full;
        }
        is_there
    }

    pub(super) fn give_back(&mut self) {
        self.full -= self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_there_at_once_and_then_turns_come_back_at_a_rate_and_no_more_than_a_burst_is_saved_up() {
        let (start, every) = (Instant::now(), Duration::from_secs(10));
        let mut bucket = Bucket::new(3, every, start);
        let mut taken = |now| (0..10).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(start), 3);
        assert_eq!(taken(start + every - Duration::from_millis(1)), 0);
        assert_eq!(taken(start + every), 1);
        assert_eq!(taken(start + 3 * every), 2);
        assert_eq!(taken(start + 1000 * every), 3);
        bucket.give_back();
        let mut taken = |now| (0..10).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(start + 1000 * every), 1, "the turn that was given back");
    }
}
