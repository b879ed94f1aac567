//! JUnit XML. There is a test case for each finding and each failure. There is also a test case for each rule that
//! found nothing, could not judge, or did not run.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use quick_junit::TestCase;

use super::{decides, remedy};
use crate::{junit_suite, terminal::tidy};
use portreeve_facts::{Gap, Place};
use portreeve_rules::{findings::PlacedFinding, ids::Rows, lint::LintReport};

/// Writes one test suite. If a finding's severity does not fail the run, its test case passes. The output of the passed
/// test case is the finding's sentence.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_lint_junit(report: &LintReport, out: &mut dyn Write) -> io::Result<()> {
    let findings: Vec<&PlacedFinding> = report.reported().collect();
    let found = |rows: &Rows| findings.iter().any(|it| rows.have(it.rule, it.evidence.variant));
    let quiet = junit_suite::of_rules(report.rules.iter().map(|rows| (*rows, reasons(report, rows))), found);
    let undecided: BTreeSet<&Gap> = report.unknown.iter().filter(|it| decides(report, it)).map(|it| &it.gap).collect();
    let failures = report.failures.iter().map(failure).chain(undecided.into_iter().map(junit_suite::of_failure));
    let cases = failures.chain(findings.iter().map(|finding| case(report, finding))).chain(quiet).collect();
    junit_suite::write("lint", None, cases, out)
}

fn failure((gap, place): &(Gap, Option<Place>)) -> TestCase {
    let case = junit_suite::of_failure(gap);
    match place {
        Some(place) => at(case, place),
        None => case,
    }
}

fn case(report: &LintReport, finding: &PlacedFinding) -> TestCase {
    let PlacedFinding { place, object, field, evidence, .. } = finding;
    let first = Some(("at".to_owned(), place.to_string()));
    let remedies = remedy(finding).into_iter().map(|line| ("remedy".to_owned(), line));
    let (rule, name) = (finding.name(), format!("{place}: {object} {field}"));
    at(junit_suite::of_finding((&rule, &name), (evidence, report.counts(finding)), first, remedies), place)
}

/// Adds the file and the line to a test case. For rendered output, adds no line, because the line in the template is
/// unknown.
fn at(mut case: TestCase, place: &Place) -> TestCase {
    case.extra.insert("file".into(), tidy(&place.file().to_string()).into());
    if place.template.is_none() {
        case.extra.insert("line".into(), place.line.to_string().into());
    }
    case
}

/// The reasons why a rule did not run or could not judge. Empty if the rule judged all objects. Without an object, no
/// rule judged.
fn reasons<'a>(report: &'a LintReport, of: &Rows) -> Vec<&'a str> {
    let lacks = report.not_run.iter().filter(|(rows, _)| rows == of).map(|(_, why)| why.as_str());
    let unknown = report.unknown.iter().filter(|it| it.rows == *of).map(|it| it.gap.detail.as_str());
    let nothing = (report.judged == 0).then_some("no object was judged");
    nothing.into_iter().chain(lacks).chain(unknown).collect()
}
