//! Decides when to scan the node, and which scans also read connections. Scans and readings of connections may each use
//! the agent's share of a core. After an expensive scan or reading, the agent waits longer.
//!
//! All functions here are pure. The current time is an argument. The agent's loop gets the [`next`](Cadence::next)
//! scan, runs it, and reports its [cost](Cadence::scanned).
//!
//! - A **tick** comes after every interval. If a scan costs more than its share of an interval, the next tick comes
//!   later.
//! - A **change** of the cluster is judged within a second. If the last scan after a change cost too much, the
//!   judgement comes later. After a scan for a change, the next tick comes an interval later.
//! - **Connections** are read by the first scan that may read them. The cost of reading connections grows with the
//!   number of connections. The cost of reading connections does not delay the next scan.

use std::time::{Duration, Instant};

use portreeve_report::OLDEST_CONNECTIONS as LONGEST;

const QUIET: Duration = Duration::from_millis(250);
/// The longest time that a scan waits while the cluster changes again and again.
const LONGEST_QUIET_WAIT: Duration = Duration::from_secs(1);
/// The longest time between two ticks. If the configured interval is longer, the interval is used.
const LONGEST_TICK: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Tick,
    Change,
}

/// A finished scan, or a finished reading of connections: the beginning, and the cost in processor time.
#[derive(Clone, Copy, Debug)]
struct Done {
    began: Instant,
    cost: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    first: Instant,
    last: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Cadence {
    interval: Duration,
    /// The share of one core for scans.
    share: f64,
    scan: Option<Done>,
    scan_after_change: Option<Done>,
    connections: Option<Done>,
    pending: Option<Pending>,
}

impl Cadence {
    /// `cpu_percent` is the share of one core for scans. Readings of connections have a separate share of the same
    /// size.
    pub(super) fn new(interval: Duration, cpu_percent: f64) -> Self {
        let mut cadence = Self::default();
        cadence.configure(interval, cpu_percent);
        cadence
    }

    pub(super) fn configure(&mut self, interval: Duration, cpu_percent: f64) {
        (self.interval, self.share) = (interval, cpu_percent / 100.0);
    }

    pub(super) fn changed(&mut self, now: Instant) {
        self.pending.get_or_insert(Pending { first: now, last: now }).last = now;
    }

    /// Returns the cause of a scan that is due now. Otherwise returns the time after which the caller must call this
    /// function again.
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

    pub(super) fn reads_connections(&self, now: Instant) -> bool {
        self.connections.is_none_or(|read| until(read.began + self.pause(read, LONGEST), now).is_zero())
    }

    /// `connections` is the cost of reading connections. `None` if the scan did not read connections.
    pub(super) fn scanned(&mut self, began: Instant, cost: Duration, connections: Option<Duration>) {
        let scan = Done { began, cost };
        self.scan = Some(scan);
        if self.pending.is_some() {
            self.scan_after_change = Some(scan);
        }
        self.connections = connections.map(|cost| Done { began, cost }).or(self.connections);
        // A change that came during the scan is still pending: the next scan judges it.
        self.pending = self.pending.filter(|pending| pending.last > began);
    }

    pub(super) fn longest(&self) -> Duration {
        LONGEST_TICK.max(self.interval)
    }

    /// The time from the beginning of a scan or reading until the next scan or reading may begin, at most `longest`.
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
