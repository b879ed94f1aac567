//! The agent's log lines about findings: a limited number of changes, and on SIGUSR1 all findings.

use std::{
    mem,
    time::{Duration, Instant},
};

use tracing::{info, warn};

use super::{bucket::Bucket, http::Published};
use portreeve_facts::{OwnPort, Reading, Snapshot};
use portreeve_report::unread_in_words;
use portreeve_rules::{
    findings::{Finding, Severity},
    ledger::Change,
};

/// The largest burst of lines. A process that opens and closes its port again and again must not fill the disk.
const LINES: u32 = 100;
/// The time between two lines, after the first [`LINES`] lines.
const LINE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct ChangeLog {
    lines: Bucket,
    left_out: usize,
    /// Whether the agent has logged that the node cannot be read.
    is_unread: bool,
}

impl ChangeLog {
    pub(super) fn new(now: Instant) -> Self {
        Self { lines: Bucket::new(LINES, LINE, now), left_out: 0, is_unread: false }
    }

    pub(super) fn log(&mut self, changes: &[Change], now: Instant) {
        for change in changes {
            if self.lines.take(now) {
                self.log_left_out();
                log_change(change);
            } else {
                self.left_out += 1;
            }
        }
        if self.left_out > 0 && self.lines.take(now) {
            self.log_left_out();
        }
    }

    fn log_left_out(&mut self) {
        let left_out = mem::take(&mut self.left_out);
        if left_out > 0 {
            warn!(left_out, "too many changes to log each of them; /findings has all findings");
        }
    }

    pub(super) fn log_node(&mut self, snapshot: &Snapshot, now: Instant) {
        let unread = unread_in_words(snapshot);
        if unread.is_some() != self.is_unread && self.lines.take(now) {
            self.is_unread = unread.is_some();
            match unread {
                Some(detail) => warn!(detail, "cannot read the node; findings do not change"),
                None => info!("the node can be read again"),
            }
        }
    }
}

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
    use std::{
        io::{Read as _, Seek as _},
        sync::Arc,
    };

    use super::*;
    use portreeve_facts::{Source, Why, healthy::gap};
    use portreeve_rules::findings::{Evidence, Key, RuleId, Subject};

    fn lines(write: impl FnOnce()) -> Vec<String> {
        let mut file = tempfile::tempfile().expect("a file");
        let same = Arc::new(file.try_clone().expect("a file"));
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(same).finish();
        tracing::subscriber::with_default(log, write);
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    fn change() -> Change {
        let (rule, subject) = (RuleId("stale-redirection"), Subject::node("n1", None));
        let key = Key { rule, variant: "loses", subject, port: None, protocol: None };
        let evidence = Evidence::new(Severity::Critical, "It is so.");
        Change::Raised(Finding { key, evidence, since: Snapshot::healthy().at })
    }

    #[test]
    fn a_finding_that_comes_and_goes_all_the_time_does_not_fill_the_log_and_each_change_is_counted() {
        let (start, mut left_out) = (Instant::now(), 0);
        let logged = lines(|| {
            let mut log = ChangeLog::new(start);
            (0..7200).for_each(|half| log.log(&[change()], start + half * Duration::from_millis(500)));
            left_out = log.left_out;
        });
        assert!((100..=100 + 2 * 361).contains(&logged.len()), "{}", logged.len());
        let counts = logged.iter().filter_map(|line| line.split_once("left_out=")?.1.parse::<usize>().ok());
        let raised = logged.iter().filter(|line| line.contains("raised")).count();
        assert!(raised > 400, "{raised}: each turn names a change, and counts those before it");
        assert_eq!(raised + counts.sum::<usize>() + left_out, 7200, "each is written or counted");
    }

    #[test]
    fn the_changes_of_an_incident_are_all_logged() {
        let logged = lines(|| {
            let start = Instant::now();
            let changes: Vec<Change> = (0..LINES).map(|_| change()).collect();
            ChangeLog::new(start).log(&changes, start);
        });
        assert!(logged.len() == LINES as usize && logged.iter().all(|line| line.contains("raised")));
    }

    #[test]
    fn a_node_that_cannot_be_read_and_its_return_are_a_line_each() {
        let (healthy, start) = (Snapshot::healthy(), Instant::now());
        let mut unread = healthy.clone();
        unread.kernel.listeners = gap(Source::Listeners, Why::TimedOut);
        let mut log = ChangeLog::new(start);
        let logged =
            lines(|| [&healthy, &unread, &unread, &healthy].into_iter().for_each(|it| log.log_node(it, start)));
        assert!(logged.len() == 2, "{logged:?}");
        assert!(logged[0].contains("cannot read the node") && logged[1].contains("can be read again"), "{logged:?}");
    }
}
