//! JUnit XML: a document with one suite, for test cases of any kind.

use std::{
    fmt,
    io::{self, Write},
};

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite, XmlString};

use super::terminal::tidy;
use portreeve_facts::Gap;
use portreeve_rules::findings::Severity;

#[derive(Debug)]
pub(super) struct FindingText {
    pub(super) summary: String,
    pub(super) lines: Vec<(String, String)>,
}

/// `name` is the node or the input that was judged, and `at` is the time, if it matters.
pub(super) fn write(name: &str, at: Option<String>, cases: Vec<TestCase>, out: &mut dyn Write) -> io::Result<()> {
    let mut suite = TestSuite::new(xml(name));
    suite.extra.extend(at.map(|at| ("timestamp".into(), at.into())));
    suite.add_test_cases(cases);
    let mut report = Report::new("portreeve");
    report.add_test_suite(suite);
    let text = report.to_string().map_err(io::Error::other)?;
    out.write_all(text.as_bytes())
}

pub(super) fn of_rule(id: impl fmt::Display, title: &str, unknown: Option<String>) -> TestCase {
    let status = unknown.map_or_else(TestCaseStatus::success, |why| with_message(TestCaseStatus::skipped(), &why));
    case(&id.to_string(), title, status)
}

pub(super) fn of_failure(gap: &Gap) -> TestCase {
    let status = with_message(TestCaseStatus::non_success(NonSuccessKind::Error), &gap.detail);
    case("portreeve", &gap.detail, status)
}

/// Only a finding that sets the result has a severity.
pub(super) fn of_finding(
    rule: &str,
    name: &str,
    counts: Option<Severity>,
    FindingText { summary, lines }: &FindingText,
) -> TestCase {
    let lines: String = lines.iter().map(|(name, value)| format!("{}: {}\n", tidy(name), tidy(value))).collect();
    let Some(severity) = counts else {
        let mut passed = case(rule, name, TestCaseStatus::success());
        passed.set_system_out(format!("{}\n{lines}", tidy(summary)));
        return passed;
    };
    let mut status = with_message(TestCaseStatus::non_success(NonSuccessKind::Failure), summary);
    status.set_type(severity.to_string()).set_description(format!("\n{lines}"));
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
