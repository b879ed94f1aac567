//! What was found in manifests, for people, pipelines and code scanning.

mod annotations;
mod document;
mod junit;
mod sarif;

pub use annotations::write_annotations;
pub use document::{lint_schema, write_lint_json, write_lint_yaml};
pub use junit::write_lint_junit;
pub use sarif::write_lint_sarif;

use super::{
    CheckResult,
    remedies::{joined, lines},
    terminal::tidy,
};
use portreeve_rules::{findings::PlacedFinding, lint::LintReport};

/// Whether there is a finding that counts, else whether all could be read.
pub fn lint_result(report: &LintReport) -> CheckResult {
    if report.findings.iter().any(|finding| report.counts(finding)) {
        CheckResult::Findings
    } else if report.failures.is_empty() {
        CheckResult::Clear
    } else {
        CheckResult::NotChecked
    }
}

/// What to do, a line a step.
fn remedy(finding: &PlacedFinding) -> Vec<String> {
    lines(&finding.evidence.remedies).map(|(word, step)| joined(word, &tidy(&step.text))).collect()
}
