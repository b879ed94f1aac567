//! How often a watch may wake the process: what costs most about a change is to wake up for it alone.
//!
//! Pure: the time is an argument. Changes that come now and then are read at once. Where they go on and on, reading pauses,
//! and what came meanwhile is read in one go; the kernel keeps it.

use std::time::Duration;

use tokio::time::Instant;

/// What comes within this time of the frame before it belongs to the same batch.
pub(super) const TOGETHER: Duration = Duration::from_millis(10);
/// The longest pause. A server ends a watch that is not read for long: the pause is shorter where much comes.
const LONGEST: Duration = Duration::from_secs(5);
/// The shortest one, however much comes.
const SHORTEST: Duration = Duration::from_millis(100);
/// So many frames are wanted in one batch.
const WANTED: u32 = 64;
/// The most frames and bytes in one batch. Only a server that sends all the time, and more than any cluster changes, fills one.
const MOST_FRAMES: u32 = 1024;
const MOST_BYTES: usize = 1 << 20;
/// So many batches are read at once before there is a pause; one more is saved up in every [`LONGEST`].
const SAVED: f64 = 32.0;

/// The pace of the watches of one resource, one after the other.
#[derive(Debug)]
pub(crate) struct ReadingPace {
    /// Batches that may be read without a pause; below zero it is one that was read after a pause.
    saved: f64,
    at: Instant,
    /// The frames of the last batch, and their bytes.
    frames: u32,
    bytes: usize,
}

impl ReadingPace {
    /// Nothing was read yet.
    pub(super) fn new(now: Instant) -> Self {
        Self { saved: SAVED, at: now, frames: 0, bytes: 0 }
    }

    /// How long to leave what comes next unread. It begins a batch.
    pub(super) fn pause(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at);
        self.saved = (self.saved + passed.div_duration_f64(LONGEST)).min(SAVED);
        self.at = now;
        let is_full = self.is_full();
        let frames = std::mem::take(&mut self.frames);
        self.bytes = 0;
        self.saved = (self.saved - 1.0).max(-1.0);
        if self.saved >= 0.0 {
            return Duration::ZERO;
        }
        if is_full {
            // The last pause and what the batch took: it grows until the work is a small part of it.
            return passed.clamp(SHORTEST, LONGEST);
        }
        // As long as it took so many to come lately.
        (passed * WANTED / frames.max(1)).clamp(SHORTEST, LONGEST)
    }

    /// Counts a frame of the batch.
    pub(super) fn read(&mut self, bytes: usize) {
        self.frames = self.frames.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Whether the batch ends here, though more may be there already.
    pub(super) fn is_full(&self) -> bool {
        self.frames >= MOST_FRAMES || self.bytes >= MOST_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many batches are read within `lasts` where a frame comes `every` so often, and how long the last pause was.
    fn storm(lasts: Duration, every: Duration) -> (u32, Duration) {
        let begun = Instant::now();
        let (mut now, mut pace, mut batches, mut last) = (begun, ReadingPace::new(begun), 0, begun);
        let mut pause = Duration::ZERO;
        while now < begun + lasts {
            pause = pace.pause(now);
            now = (now + pause).max(last + every);
            while last + every <= now {
                last += every;
                pace.read(500);
            }
            batches += 1;
        }
        (batches, pause)
    }

    #[test]
    fn changes_now_and_then_are_read_at_once() {
        let (batches, pause) = storm(Duration::from_secs(3600), Duration::from_secs(6));
        assert_eq!(pause, Duration::ZERO);
        assert_eq!(batches, 600, "each is read by itself");
    }

    #[test]
    fn changes_without_an_end_wake_the_process_every_few_seconds() {
        let (batches, pause) = storm(Duration::from_secs(3600), Duration::from_millis(300));
        assert_eq!(pause, LONGEST);
        // What was saved up, and then one in each pause.
        assert!(batches <= 33 + 3600 / 5, "{batches}");
    }

    #[test]
    fn where_much_comes_pauses_are_shorter_and_have_a_shortest() {
        let (_, pause) = storm(Duration::from_secs(600), Duration::from_millis(5));
        assert!(pause.abs_diff(Duration::from_millis(5) * WANTED) < Duration::from_millis(50), "{pause:?}");
        let (_, pause) = storm(Duration::from_secs(60), Duration::from_micros(50));
        assert_eq!(pause, SHORTEST);
    }

    #[test]
    fn a_server_that_sends_all_the_time_is_read_for_a_small_part_of_it() {
        const WORK: Duration = Duration::from_millis(30);
        for (frames, bytes) in [(1, MOST_BYTES), (MOST_FRAMES, 1)] {
            let begun = Instant::now();
            let (mut now, mut pace, mut worked) = (begun, ReadingPace::new(begun), Duration::ZERO);
            while now < begun + Duration::from_secs(3600) {
                now += pace.pause(now);
                while !pace.is_full() {
                    for _ in 0..frames {
                        pace.read(bytes);
                    }
                }
                now += WORK;
                worked += WORK;
            }
            assert!(worked < Duration::from_secs(36), "{worked:?} of an hour");
        }
    }

    #[test]
    fn after_a_quiet_time_changes_are_read_at_once_again() {
        let begun = Instant::now();
        let mut pace = ReadingPace::new(begun);
        let pauses = (0..40).filter(|_| !pace.pause(begun).is_zero()).count();
        assert_eq!(pauses, 8);
        assert!(!pace.pause(begun + LONGEST).is_zero(), "no more than one batch in each pause");
        assert!(pace.pause(begun + 3 * LONGEST).is_zero());
    }
}
