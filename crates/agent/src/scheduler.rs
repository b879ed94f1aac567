//! When to look at the node, and at how much of it: one budget of processor time for whatever brings work on.
//!
//! Pure: the time is an argument. The loop asks for the [`next`](Scheduler::next) look, takes it, and
//! [charges](Scheduler::looked) what it cost.
//!
//! - A **tick** comes at every interval. It has a reserve of its own, so that no debt for a whole look keeps a new listener
//!   from being seen. Where looks and other work use up even that, ticks come as often as it pays for them.
//! - A **change** of the cluster is judged within a second, while the budget or a small reserve of its own lasts;
//!   otherwise with the next tick.
//! - A **whole look** walks the connections too. It takes the place of a tick when nothing is owed. While one is
//!   overdue, changes use their own reserve only.
//!
//! Everything is charged to the budget, and both reserves together are less than it. So a debt is always paid back, and
//! over time no more is used than the share. Only where other work alone needs more do looks come all the same, seldom.

use std::time::{Duration, Instant};

use super::bucket::Bucket;

/// How long the cluster has to be quiet before its change leads to a look.
const QUIET: Duration = Duration::from_millis(250);
/// How long a cluster that is never quiet may delay a look.
const LONGEST_QUIET_WAIT: Duration = Duration::from_secs(1);
/// What ticks may use of the budget, whatever is owed.
const OF_TICKS: f64 = 0.75;
/// What changes may use of it, whatever is owed.
const OF_CHANGES: f64 = 0.0625;
/// How long nothing has to be used until a bucket is full.
const BURST: Duration = Duration::from_secs(60);
/// The longest time from one look to the next, or the interval if that is longer, however much is owed.
const LONGEST_TICK: Duration = Duration::from_secs(120);
/// How long what was done beside the looks delays ticks at most, once it is over.
const AFTER_STORM: Duration = Duration::from_secs(15);
/// The longest time from one whole look to the next, however much is owed.
const LONGEST: Duration = Duration::from_secs(1200);

/// How much a look reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Everything.
    Whole,
    /// All but what takes as long as there are connections.
    Brief,
}

/// What brought a look on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The interval has passed.
    Tick,
    /// The cluster changed.
    Change,
}

/// Changes of the cluster that no look has judged yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    first: Instant,
    last: Instant,
}

/// Decides when to look. One for each agent.
#[derive(Debug)]
pub(super) struct Scheduler {
    interval: Duration,
    /// A unit of each is a second of processor time.
    budget: Bucket,
    ticks: Bucket,
    changes: Bucket,
    /// When the next tick is due.
    tick: Instant,
    /// When the last tick or whole look began.
    last: Instant,
    last_whole: Option<Instant>,
    pending: Option<Pending>,
}

impl Scheduler {
    /// A scheduler whose first look is a whole one, at once. `cpu_percent` is its share of one core.
    pub(super) fn new(interval: Duration, cpu_percent: f64, now: Instant) -> Self {
        let share = cpu_percent / 100.0;
        let bucket = |part: f64| Bucket::new(part * share, BURST.max(2 * interval), now);
        Self {
            interval,
            budget: bucket(1.0),
            ticks: bucket(OF_TICKS),
            changes: bucket(OF_CHANGES),
            tick: now,
            last: now,
            last_whole: None,
            pending: None,
        }
    }

    /// Another interval and share from now on.
    pub(super) fn configure(&mut self, interval: Duration, cpu_percent: f64, now: Instant) {
        let share = cpu_percent / 100.0;
        let burst = BURST.max(2 * interval);
        let parts = [(&mut self.budget, 1.0), (&mut self.ticks, OF_TICKS), (&mut self.changes, OF_CHANGES)];
        parts.into_iter().for_each(|(bucket, part)| bucket.set_rate(part * share, burst, now));
        // A shorter interval counts at once.
        self.tick = self.tick.min(now + interval);
        self.interval = interval;
    }

    /// Notes a change of the cluster.
    pub(super) fn changed(&mut self, now: Instant) {
        self.pending.get_or_insert(Pending { first: now, last: now }).last = now;
    }

    /// The look to take now, or how long to wait before asking again.
    pub(super) fn next(&mut self, now: Instant) -> Result<(Cause, Extent), Duration> {
        let owed = self.budget.wait(now);
        let since_whole = self.last_whole.map(|last| now.saturating_duration_since(last));
        let may_be_whole = owed.is_zero() || since_whole.is_none_or(|since| since >= LONGEST);
        let until_tick = self.tick.saturating_duration_since(now);
        if until_tick.is_zero() && may_be_whole {
            return Ok((Cause::Tick, Extent::Whole));
        }
        let longest = (self.last + self.longest()).saturating_duration_since(now);
        let until_tick = until_tick.max(self.ticks.wait(now).min(longest));
        if until_tick.is_zero() {
            return Ok((Cause::Tick, Extent::Brief));
        }
        let Some(pending) = self.pending else { return Err(until_tick) };
        let due = (pending.last + QUIET).min(pending.first + LONGEST_QUIET_WAIT);
        let until_quiet = due.saturating_duration_since(now);
        // While a whole look is overdue, what is paid back is for that one.
        let overdue = since_whole.is_none_or(|since| since > self.interval + LONGEST_QUIET_WAIT);
        let reserve = self.changes.wait(now);
        let until_paid = if overdue { reserve } else { reserve.min(owed) };
        let until_change = until_quiet.max(until_paid);
        if until_change.is_zero() { Ok((Cause::Change, Extent::Brief)) } else { Err(until_tick.min(until_change)) }
    }

    /// Charges a look that began at `began` and cost this much processor time.
    pub(super) fn looked(&mut self, (cause, extent): (Cause, Extent), cost: Duration, began: Instant, now: Instant) {
        self.budget.charge(cost.as_secs_f64(), now);
        match (cause, extent) {
            (Cause::Tick, Extent::Brief) => self.ticks.charge(cost.as_secs_f64(), now),
            (Cause::Change, Extent::Brief) => self.changes.charge(cost.as_secs_f64(), now),
            // Only the budget pays for what takes as long as there are connections: ticks go on meanwhile.
            (_, Extent::Whole) => self.last_whole = Some(began),
        }
        if cause == Cause::Tick || extent == Extent::Whole {
            (self.last, self.tick) = (began, began + self.interval);
        }
        // What changed while it looked is not judged yet.
        self.pending = self.pending.filter(|pending| pending.last > began);
    }

    /// The longest time from one look to the next, whatever is owed.
    pub(super) fn longest(&self) -> Duration {
        LONGEST_TICK.max(self.interval)
    }

    /// Charges what was done beside the looks, such as reading what the API server sends.
    pub(super) fn charge(&mut self, cost: Duration, now: Instant) {
        self.budget.charge(cost.as_secs_f64(), now);
        // However long a storm was, ticks come in time soon after it.
        self.ticks.charge_within(cost.as_secs_f64(), AFTER_STORM, now);
    }
}

#[cfg(test)]
mod tests;
