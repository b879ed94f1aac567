//! Decides when to scan the node, and which scans read connections too. One rule for both: work is repeated when the time since
//! its beginning pays for its cost, at the agent's share of a core.
//!
//! Pure: the time is an argument. The loop gets the [`next`](Cadence::next) scan, runs it, and reports its
//! [cost](Cadence::scanned).
//!
//! - A **tick** comes at every interval, or later if a scan costs more than the share of an interval.
//! - A **change** of the cluster is judged within a second, unless the scan after the last change cost too much for that.
//!   The next tick comes an interval later.
//! - **Connections** are read by the first scan that is allowed to. The cost of reading grows with their number, and delays no
//!   scan.

use std::time::{Duration, Instant};

/// How long the cluster has to be quiet before a change leads to a scan.
const QUIET: Duration = Duration::from_millis(250);
/// How long a cluster that is never quiet may delay a scan.
const LONGEST_QUIET_WAIT: Duration = Duration::from_secs(1);
/// The longest time from one scan to the next, however much a scan costs. A longer interval wins.
const LONGEST_TICK: Duration = Duration::from_secs(120);
/// The longest time until connections are read again, however much reading costs.
const LONGEST: Duration = Duration::from_secs(1200);

/// The reason of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The interval has passed.
    Tick,
    /// The cluster changed.
    Change,
}

/// The beginning of a piece of work, and its cost in processor time.
#[derive(Clone, Copy, Debug)]
struct Done {
    began: Instant,
    cost: Duration,
}

/// Changes of the cluster that no scan has judged yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    first: Instant,
    last: Instant,
}

/// Decides when to scan. One for each agent.
#[derive(Debug, Default)]
pub(super) struct Cadence {
    interval: Duration,
    /// The share of one core.
    share: f64,
    scan: Option<Done>,
    scan_after_change: Option<Done>,
    connections: Option<Done>,
    pending: Option<Pending>,
}

impl Cadence {
    /// A cadence whose first scan is at once. `cpu_percent` is the share of one core for scans. Reading connections has the same
    /// share again.
    pub(super) fn new(interval: Duration, cpu_percent: f64) -> Self {
        let mut cadence = Self::default();
        cadence.configure(interval, cpu_percent);
        cadence
    }

    /// Sets another interval and share.
    pub(super) fn configure(&mut self, interval: Duration, cpu_percent: f64) {
        (self.interval, self.share) = (interval, cpu_percent / 100.0);
    }

    /// Notes a change of the cluster.
    pub(super) fn changed(&mut self, now: Instant) {
        self.pending.get_or_insert(Pending { first: now, last: now }).last = now;
    }

    /// The reason of a scan that is due now, or the time until this has to be called again.
    pub(super) fn next(&self, now: Instant) -> Result<Cause, Duration> {
        let pause = |scan: Done| self.interval.max(self.pause(scan, LONGEST_TICK));
        let until_tick = self.scan.map_or(Duration::ZERO, |scan| until(scan.began + pause(scan), now));
        if until_tick.is_zero() {
            return Ok(Cause::Tick);
        }
        let Some(pending) = self.pending else { return Err(until_tick) };
        let quiet = until((pending.last + QUIET).min(pending.first + LONGEST_QUIET_WAIT), now);
        let paid = |scan: Done| until(scan.began + self.pause(scan, LONGEST_TICK), now);
        let until_change = quiet.max(self.scan_after_change.map_or(Duration::ZERO, paid));
        if until_change.is_zero() { Ok(Cause::Change) } else { Err(until_tick.min(until_change)) }
    }

    /// Whether a scan that begins now reads connections.
    pub(super) fn reads_connections(&self, now: Instant) -> bool {
        self.connections.is_none_or(|read| until(read.began + self.pause(read, LONGEST), now).is_zero())
    }

    /// Notes the costs of a scan that began at `began`. If the scan read connections, their cost is separate.
    pub(super) fn scanned(&mut self, began: Instant, cost: Duration, connections: Option<Duration>) {
        let scan = Done { began, cost };
        self.scan = Some(scan);
        if self.pending.is_some() {
            self.scan_after_change = Some(scan);
        }
        self.connections = connections.map(|cost| Done { began, cost }).or(self.connections);
        // Changes during the scan are not judged yet.
        self.pending = self.pending.filter(|pending| pending.last > began);
    }

    /// The longest time from one scan to the next, however much scans cost.
    pub(super) fn longest(&self) -> Duration {
        LONGEST_TICK.max(self.interval)
    }

    /// The time from the beginning of a piece of work until it may be repeated; at most `longest`.
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
