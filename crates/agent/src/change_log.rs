//! The agent's log lines about findings: a bounded number of changes, and all findings on SIGUSR1.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{
    bucket::Bucket,
    http::Published,
    own_node::{NodeDoubt, doubt},
};
use portreeve_facts::{OwnPort, Reading, Snapshot};
use portreeve_report::unread_in_words;
use portreeve_rules::{
    findings::{Finding, Severity},
    ledger::Change,
};

/// Changes that are logged at once. A process that opens and closes its port again and again must not fill a disk.
const LINES: u32 = 100;
/// The time between two logged changes after that.
const LINE: Duration = Duration::from_secs(10);
/// The pause between two lines that report the number of changes that were not logged.
const LEFT_OUT: Duration = Duration::from_secs(60);

/// Logs changes, as long as there are not too many.
#[derive(Debug)]
pub(super) struct ChangeLog {
    lines: Bucket,
    left_out: usize,
    last_left_out: Option<Instant>,
    node: NodeDoubt,
    /// Why sockets, addresses or settings of the node are not read, while that lasts.
    unread: Option<String>,
}

impl ChangeLog {
    /// An empty log.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            lines: Bucket::new(LINES, LINE, now),
            left_out: 0,
            last_left_out: None,
            node: NodeDoubt::default(),
            unread: None,
        }
    }

    /// Logs what a round changed.
    pub(super) fn log(&mut self, changes: &[Change], now: Instant) {
        for change in changes {
            if self.lines.take(now) {
                log_change(change);
            } else {
                self.left_out += 1;
            }
        }
        if let Some(left_out) = self.take_left_out(now) {
            warn!(left_out, "too many changes to log each of them; /findings has all findings");
        }
    }

    /// Logs once that the name of this node may be wrong.
    pub(super) fn log_node(&mut self, snapshot: &Snapshot, now: Instant) {
        let doubt = doubt(snapshot);
        if self.node.is_due(doubt.is_some(), now) {
            warn!(why = doubt, "the name of this node may be wrong; check --node");
        }
    }

    /// Logs when sockets, addresses or settings of the node cannot be read, and when they can be again.
    pub(super) fn log_unread(&mut self, snapshot: &Snapshot, now: Instant) {
        let unread = unread_in_words(snapshot);
        if unread.is_some() == self.unread.is_some() || !self.lines.take(now) {
            return;
        }
        match &unread {
            Some(detail) => warn!(detail, "cannot read the node; findings do not change"),
            None => info!("the node can be read again"),
        }
        self.unread = unread;
    }

    /// The number of changes that were not logged since the last such line, if a line is due.
    fn take_left_out(&mut self, now: Instant) -> Option<usize> {
        let is_due = self.last_left_out.is_none_or(|last| now.saturating_duration_since(last) >= LEFT_OUT);
        if self.left_out == 0 || !is_due {
            return None;
        }
        self.last_left_out = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Logs what a round changed about one finding.
fn log_change(change: &Change) {
    let word = match change {
        Change::Raised(_) => "raised",
        Change::Changed(_) | Change::Became(..) => "changed",
        Change::Cleared(..) => "cleared",
    };
    let (Change::Raised(finding) | Change::Changed(finding) | Change::Became(_, finding) | Change::Cleared(finding, _)) =
        change;
    let Finding { key, evidence, .. } = finding;
    let (severity, summary) = (evidence.severity, evidence.summary.as_str());
    match severity {
        Severity::Critical | Severity::Warning if !matches!(change, Change::Cleared(..)) => {
            warn!(rule = %key.name(), subject = %key.subject, %severity, summary, "{word}");
        }
        _ => info!(rule = %key.name(), subject = %key.subject, %severity, summary, "{word}"),
    }
}

/// Logs the number of findings, the state of the agent, and each open finding.
pub(super) fn log_state(published: &Published, interval: Duration, cost: Duration, own_port: &Reading<OwnPort>) {
    let findings = |severity| {
        let board = published.last.as_ref().map(|(_, board)| &board.findings);
        board.into_iter().flatten().filter(|it| it.evidence.severity == severity).count()
    };
    let unknown = published.last.as_ref().map_or(0, |(_, board)| board.unknown.len());
    info!(
        scans = published.work.scans,
        critical = findings(Severity::Critical),
        warning = findings(Severity::Warning),
        info = findings(Severity::Info),
        unknown,
        ?interval,
        ?cost,
        ?own_port,
        "state"
    );
    for finding in published.last.iter().flat_map(|(_, board)| &board.findings) {
        info!(rule = %finding.key.name(), subject = %finding.key.subject, since = %finding.since, "open finding");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_that_comes_and_goes_all_the_time_does_not_fill_the_log() {
        let start = Instant::now();
        let mut log = ChangeLog::new(start);
        let (mut written, mut left_out, mut notes) = (0_usize, 0, 0);
        // Two changes a second, for an hour.
        for half_second in 0..7200 {
            let now = start + half_second * Duration::from_millis(500);
            if log.lines.take(now) {
                written += 1;
            } else {
                log.left_out += 1;
            }
            if let Some(more) = log.take_left_out(now) {
                (left_out, notes) = (left_out + more, notes + 1);
            }
        }
        assert!((100..=100 + 361).contains(&written), "{written}");
        assert!(notes <= 60, "{notes}");
        assert!(written + left_out + log.left_out == 7200, "each is written or counted");
    }

    #[test]
    fn the_changes_of_an_incident_are_all_logged() {
        let start = Instant::now();
        let mut log = ChangeLog::new(start);
        assert!((0..LINES).all(|_| log.lines.take(start)));
        assert_eq!(log.take_left_out(start), None);
    }
}
