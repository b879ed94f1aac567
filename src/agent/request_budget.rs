//! The processor time that answers to requests may take, apart from that of looks.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::budget::Budget;

/// The share of requests, as a multiple of the share of looks. A Prometheus, a second one and a person with `kubectl
/// portreeve` stay far below it, at the defaults with 50,000 Services too.
const TIMES_LOOKS: f64 = 10.0;
/// The time of this many seconds may be used at once: at the defaults, two seconds of a core.
const BURST: Duration = Duration::from_secs(100);

/// A share of one core for requests.
#[derive(Debug)]
pub(super) struct RequestBudget(Mutex<Account>);

#[derive(Debug)]
struct Account {
    budget: Budget,
    spent: Duration,
}

impl RequestBudget {
    /// For looks that may take this many per cent of a core.
    pub(super) fn new(cpu_percent: f64, now: Instant) -> Self {
        let budget = Budget::new(share(cpu_percent), BURST, now);
        Self(Mutex::new(Account { budget, spent: Duration::ZERO }))
    }

    /// The same for another share of looks from now on.
    pub(super) fn set_cpu_percent(&self, cpu_percent: f64) {
        self.account().budget.set_share(share(cpu_percent), BURST, Instant::now());
    }

    /// How many seconds requests have to wait; nothing where they need not.
    pub(super) fn wait(&self) -> Option<u32> {
        let wait = self.account().budget.wait(Instant::now());
        (!wait.is_zero()).then(|| u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// Takes what an answer cost.
    pub(super) fn charge(&self, cost: Duration) {
        let mut account = self.account();
        account.budget.charge(cost, Instant::now());
        account.spent += cost;
    }

    /// What all answers cost so far.
    pub(super) fn spent(&self) -> Duration {
        self.account().spent
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The share of a core, for looks that may take this many per cent.
fn share(cpu_percent: f64) -> f64 {
    (TIMES_LOOKS * cpu_percent / 100.0).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_scrapes_in_fifteen_seconds_and_a_snapshot_now_and_then_never_wait() {
        let begun = Instant::now();
        let mut budget = Budget::new(share(0.2), BURST, begun);
        // What 50,000 Services cost.
        let (scrape, snapshot) = (Duration::from_millis(60), Duration::from_millis(600));
        for round in 0..1000 {
            let now = begun + round * Duration::from_secs(15);
            for cost in [Some(scrape), Some(scrape), (round % 20 == 0).then_some(snapshot)].into_iter().flatten() {
                assert!(budget.wait(now).is_zero(), "round {round}");
                budget.charge(cost, now);
            }
        }
    }
}
