//! The input of every report: one scan, its findings, the rules that could not judge, and the lowest severity that sets
//! the result.

use super::{
    ReportedGap,
    outcome::{CheckResult, is_failure, is_indispensable, not_judged, outcome, rules_not_judged},
    reported_gaps,
    topic::topic,
};
use portreeve_facts::{Snapshot, Source};
use portreeve_rules::{
    findings::{Finding, Severity},
    ledger::Board,
    {RULES, Rule},
};

/// A snapshot and its findings, as the input of a report.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The facts.
    pub snapshot: &'a Snapshot,
    /// The findings, and the rules that could not judge.
    pub board: &'a Board,
    /// The lowest severity of findings that are reported and set the result. With `None`, all findings are reported,
    /// and findings of at least [`Severity::Warning`] set the result.
    pub min_severity: Option<Severity>,
    /// The rules that were run.
    pub rules: &'a [&'static Rule],
    /// Whether this command made the scan. A second run of a command that made the scan may read more.
    pub is_live: bool,
}

impl<'a> Report<'a> {
    /// A report of every rule and every finding.
    pub fn of(snapshot: &'a Snapshot, board: &'a Board) -> Self {
        Self { snapshot, board, min_severity: None, rules: RULES, is_live: true }
    }

    /// The reported findings, worst first.
    pub fn findings(&self) -> impl Iterator<Item = &'a Finding> {
        let mildest = self.min_severity.unwrap_or(Severity::Info);
        self.board.findings.iter().filter(move |finding| finding.evidence.severity >= mildest)
    }

    /// The number of all findings with this severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.board.findings.iter().filter(|finding| finding.evidence.severity == severity).count()
    }

    pub(crate) fn counts(&self) -> Severity {
        self.min_severity.unwrap_or(Severity::Warning)
    }

    /// The result of the check, and the exit code.
    pub fn result(&self) -> CheckResult {
        let worst = self.board.findings.first().map(|finding| finding.evidence.severity);
        outcome(worst, self.counts(), || self.gaps().iter().any(|it| it.open().decides(self.counts())))
    }

    /// The failures: unread inputs and unjudged rules that could hide a finding that sets the result. The core inputs
    /// of the node come first.
    pub fn failures(&self) -> Vec<ReportedGap<'a>> {
        let mut failures = self.gaps();
        failures.retain(|it| it.open().decides(self.counts()));
        failures.sort_by_key(|it| !is_failure(it.gap.source, it.gap.why));
        failures
    }

    /// The unjudged part that could hide a finding that sets the result, in one line. If there is no such part, the
    /// function returns the ports and objects that this profile cannot judge, in one line.
    pub(crate) fn not_judged(&self) -> Option<String> {
        let claims = || not_judged(self.gaps().iter().map(ReportedGap::open).filter(|it| it.claims > 0), true);
        not_judged(self.failures().iter().map(ReportedGap::open), true).or_else(claims)
    }

    pub(crate) fn rules_not_judged(&self, helps: bool) -> Option<String> {
        rules_not_judged(self.gaps().iter().map(ReportedGap::open), helps)
    }

    /// All unread input, and all rules that could not judge.
    pub fn gaps(&self) -> Vec<ReportedGap<'a>> {
        reported_gaps::reported_gaps(self.snapshot, self.board)
    }
}

/// The first core input of a node that could not be read, and the reason, in one line.
pub fn unread_in_words(snapshot: &Snapshot) -> Option<String> {
    let gap = reported_gaps::snapshot_gaps(snapshot).into_iter().find(|gap| {
        (is_indispensable(gap.source) || gap.source == Source::Sysctls) && is_failure(gap.source, gap.why)
    })?;
    Some(format!("{} could not be read: {}", topic(gap.source, gap.why), gap.detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{Why, healthy::gap};
    use portreeve_rules::findings::Unknown;

    fn result(snapshot: &Snapshot, unknown: Vec<Unknown>) -> CheckResult {
        Report::of(snapshot, &Board { findings: Vec::new(), unknown }).result()
    }

    #[test]
    fn nothing_excuses_unread_sockets_and_addresses_and_the_reason_comes_first() {
        for why in [Why::NotPermitted, Why::NotSupported, Why::TimedOut, Why::Malformed, Why::TooMuch] {
            for source in [Source::Listeners, Source::Clients, Source::Addresses] {
                let mut world = Snapshot::healthy();
                let kernel = &mut world.kernel;
                match source {
                    Source::Listeners => kernel.listeners = gap(source, why),
                    Source::Clients => kernel.clients = gap(source, why),
                    _ => kernel.interfaces = gap(source, why),
                }
                let board = Board::default();
                let report = Report::of(&world, &board);
                assert_eq!(report.result(), CheckResult::NotChecked, "{source:?} {why:?}");
                assert_eq!(report.failures().first().map(|it| it.gap.source), Some(source));
                assert!(report.gaps().iter().any(|it| it.gap.source == source), "it is listed");
            }
            let mut world = Snapshot::healthy();
            world.kernel.netfilter = gap(Source::Netfilter, why);
            world.kernel.pod_namespaces = gap(Source::PodNamespaces, why);
            assert_eq!(result(&world, Vec::new()), CheckResult::Clear, "{why:?}: what a profile may not see");
        }
        let mut world = Snapshot::healthy();
        world.kernel.clients = gap(Source::Clients, Why::NotRequested);
        assert_eq!(result(&world, Vec::new()), CheckResult::Clear, "nobody asked");
    }
}
