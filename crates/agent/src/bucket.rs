//! How often something may be done: so often at once, and then at a rate.

use std::time::{Duration, Instant};

/// Turns that may be taken now. They come back with time.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// From one turn to the next, once none is left.
    every: Duration,
    /// How many may be taken at once.
    most: u32,
    /// When all of them are there again; in the past where they are.
    full: Instant,
}

impl Bucket {
    /// A bucket with `most` turns, to which one comes `every` so often.
    pub(super) fn new(most: u32, every: Duration, now: Instant) -> Self {
        Self { every, most, full: now }
    }

    /// Takes a turn, if one is there.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let full = self.full.max(now) + self.every;
        let is_there = full.duration_since(now) <= self.every * self.most;
        if is_there {
            self.full = full;
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_there_at_once_and_then_they_come_back_at_a_rate_and_no_more_are_saved_up() {
        let (start, every) = (Instant::now(), Duration::from_secs(10));
        let mut bucket = Bucket::new(3, every, start);
        let mut taken = |now| (0..10).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(start), 3);
        assert_eq!(taken(start + every - Duration::from_millis(1)), 0);
        assert_eq!(taken(start + every), 1);
        assert_eq!(taken(start + 3 * every), 2);
        assert_eq!(taken(start + 1000 * every), 3);
    }
}
