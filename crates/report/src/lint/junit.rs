//! JUnit XML: a test case per finding, one per failure, and one for each rule that found nothing, could not tell, or was not
//! asked.

use std::io::{self, Write};

use super::remedy;
use crate::junit_suite::{Case, End, Said, Suite};
use portreeve_facts::{Gap, Place};
use portreeve_rules::{
    findings::PlacedFinding,
    ids::{self, Rows},
    lint::LintReport,
};

/// Writes one test suite. Findings that do not count are passed cases with their sentence as output.
///
/// # Errors
/// When the writer fails.
pub fn write_lint_junit(report: &LintReport, out: &mut dyn Write) -> io::Result<()> {
    let findings: Vec<&PlacedFinding> = report.reported().collect();
    let found = |rows: &Rows| findings.iter().any(|it| rows.have(it.rule, it.evidence.variant));
    let quiet = report
        .rules
        .iter()
        .map(|rows| (rows, reasons(report, rows)))
        .filter(|(rows, reasons)| reasons.is_some() || !found(rows))
        .map(|(rows, reasons)| Case::of_rule(*rows, title(rows), reasons.map_or(End::Passed, End::Skipped)));
    let failures = report.failures.iter().map(failure);
    let cases = failures.chain(findings.iter().map(|finding| case(report, finding))).chain(quiet).collect();
    Suite { name: "lint".to_owned(), timestamp: None, cases }.write(out)
}

fn failure((gap, place): &(Gap, Option<Place>)) -> Case {
    Case { file: place.as_ref().map(file), ..Case::of_failure(gap) }
}

fn case(report: &LintReport, finding: &PlacedFinding) -> Case {
    let PlacedFinding { place, object, field, evidence, .. } = finding;
    let at = ("at".to_owned(), place.to_string());
    let values = evidence.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    let remedies = remedy(finding).into_iter().map(|line| ("remedy".to_owned(), line));
    let lines = [at].into_iter().chain(values).chain(remedies).collect();
    let said = Said { summary: evidence.summary.clone(), lines };
    let end = if report.counts(finding) { End::Failed(evidence.severity, said) } else { End::Told(said) };
    Case { class: finding.name(), name: format!("{place}: {object} {field}"), file: Some(file(place)), end }
}

/// A line of what was rendered is none of the template.
fn file(place: &Place) -> (String, Option<u64>) {
    (place.file().to_string(), place.template.is_none().then_some(place.line))
}

fn title(rows: &Rows) -> &'static str {
    ids::find(rows.rule.0).map_or(rows.rule.0, |id| id.title)
}

/// Why a rule was not asked, or could not tell.
fn reasons(report: &LintReport, of: &Rows) -> Option<String> {
    let lacks = report.not_asked.iter().filter(|(rows, _)| rows == of).map(|(_, why)| why.as_str());
    let unknown = report.unknown.iter().filter(|(rows, _)| rows == of).map(|(_, gap)| gap.detail.as_str());
    let reasons: Vec<&str> = lacks.chain(unknown).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}
