//! How long to wait for what.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

/// The times of a watch. Tests have less patience than a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// A watch is asked to end after this long, or up to twice as long: so that a thousand agents do not come back at
    /// once. In whole seconds.
    pub watch: Duration,
    /// A watch on which nothing comes for so long is asked for again; bookmarks come every minute.
    pub idle: Duration,
    /// How often settings are read.
    pub settings: Duration,
    /// The longest wait after the first failure; it doubles with each.
    pub first_wait: Duration,
    /// What the wait after a failure grows to: a server that is back is found within two looks of the agent.
    pub last_wait: Duration,
    /// How long changes are gathered before they are told.
    pub gather: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            watch: Duration::from_secs(60),
            idle: Duration::from_secs(90),
            settings: Duration::from_secs(600),
            first_wait: Duration::from_secs(1),
            last_wait: Duration::from_secs(20),
            gather: Duration::from_millis(200),
        }
    }
}

/// The longest that a server may send us away for.
const MOST_RESPECT: Duration = Duration::from_secs(300);

impl Pace {
    /// How long a watch shall last; `dice` is from 0 to 1.
    pub(super) fn watch_for(&self, dice: f64) -> Duration {
        self.watch.mul_f64(1.0 + dice)
    }

    /// The wait after so many failures in a row: half of it is up to the dice. What the server asks for comes before.
    pub(super) fn back_off(&self, failures: u32, retry_after: Option<Duration>, dice: f64) -> Duration {
        let longest = 2_u32.saturating_pow(failures.saturating_sub(1));
        let longest = self.first_wait.saturating_mul(longest).min(self.last_wait);
        retry_after.unwrap_or_default().min(MOST_RESPECT) + longest.mul_f64(0.5 + dice / 2.0)
    }
}

/// A number from 0 to 1 that differs from agent to agent and from call to call: std seeds each of its hashers anew.
pub(super) fn dice() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_last_and_are_spread() {
        let pace = Pace::default();
        let waits = [1, 2, 3, 7, 100].map(|failures| pace.back_off(failures, None, 1.0).as_secs());
        assert_eq!(waits, [1, 2, 4, 20, 20]);
        assert_eq!(pace.back_off(2, None, 0.0), Duration::from_secs(1));
    }

    #[test]
    fn a_server_that_asks_for_more_gets_it_within_reason() {
        let pace = Pace::default();
        assert_eq!(pace.back_off(1, Some(Duration::from_secs(30)), 1.0), Duration::from_secs(31));
        assert_eq!(pace.back_off(1, Some(Duration::MAX), 1.0), Duration::from_secs(301));
    }

    #[test]
    fn watches_last_one_to_two_minutes() {
        let pace = Pace::default();
        assert_eq!([0.0, 1.0].map(|dice| pace.watch_for(dice).as_secs()), [60, 120]);
        let throws: Vec<_> = std::iter::repeat_with(dice).take(64).collect();
        assert!(throws.iter().all(|throw| (0.0..1.0).contains(throw)), "{throws:?}");
        assert!(throws.iter().any(|throw| *throw < 0.5) && throws.iter().any(|throw| *throw >= 0.5), "{throws:?}");
    }
}
