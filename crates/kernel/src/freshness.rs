//! How often kept facts are read again, even if no change was noticed.

/// The number of scans from one full reading to the next.
pub(super) const PERIOD: u8 = 20;

#[derive(Debug, Default)]
pub(super) struct ScanCounter(u8);

impl ScanCounter {
    /// Counts one more scan. Returns whether this scan must read everything.
    pub(super) fn advance(&mut self) -> bool {
        self.0 = (self.0 + 1) % PERIOD;
        self.0 == 0
    }
}
