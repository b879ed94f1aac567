//! What the agent logs about findings: every change, and all of them on SIGUSR1.

use std::time::Duration;

use tracing::{info, warn};

use super::http::Published;
use crate::{
    facts::{OwnPort, Reading},
    findings::{Finding, Severity},
    ledger::Change,
};

/// Logs what a round changed about one finding.
pub(super) fn log_change(change: &Change) {
    let word = match change {
        Change::Raised(_) => "raised",
        Change::Changed(_) => "changed",
        Change::Cleared(..) => "cleared",
    };
    let (Change::Raised(finding) | Change::Changed(finding) | Change::Cleared(finding, _)) = change;
    let Finding { key, evidence, .. } = finding;
    let (severity, summary) = (evidence.severity, evidence.summary.as_str());
    match severity {
        Severity::Critical | Severity::Warning if !matches!(change, Change::Cleared(..)) => {
            warn!(rule = %key.rule, subject = %key.subject, %severity, summary, "{word}");
        }
        _ => info!(rule = %key.rule, subject = %key.subject, %severity, summary, "{word}"),
    }
}

/// Logs how many findings there are, how the agent works, and each open finding.
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
        info!(rule = %finding.key.rule, subject = %finding.key.subject, since = %finding.since, "open");
    }
}
