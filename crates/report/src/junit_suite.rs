//! Writes a JUnit XML document with one suite of test cases.

use std::io::{self, Write};

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite, XmlString};

use super::terminal::tidy;
use portreeve_facts::Gap;
use portreeve_rules::{
    findings::Evidence,
    ids::{self, Rows},
};

/// `name` is the node or the input that was judged. `at` is the time of the scan, if there was a scan.
pub(super) fn write(name: &str, at: Option<String>, cases: Vec<TestCase>, out: &mut dyn Write) -> io::Result<()> {
    let mut suite = TestSuite::new(xml(name));
    suite.extra.extend(at.map(|at| ("timestamp".into(), at.into())));
    suite.add_test_cases(cases);
    let mut report = Report::new("portreeve");
    report.add_test_suite(suite);
    let text = report.to_string().map_err(io::Error::other)?;
    out.write_all(text.as_bytes())
}

/// A passed test case for each rule that found nothing, and a skipped test case for each rule that could not judge.
pub(super) fn of_rules<'a>(
    rules: impl Iterator<Item = (Rows, Vec<&'a str>)>,
    found: impl Fn(&Rows) -> bool,
) -> impl Iterator<Item = TestCase> {
    rules.filter(move |(rows, reasons)| !reasons.is_empty() || !found(rows)).map(|(rows, reasons)| {
        let title = ids::find(rows.rule.0).map_or(rows.rule.0, |id| id.title);
        let status = match reasons.is_empty() {
            true => TestCaseStatus::success(),
            false => with_message(TestCaseStatus::skipped(), &reasons.join("; ")),
        };
        case(&rows.to_string(), title, status)
    })
}

pub(super) fn of_failure(gap: &Gap) -> TestCase {
    let status = with_message(TestCaseStatus::non_success(NonSuccessKind::Error), &gap.detail);
    case("portreeve", &gap.detail, status)
}

/// `counts` is true if the finding sets the result. Otherwise, the test case passes. The output of the test case has
/// `first`, the values of the evidence, and `rest`.
pub(super) fn of_finding(
    (rule, name): (&str, &str),
    (evidence, counts): (&Evidence, bool),
    first: Option<(String, String)>,
    rest: impl Iterator<Item = (String, String)>,
) -> TestCase {
    let values = evidence.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    let lines = first.into_iter().chain(values).chain(rest);
    let lines: String = lines.map(|(name, value)| format!("{}: {}\n", tidy(&name), tidy(&value))).collect();
    if !counts {
        let mut passed = case(rule, name, TestCaseStatus::success());
        passed.set_system_out(format!("{}\n{lines}", tidy(&evidence.summary)));
        return passed;
    }
    let mut status = with_message(TestCaseStatus::non_success(NonSuccessKind::Failure), &evidence.summary);
    status.set_type(evidence.severity.to_string()).set_description(format!("\n{lines}"));
    case(rule, name, status)
}

fn case(class: &str, name: &str, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(xml(name), status);
    case.set_classname(xml(class));
    case
}

fn with_message(mut status: TestCaseStatus, message: &str) -> TestCaseStatus {
    status.set_message(xml(message));
    status
}

fn xml(text: &str) -> XmlString {
    tidy(text).into()
}
