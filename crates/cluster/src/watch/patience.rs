//! How many failures in succession count for the back-off of a watcher.

use std::{mem, time::Duration};

use tokio::time::Instant;

use crate::error::Error;

/// Failures in succession.
///
/// They count from 1 again when what was read has lasted, so that no server makes an agent come back all the time that
/// gives a little before it fails. They also do so once when a server that was unreachable answers with a refusal: it has
/// just started, and will know the client and its versions soon.
#[derive(Debug, Default)]
pub(super) struct Patience {
    failures: u32,
    /// Since when all is well.
    well_since: Option<Instant>,
    /// The last failure was a refusal.
    refused: bool,
    /// A refusal has counted as that of a server that has just started.
    has_started: bool,
    /// Watches in succession that ended in order, but soon, and brought nothing.
    empty: u32,
}

impl Patience {
    /// All is well.
    pub(super) fn succeeded(&mut self, now: Instant) {
        self.well_since.get_or_insert(now);
    }

    /// A failure; returns how many there were in succession. What went well for `lasting` before it ends their series.
    pub(super) fn failed(&mut self, error: &Error, lasting: Duration, now: Instant) -> u32 {
        if self.well_since.take().is_some_and(|since| now.saturating_duration_since(since) >= lasting) {
            *self = Self::default();
        }
        let refused = matches!(error, Error::Status { code: 401 | 403 | 410, .. });
        let first_refusal = !mem::replace(&mut self.refused, refused) && refused && self.failures > 0;
        if first_refusal && !mem::replace(&mut self.has_started, true) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    /// A watch has ended in order after this time. Returns how many in succession did so that were of no use, and no less
    /// than 1: those that bring nothing and do not last count.
    pub(super) fn ended(&mut self, brought: bool, lived: Duration, lasting: Duration) -> u32 {
        self.empty = if brought || lived >= lasting { 0 } else { self.empty.saturating_add(1) };
        self.empty.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTING: Duration = Duration::from_secs(10);

    fn refusal() -> Error {
        Error::Status { request: String::new(), code: 403, message: String::new(), retry_after: None }
    }

    fn silence() -> Error {
        Error::Unreachable { request: String::new(), what: String::new() }
    }

    #[test]
    fn a_server_that_has_just_started_is_asked_again_soon_but_only_once() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        let mut failed = |error: Error| patience.failed(&error, LASTING, now);
        assert_eq!([silence(), silence(), silence()].map(&mut failed), [1, 2, 3]);
        assert_eq!([refusal(), refusal()].map(&mut failed), [1, 2]);
        assert_eq!([silence(), refusal(), silence(), refusal()].map(&mut failed), [3, 4, 5, 6]);
    }

    #[test]
    fn watches_that_end_at_once_and_bring_nothing_are_counted_until_one_lasts_or_brings_something() {
        let mut patience = Patience::default();
        let soon = Duration::from_millis(1);
        let ends = [(false, soon), (false, soon), (false, LASTING), (false, soon), (false, soon), (true, soon)];
        let counted = ends.map(|(brought, lived)| patience.ended(brought, lived, LASTING));
        assert_eq!(counted, [1, 2, 1, 1, 2, 1]);
    }

    #[test]
    fn only_what_lasted_ends_a_series_of_failures() {
        let (mut patience, mut now) = (Patience::default(), Instant::now());
        let mut failures = Vec::new();
        for lasted in [0, 1, 9, 10, 0] {
            patience.succeeded(now);
            now += Duration::from_secs(lasted);
            // A later success is the same one.
            patience.succeeded(now);
            failures.push(patience.failed(&silence(), LASTING, now));
        }
        assert_eq!(failures, [1, 2, 3, 1, 2]);
    }
}
