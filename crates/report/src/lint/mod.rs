//! Reports of findings in manifests: for people, for pipelines and for code scanning.

mod annotations;
mod document;
mod junit;
mod sarif;

pub use annotations::{without_commands, write_annotations};
pub use document::{lint_schema, write_lint_json, write_lint_yaml};
pub use junit::write_lint_junit;
pub use sarif::write_lint_sarif;

use super::{
    outcome::{CheckResult, Open, not_judged, outcome},
    remedies::{joined, lines},
    terminal::tidy,
};
use portreeve_rules::{
    findings::{PlacedFinding, Unknown},
    lint::LintReport,
};

/// The result is also the exit code. If a failure occurred, or if a rule could not compare all objects, the result is
/// not `Clear`.
pub fn lint_result(report: &LintReport) -> CheckResult {
    let worst = report.findings.iter().map(|finding| finding.evidence.severity).max();
    outcome(worst, report.counts_from(), || is_undecided(report))
}

/// Whether an unread input could hide a finding that sets the result.
pub fn is_undecided(report: &LintReport) -> bool {
    undecided(report).is_some()
}

/// Describes the unread inputs that could hide a finding that sets the result. The text does not suggest flags, because
/// `lint` lacks the flags of a scan.
pub(crate) fn undecided(report: &LintReport) -> Option<String> {
    let failed = (!report.failures.is_empty()).then(|| "some objects could not be judged".to_owned());
    let open = report.unknown.iter().filter(|it| decides(report, it));
    let open = not_judged(open.map(open_of), false);
    failed.into_iter().chain(open).reduce(|failed, open| format!("{failed}; {open}"))
}

/// Whether this unread input could hide a finding that sets the result.
fn decides(report: &LintReport, unjudged: &Unknown) -> bool {
    open_of(unjudged).decides(report.counts_from())
}

fn open_of(unjudged: &Unknown) -> Open {
    Open::of_rule(unjudged.rows, unjudged.claims, &unjudged.gap)
}

fn remedy(finding: &PlacedFinding) -> Vec<String> {
    lines(&finding.evidence.remedies).map(|(word, step)| joined(word, &tidy(&step.text))).collect()
}
