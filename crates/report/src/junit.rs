//! JUnit XML: a test case for each finding, and a test case for each rule that found nothing or could not judge. If a
//! rule has findings and could not judge some subjects, it has test cases of both kinds.

use std::io::{self, Write};

use quick_junit::TestCase;

use super::{
    Report,
    junit_suite::{self, FindingText},
    remedies::lines,
};
use portreeve_facts::Gap;
use portreeve_rules::{Rule, findings::Finding};

/// Writes one test suite. If a finding is below the severity that fails the run, its test case passes, with the
/// finding's sentence as output.
///
/// # Errors
/// When the writer fails.
pub fn write_junit(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    let findings: Vec<&Finding> = report.findings().collect();
    let found = |rule: &Rule| findings.iter().any(|finding| rule.rows().have(finding.key.rule, finding.key.variant));
    let quiet = report
        .rules
        .iter()
        .map(|rule| (*rule, reasons(report, rule)))
        .filter(|(rule, reasons)| reasons.is_some() || !found(rule))
        .map(|(rule, reasons)| junit_suite::of_rule(rule.rows(), rule.id.title, reasons));
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
    let values = evidence.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
    let affects = evidence.affects.iter().map(|vantage| ("affects".to_owned(), vantage.to_string()));
    let remedies = lines(&evidence.remedies).map(|(word, step)| {
        let word = if word.is_empty() { "remedy" } else { word };
        (word.to_owned(), step.text.clone())
    });
    let text =
        FindingText { summary: evidence.summary.clone(), lines: values.chain(affects).chain(remedies).collect() };
    let counts = (evidence.severity >= report.counts()).then_some(evidence.severity);
    junit_suite::of_finding(&finding.key.name(), &format!("{}{port}", finding.key.subject), counts, &text)
}

/// The reason why a rule could not judge; `None` if it judged.
fn reasons(report: &Report<'_>, rule: &Rule) -> Option<String> {
    let unknown = report.board.unknown.iter().filter(|unknown| unknown.rows == rule.rows());
    let details: Vec<&str> = unknown.map(|unknown| unknown.gap.detail.as_str()).collect();
    (!details.is_empty()).then(|| details.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{Snapshot, Source, Why};
    use portreeve_rules::{
        findings::{Evidence, Key, RuleId, Severity, Subject, Unknown},
        ids::Rows,
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
