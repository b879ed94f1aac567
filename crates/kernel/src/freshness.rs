//! How often kept facts are read again, even if nothing seems to have changed.

/// Everything is read again once in so many looks.
pub(super) const PERIOD: u8 = 20;

/// Counts looks from one full read to the next.
#[derive(Debug, Default)]
pub(super) struct LookCounter(u8);

impl LookCounter {
    /// Counts one more look, and returns whether everything is to be read again in it.
    pub(super) fn advance(&mut self) -> bool {
        self.0 = (self.0 + 1) % PERIOD;
        self.0 == 0
    }
}
