//! The processor time that answers to requests may take, apart from that of looks. There is one budget for what anybody may
//! read and one for documents: whoever uses up the first keeps nobody from the second who has a connection.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{bucket::Bucket, scanner::thread_cpu_time};

/// The share of each of the two, as a multiple of the share of looks. A Prometheus, a second one and a person with `kubectl
/// portreeve` stay far below it, at the defaults with 50,000 Services too.
const TIMES_LOOKS: f64 = 5.0;
/// For what anybody may read, the time of this many seconds may be used at once: at the defaults, two seconds of a core.
const PUBLIC_BURST: Duration = Duration::from_secs(200);
/// For documents, which are for few: at the defaults, eight seconds of a core, or some twenty snapshots with 50,000 Services.
const PRIVATE_BURST: Duration = Duration::from_secs(800);

/// A share of one core for requests.
#[derive(Debug)]
pub(super) struct RequestBudget {
    account: Mutex<Account>,
    burst: Duration,
}

#[derive(Debug)]
struct Account {
    /// A unit is a second of processor time.
    budget: Bucket,
    spent: Duration,
    /// What the thread that answers had used when it was charged last.
    thread: Duration,
}

impl RequestBudget {
    /// For what anybody may read, where looks may take this many per cent of a core.
    pub(super) fn public(cpu_percent: f64, now: Instant) -> Self {
        Self::new(cpu_percent, PUBLIC_BURST, now)
    }

    /// The same for documents.
    pub(super) fn private(cpu_percent: f64, now: Instant) -> Self {
        Self::new(cpu_percent, PRIVATE_BURST, now)
    }

    fn new(cpu_percent: f64, burst: Duration, now: Instant) -> Self {
        let budget = Bucket::new(share(cpu_percent), burst, now);
        Self { account: Mutex::new(Account { budget, spent: Duration::ZERO, thread: Duration::ZERO }), burst }
    }

    /// The same for another share of looks from now on.
    pub(super) fn set_cpu_percent(&self, cpu_percent: f64) {
        self.account().budget.set_rate(share(cpu_percent), self.burst, Instant::now());
    }

    /// How many seconds requests have to wait; nothing where they need not.
    pub(super) fn wait(&self) -> Option<u32> {
        let wait = self.debt();
        (!wait.is_zero()).then(|| u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// Takes what an answer cost.
    pub(super) fn charge(&self, cost: Duration) {
        let mut account = self.account();
        account.budget.charge(cost.as_secs_f64(), Instant::now());
        account.spent += cost;
    }

    /// Charges what the calling thread has done since the last time. For the thread that answers, and for no other.
    pub(super) fn settle(&self) {
        let used = thread_cpu_time();
        let mut account = self.account();
        let cost = used.saturating_sub(account.thread);
        account.thread = used;
        account.budget.charge(cost.as_secs_f64(), Instant::now());
        account.spent += cost;
    }

    /// How long it takes until what is owed is paid.
    pub(super) fn debt(&self) -> Duration {
        self.account().budget.wait(Instant::now())
    }

    /// What all answers cost so far.
    pub(super) fn spent(&self) -> Duration {
        self.account().spent
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut budget = Bucket::new(share(0.2), PUBLIC_BURST, begun);
        // What 50,000 Services cost.
        let (scrape, snapshot) = (Duration::from_millis(60), Duration::from_millis(600));
        for round in 0..1000 {
            let now = begun + round * Duration::from_secs(15);
            for cost in [Some(scrape), Some(scrape), (round % 20 == 0).then_some(snapshot)].into_iter().flatten() {
                assert!(budget.wait(now).is_zero(), "round {round}");
                budget.charge(cost.as_secs_f64(), now);
            }
        }
    }
}
