//! What every report reads: one look, its board, and how severe a finding must be to count.

use super::{ReportedGap, reported_gaps};
use crate::{
    facts::{Gap, Reading, Snapshot, Why},
    findings::{Finding, Severity},
    ledger::Board,
    rules::{RULES, Rule},
};

/// One snapshot and its findings, ready to be printed.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// What was seen.
    pub snapshot: &'a Snapshot,
    /// What is wrong, and which rules have no answer.
    pub board: &'a Board,
    /// Findings milder than this are neither reported nor counted. Where nothing was chosen, all are reported, and those
    /// from [`Severity::Warning`] on count.
    pub min_severity: Option<Severity>,
    /// The rules that were run.
    pub rules: &'a [&'static Rule],
}

/// The result of a check; its number is the exit code of `check`, and of a node-problem-detector plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// Nothing that counts.
    Clear = 0,
    /// Findings that count.
    Findings = 1,
    /// No findings, but something that had to be readable was not.
    NotChecked = 2,
}

impl<'a> Report<'a> {
    /// Of every rule, and every finding.
    pub fn of(snapshot: &'a Snapshot, board: &'a Board) -> Self {
        Self { snapshot, board, min_severity: None, rules: RULES }
    }

    /// The findings that are reported, worst first.
    pub fn findings(&self) -> impl Iterator<Item = &'a Finding> {
        let mildest = self.min_severity.unwrap_or(Severity::Info);
        self.board.findings.iter().filter(move |finding| finding.evidence.severity >= mildest)
    }

    /// How many findings of a severity there are, reported or not.
    pub fn count(&self, severity: Severity) -> usize {
        self.board.findings.iter().filter(|finding| finding.evidence.severity == severity).count()
    }

    /// Whether there is a finding that counts, else whether all could be looked at that had to be.
    pub fn result(&self) -> CheckResult {
        let counts = self.min_severity.unwrap_or(Severity::Warning);
        if self.board.findings.iter().any(|finding| finding.evidence.severity >= counts) {
            CheckResult::Findings
        } else if self.failures().is_empty() {
            CheckResult::Clear
        } else {
            CheckResult::NotChecked
        }
    }

    /// Rules that failed, and what had to be readable and was not, each reason once: a configured cluster, and the core of the node: sockets, settings,
    /// addresses. What a profile may not see and what this kernel does not have are no failures.
    pub fn failures(&self) -> Vec<&'a Gap> {
        let Snapshot { kernel, cluster, .. } = self.snapshot;
        let sysctls = &kernel.sysctls;
        let mut failures: Vec<&Gap> = Vec::new();
        if cluster.configured {
            failures.extend(cluster.services.gap());
            failures.extend(cluster.endpoint_slices.gap().filter(|gap| is_failure(gap)));
            failures.extend(cluster.rejected.iter().filter(|gap| is_failure(gap)));
        }
        let core = [
            gap_of(&kernel.listeners),
            gap_of(&kernel.clients),
            gap_of(&kernel.interfaces),
            gap_of(&sysctls.ip_local_port_range),
            gap_of(&sysctls.ip_local_reserved_ports),
            gap_of(&sysctls.route_localnet),
        ];
        failures.extend(core.into_iter().flatten().filter(|gap| is_failure(gap)));
        failures.extend(&self.board.failed);
        let mut known = Vec::new();
        failures.retain(|gap| {
            !known.contains(gap) && {
                known.push(*gap);
                true
            }
        });
        failures
    }

    /// Everything that was not read, and every rule without an answer.
    pub fn gaps(&self) -> Vec<ReportedGap<'a>> {
        reported_gaps::reported_gaps(self.snapshot, self.board)
    }
}

fn gap_of<T>(reading: &Reading<T>) -> Option<&Gap> {
    reading.gap()
}

fn is_failure(gap: &Gap) -> bool {
    !matches!(gap.why, Why::NotPermitted | Why::NotSupported | Why::NotAsked | Why::NotYet)
}
