//! The number of failures in a row. A watcher waits longer after more failures.

use std::{mem, time::Duration};

use tokio::time::Instant;

use crate::error::Error;

/// Counts failures in a row.
///
/// The count begins again if requests succeeded for some time. A server that answers only for a moment does not reset
/// the count, so it does not get constant requests.
///
/// The count also begins again, once, if an unreachable server answers with a refusal. A server that just started often
/// refuses clients and resource versions that it does not know yet.
#[derive(Debug, Default)]
pub(super) struct Patience {
    failures: u32,
    well_since: Option<Instant>,
    refused: bool,
    /// Whether the count already began again because of a refusal.
    has_started: bool,
    /// The number of watches in a row that ended without an error, but soon and without a change.
    empty: u32,
}

impl Patience {
    pub(super) fn succeeded(&mut self, now: Instant) {
        self.well_since.get_or_insert(now);
    }

    /// Counts a failure, and returns the number of failures in a row. If requests succeeded for at least `lasting`
    /// before this failure, returns one.
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

    /// Counts the end of a watch. Returns the number of useless watches in a row, but at least 1. A watch is useless if
    /// it was short and had no change.
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
    fn a_server_that_just_started_is_retried_soon_but_only_once() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        let mut failed = |error: Error| patience.failed(&error, LASTING, now);
        assert_eq!([silence(), silence(), silence()].map(&mut failed), [1, 2, 3]);
        assert_eq!([refusal(), refusal()].map(&mut failed), [1, 2]);
        assert_eq!([silence(), refusal(), silence(), refusal()].map(&mut failed), [3, 4, 5, 6]);
    }

    #[test]
    fn short_watches_without_a_change_are_counted_until_one_lasts_or_has_a_change() {
        let mut patience = Patience::default();
        let soon = Duration::from_millis(1);
        let ends = [(false, soon), (false, soon), (false, LASTING), (false, soon), (false, soon), (true, soon)];
        let counted = ends.map(|(brought, lived)| patience.ended(brought, lived, LASTING));
        assert_eq!(counted, [1, 2, 1, 1, 2, 1]);
    }

    #[test]
    fn only_a_success_that_lasted_ends_a_series_of_failures() {
        let (mut patience, mut now) = (Patience::default(), Instant::now());
        let mut failures = Vec::new();
        for lasted in [0, 1, 9, 10, 0] {
            patience.succeeded(now);
            now += Duration::from_secs(lasted);
            // The time counts from the first success.
            patience.succeeded(now);
            failures.push(patience.failed(&silence(), LASTING, now));
        }
        assert_eq!(failures, [1, 2, 3, 1, 2]);
    }
}
