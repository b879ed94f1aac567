//! JUnit XML: a test case for each finding, and a test case for each rule that found nothing or could not judge. If a
//! rule has findings, but could not judge some subjects, both kinds of test case are written.

use std::io::{self, Write};

use quick_junit::TestCase;

use super::{Report, junit_suite, remedies::lines};
use portreeve_facts::Gap;
use portreeve_rules::{Rule, findings::Finding, ids::Rows};

/// Writes one test suite. If a finding's severity does not fail the run, its test case passes. The output of the passed
/// test case is the finding's sentence.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_junit(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    let findings: Vec<&Finding> = report.findings().collect();
    let rules = report.rules.iter().map(|rule| (rule.rows(), reasons(report, rule)));
    let found = |rows: &Rows| findings.iter().any(|finding| rows.have(finding.key.rule, finding.key.variant));
    let quiet = junit_suite::of_rules(rules, found);
    let mut failures: Vec<&Gap> = Vec::new();
    for failure in report.failures() {
        if !failures.contains(&failure.gap) {
            failures.push(failure.gap);
        }
    }
    let failures = failures.into_iter().map(junit_suite::of_failure);
    let cases = failures.chain(findings.iter().map(|finding| case(report, finding))).chain(quiet).collect();
    let timestamp = Some(format!("{:.0}", report.snapshot.at));
    junit_suite::write(report.snapshot.node_name(), timestamp, cases, out)
}

fn case(report: &Report<'_>, finding: &Finding) -> TestCase {
    let evidence = &finding.evidence;
    let port = finding.key.port.map(|port| format!(" {port}")).unwrap_or_default();
    let affects = evidence.affects.iter().map(|vantage| ("affects".to_owned(), vantage.to_string()));
    let remedies = lines(&evidence.remedies).map(|(word, step)| {
        let word = if word.is_empty() { "remedy" } else { word };
        (word.to_owned(), step.text.clone())
    });
    let (rule, name) = (finding.key.name(), format!("{}{port}", finding.key.subject));
    let counts = evidence.severity >= report.counts();
    junit_suite::of_finding((&rule, &name), (evidence, counts), None, affects.chain(remedies))
}

/// The reasons why a rule could not judge. Empty if the rule judged all its subjects.
fn reasons<'a>(report: &Report<'a>, rule: &Rule) -> Vec<&'a str> {
    let unknown = report.board.unknown.iter().filter(|unknown| unknown.rows == rule.rows());
    unknown.map(|unknown| unknown.gap.detail.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{Snapshot, Source, Why};
    use portreeve_rules::{
        findings::{Evidence, Key, RuleId, Severity, Subject, Unknown},
        ledger::Board,
    };

    #[test]
    fn what_a_rule_with_a_finding_could_not_tell_is_a_case_too() {
        let rows = Rows { rule: RuleId("listener-on-node-port"), variants: &["loses", "trap", "no-return"] };
        let world = Snapshot::healthy();
        let key =
            Key { rule: rows.rule, variant: "loses", subject: Subject::node("n1", None), port: None, protocol: None };
        let finding = Finding { key, evidence: Evidence::new(Severity::Critical, "It is so."), since: world.at };
        let unknown = ["the clients were cut", "so were the pods"].map(|detail| Unknown {
            rows,
            subject: None,
            claims: 0,
            gap: Gap::new(Source::Clients, Why::Ambiguous, detail),
        });
        let board = Board { findings: vec![finding], unknown: unknown.into() };
        let mut text = Vec::new();
        write_junit(&Report::of(&world, &board), &mut text).expect("memory takes everything");
        let text = String::from_utf8(text).expect("UTF-8");
        let xml = roxmltree::Document::parse(&text).expect("XML");
        let cases = xml
            .descendants()
            .filter(|node| node.attribute("classname").is_some_and(|it| it.starts_with("listener-on-node-port/")));
        let said: Vec<_> = cases.filter_map(|case| case.first_element_child()).collect();
        let names: Vec<_> = said.iter().map(|node| node.tag_name().name()).collect();
        assert_eq!(names, ["failure", "skipped"], "{text}");
        assert_eq!(said[1].attribute("message"), Some("the clients were cut; so were the pods"));
    }
}
