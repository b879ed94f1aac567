//! How often a watch may wake the process. If a change arrives alone, the wake-up is most of the change's cost.
//!
//! Rare changes are read at once. If changes arrive constantly, reading pauses. During a pause, the kernel keeps the
//! changes. Afterwards they are read together.

use std::time::Duration;

use tokio::time::Instant;

/// A frame that arrives within this time after the last frame belongs to the same batch.
pub(super) const TOGETHER: Duration = Duration::from_millis(10);
/// The longest pause. If a watch is not read for long, the server ends the watch. If there are many changes, the pause
/// is shorter.
const LONGEST: Duration = Duration::from_secs(5);
const SHORTEST: Duration = Duration::from_millis(100);
/// The number of frames that one batch should have.
const WANTED: u32 = 64;
/// A batch is full after this number of frames. The changes of a real cluster do not fill a batch. Only a server that
/// sends without a break fills a batch.
const MOST_FRAMES: u32 = 1024;
const MOST_BYTES: usize = 1 << 20;
/// The largest number of batches that may be read without a pause. Each period of [`LONGEST`] adds one batch.
const SAVED: f64 = 32.0;

#[derive(Debug)]
pub(crate) struct ReadingPace {
    /// The number of batches that may be read without a pause. Negative if the next batch needs a pause.
    saved: f64,
    at: Instant,
    frames: u32,
    bytes: usize,
}

impl ReadingPace {
    pub(super) fn new(now: Instant) -> Self {
        Self { saved: SAVED, at: now, frames: 0, bytes: 0 }
    }

    /// The pause before the next batch is read.
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
            // The next pause is as long as the last pause and the reading of the batch together. So pauses grow until
            // reading takes only a small part of the time.
            return passed.clamp(SHORTEST, LONGEST);
        }
        // If frames keep their rate, about [`WANTED`] frames arrive during the next pause.
        (passed * WANTED / frames.max(1)).clamp(SHORTEST, LONGEST)
    }

    pub(super) fn read(&mut self, bytes: usize) {
        self.frames = self.frames.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(super) fn is_full(&self) -> bool {
        self.frames >= MOST_FRAMES || self.bytes >= MOST_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a watch for the time `lasts`, with one frame in each period `every`. Returns the number of batches and
    /// the last pause.
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
    fn rare_changes_are_read_at_once() {
        let (batches, pause) = storm(Duration::from_secs(3600), Duration::from_secs(6));
        assert_eq!(pause, Duration::ZERO);
        assert_eq!(batches, 600, "each change is read by itself");
    }

    #[test]
    fn endless_changes_wake_the_process_every_few_seconds() {
        let (batches, pause) = storm(Duration::from_secs(3600), Duration::from_millis(300));
        assert_eq!(pause, LONGEST);
        // About 32 batches are read without a pause. Afterwards, there is one batch in each pause.
        assert!(batches <= 33 + 3600 / 5, "{batches}");
    }

    #[test]
    fn pauses_are_shorter_with_many_changes_down_to_a_minimum() {
        let (_, pause) = storm(Duration::from_secs(600), Duration::from_millis(5));
        assert!(pause.abs_diff(Duration::from_millis(5) * WANTED) < Duration::from_millis(50), "{pause:?}");
        let (_, pause) = storm(Duration::from_secs(60), Duration::from_micros(50));
        assert_eq!(pause, SHORTEST);
    }

    #[test]
    fn a_server_that_sends_constantly_is_read_for_a_small_part_of_the_time() {
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
    fn changes_are_read_at_once_again_after_a_quiet_time() {
        let begun = Instant::now();
        let mut pace = ReadingPace::new(begun);
        let pauses = (0..40).filter(|_| !pace.pause(begun).is_zero()).count();
        assert_eq!(pauses, 8);
        assert!(!pace.pause(begun + LONGEST).is_zero(), "no more than one batch in each pause");
        assert!(pace.pause(begun + 3 * LONGEST).is_zero());
    }
}
