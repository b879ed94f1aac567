//! The times of watches and polls, and the times to wait after failures.

use std::time::Duration;

use crate::jitter::spread;

/// The times of watches and polls. Tests set shorter times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchTiming {
    /// `timeoutSeconds` of a watch, before a random factor from 1 to 2. The factor lets the watches of many agents end
    /// at different times.
    pub watch_duration: Duration,
    /// The longest time for which a watch may send no line. Afterwards, the watch is requested again. A server sends
    /// bookmarks every minute.
    pub idle_timeout: Duration,
    /// The time for which lines may arrive faster than the watcher reads lines. Later, the watcher requests the present
    /// state instead of the unread lines.
    pub behind: Duration,
    /// The interval between polls of Nodes and settings. In a small cluster, also the interval between polls of Pods
    /// that wait for free ports.
    pub poll_interval: Duration,
    /// The longest time to wait after the first failure. Each further failure doubles the time.
    pub first_backoff: Duration,
    /// The longest time to wait after any failure. With this limit, an agent finds within two scans that a server
    /// answers again.
    pub max_backoff: Duration,
}

impl Default for WatchTiming {
    fn default() -> Self {
        Self {
            watch_duration: Duration::from_secs(300),
            idle_timeout: Duration::from_secs(90),
            behind: Duration::from_secs(30),
            poll_interval: Duration::from_secs(600),
            first_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(20),
        }
    }
}

const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

impl WatchTiming {
    /// The duration of a watch. `jitter` is from 0 to 1.
    pub(super) fn spread_watch_duration(&self, jitter: f64) -> Duration {
        self.watch_duration.mul_f64(1.0 + jitter)
    }

    /// If a watch lasts this long, the count of failures begins again.
    pub(super) fn lasting(&self) -> Duration {
        10 * self.first_backoff
    }

    /// The time to wait after this number of failures in a row. Half of this time is multiplied by `jitter`, which is
    /// from 0 to 1. The function also adds `retry_after`, multiplied by a random factor from 1 to 2.
    pub(super) fn backoff(&self, failures: u32, retry_after: Option<Duration>, jitter: f64) -> Duration {
        let longest = 2_u32.saturating_pow(failures.saturating_sub(1));
        let longest = self.first_backoff.saturating_mul(longest).min(self.max_backoff);
        let wanted = retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
        spread(wanted, jitter) + longest.mul_f64(0.5 + jitter / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_last_and_are_spread() {
        let timing = WatchTiming::default();
        let waits = [1, 2, 3, 7, 100].map(|failures| timing.backoff(failures, None, 1.0).as_secs());
        assert_eq!(waits, [1, 2, 4, 20, 20]);
        assert_eq!(timing.backoff(2, None, 0.0), Duration::from_secs(1));
    }

    #[test]
    fn retry_after_is_obeyed_up_to_a_limit_and_spread_over_all_clients() {
        let timing = WatchTiming::default();
        let waits = [0.0, 1.0].map(|jitter| timing.backoff(1, Some(Duration::from_secs(30)), jitter));
        assert_eq!(waits, [Duration::from_millis(30_500), Duration::from_secs(61)]);
        assert_eq!(timing.backoff(1, Some(Duration::MAX), 0.0), Duration::from_millis(300_500));
    }

    #[test]
    fn watches_last_five_to_ten_minutes() {
        let timing = WatchTiming::default();
        assert_eq!([0.0, 1.0].map(|jitter| timing.spread_watch_duration(jitter).as_secs()), [300, 600]);
    }
}
