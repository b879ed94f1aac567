//! How often facts that are kept are read again, even if nothing seems to have changed.

/// The number of scans from one full read to the next full read.
pub(super) const PERIOD: u8 = 20;

#[derive(Debug, Default)]
pub(super) struct ScanCounter(u8);

impl ScanCounter {
    /// Counts one more scan, and returns whether this scan makes a full read.
    pub(super) fn advance(&mut self) -> bool {
        self.0 = (self.0 + 1) % PERIOD;
        self.0 == 0
    }
}
