//! When to look at the node, and when to read its connections, too. One rule for both: neither is done again before its own
//! cost is the agent's share of the time since it began.
//!
//! Pure: the time is an argument. The loop asks for the [`next`](Cadence::next) look, takes it, and says what it
//! [cost](Cadence::looked).
//!
//! - A **tick** comes at every interval, or later where a look costs more than the share of that time.
//! - A **change** of the cluster is judged within a second, unless the look at the change before cost too much for that.
//!   The next tick comes an interval later.
//! - **Connections** are read by the first look that may. Reading them takes as long as there are connections, and delays no
//!   look.

use std::time::{Duration, Instant};

/// How long the cluster has to be quiet before its change leads to a look.
const QUIET: Duration = Duration::from_millis(250);
/// How long a cluster that is never quiet may delay a look.
const LONGEST_QUIET_WAIT: Duration = Duration::from_secs(1);
/// The longest time from one look to the next, or the interval if that is longer, whatever a look costs.
const LONGEST_TICK: Duration = Duration::from_secs(120);
/// The longest time until connections are read again, whatever that costs.
const LONGEST: Duration = Duration::from_secs(1200);

/// What brought a look on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The interval has passed.
    Tick,
    /// The cluster changed.
    Change,
}

/// When something was begun, and the processor time that it cost.
#[derive(Clone, Copy, Debug)]
struct Done {
    began: Instant,
    cost: Duration,
}

/// Changes of the cluster that no look has judged yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    first: Instant,
    last: Instant,
}

/// Decides when to look. One for each agent.
#[derive(Debug, Default)]
pub(super) struct Cadence {
    interval: Duration,
    /// Of one core.
    share: f64,
    look: Option<Done>,
    look_at_change: Option<Done>,
    connections: Option<Done>,
    pending: Option<Pending>,
}

impl Cadence {
    /// A cadence whose first look is at once. `cpu_percent` is the share of one core that looks may take, and as much again
    /// reading connections.
    pub(super) fn new(interval: Duration, cpu_percent: f64) -> Self {
        let mut cadence = Self::default();
        cadence.configure(interval, cpu_percent);
        cadence
    }

    /// Another interval and share from now on.
    pub(super) fn configure(&mut self, interval: Duration, cpu_percent: f64) {
        (self.interval, self.share) = (interval, cpu_percent / 100.0);
    }

    /// Notes a change of the cluster.
    pub(super) fn changed(&mut self, now: Instant) {
        self.pending.get_or_insert(Pending { first: now, last: now }).last = now;
    }

    /// What to look for now, or how long to wait before asking again.
    pub(super) fn next(&self, now: Instant) -> Result<Cause, Duration> {
        let pause = |look: Done| self.interval.max(self.pause(look, LONGEST_TICK));
        let until_tick = self.look.map_or(Duration::ZERO, |look| until(look.began + pause(look), now));
        if until_tick.is_zero() {
            return Ok(Cause::Tick);
        }
        let Some(pending) = self.pending else { return Err(until_tick) };
        let quiet = until((pending.last + QUIET).min(pending.first + LONGEST_QUIET_WAIT), now);
        let paid = |look: Done| until(look.began + self.pause(look, LONGEST_TICK), now);
        let until_change = quiet.max(self.look_at_change.map_or(Duration::ZERO, paid));
        if until_change.is_zero() { Ok(Cause::Change) } else { Err(until_tick.min(until_change)) }
    }

    /// Whether a look now reads connections.
    pub(super) fn reads_connections(&self, now: Instant) -> bool {
        self.connections.is_none_or(|read| until(read.began + self.pause(read, LONGEST), now).is_zero())
    }

    /// Notes a look that began at `began`: what it cost, and what reading connections cost, if it did that.
    pub(super) fn looked(&mut self, began: Instant, cost: Duration, connections: Option<Duration>) {
        let look = Done { began, cost };
        self.look = Some(look);
        if self.pending.is_some() {
            self.look_at_change = Some(look);
        }
        self.connections = connections.map(|cost| Done { began, cost }).or(self.connections);
        // What changed while it looked is not judged yet.
        self.pending = self.pending.filter(|pending| pending.last > began);
    }

    /// The longest time from one look to the next, whatever looks cost.
    pub(super) fn longest(&self) -> Duration {
        LONGEST_TICK.max(self.interval)
    }

    /// How long after it began it may be done again; at most `longest`.
    fn pause(&self, done: Done, longest: Duration) -> Duration {
        let pause = Duration::try_from_secs_f64(done.cost.as_secs_f64() / self.share);
        pause.map_or(longest, |pause| pause.min(longest))
    }
}

fn until(at: Instant, now: Instant) -> Duration {
    at.saturating_duration_since(now)
}

#[cfg(test)]
mod tests;
