//! JUnit XML: a test case per finding, and one for each rule that was asked and found nothing or could not tell. A rule
//! that found something and could not tell the rest has both.

use std::io::{self, Write};

use super::{Report, remedies::lines, xml::Escaped};
use crate::{
    findings::{Finding, Severity},
    rules::Rule,
};

/// Writes one test suite. Findings that do not count are passed cases with their sentence as output.
///
/// # Errors
/// When the writer fails.
pub fn write_junit(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    let findings: Vec<&Finding> = report.findings().collect();
    let found = |rule: &Rule| findings.iter().any(|finding| finding.key.rule == rule.id);
    let quiet: Vec<(&Rule, Option<String>)> = report
        .rules
        .iter()
        .map(|rule| (*rule, reasons(report, rule)))
        .filter(|(rule, reasons)| reasons.is_some() || !found(rule))
        .collect();
    let failed = findings.iter().filter(|finding| fails(report, finding)).count();
    let skipped = quiet.iter().filter(|(_, reasons)| reasons.is_some()).count();
    let failures = report.failures();
    let counts = format!(
        r#"tests="{}" failures="{failed}" errors="{}" skipped="{skipped}""#,
        findings.len() + quiet.len() + failures.len(),
        failures.len(),
    );
    let node = Escaped(report.snapshot.node_name());
    writeln!(out, r#"<?xml version="1.0" encoding="UTF-8"?>"#)?;
    writeln!(out, r#"<testsuites name="portreeve" {counts}>"#)?;
    writeln!(out, r#"  <testsuite name="{node}" timestamp="{:.0}" {counts}>"#, report.snapshot.at)?;
    for gap in &failures {
        let detail = Escaped(&gap.detail);
        writeln!(out, r#"    <testcase classname="portreeve" name="{detail}">"#)?;
        writeln!(out, r#"      <error message="{detail}"/>"#)?;
        writeln!(out, "    </testcase>")?;
    }
    for finding in findings {
        write_finding(report, finding, out)?;
    }
    for (rule, reasons) in quiet {
        match reasons {
            None => {
                writeln!(out, r#"    <testcase classname="{}" name="{}"/>"#, rule.id, Escaped(rule.title))?;
            }
            Some(reasons) => {
                writeln!(out, r#"    <testcase classname="{}" name="{}">"#, rule.id, Escaped(rule.title))?;
                writeln!(out, r#"      <skipped message="{}"/>"#, Escaped(&reasons))?;
                writeln!(out, "    </testcase>")?;
            }
        }
    }
    writeln!(out, "  </testsuite>")?;
    writeln!(out, "</testsuites>")
}

fn write_finding(report: &Report<'_>, finding: &Finding, out: &mut dyn Write) -> io::Result<()> {
    let evidence = &finding.evidence;
    let port = finding.key.port.map(|port| format!(" {port}")).unwrap_or_default();
    let name = format!("{}{port}", finding.key.subject);
    writeln!(out, r#"    <testcase classname="{}" name="{}">"#, finding.key.rule, Escaped(&name))?;
    let summary = Escaped(&evidence.summary);
    let element = if fails(report, finding) {
        writeln!(out, r#"      <failure type="{}" message="{summary}">"#, evidence.severity)?;
        "failure"
    } else {
        writeln!(out, "      <system-out>{summary}")?;
        "system-out"
    };
    for (name, value) in &evidence.values {
        writeln!(out, "{name}: {}", Escaped(value))?;
    }
    for vantage in &evidence.affects {
        writeln!(out, "affects: {vantage}")?;
    }
    for (word, step) in lines(&evidence.remedies) {
        let word = if word.is_empty() { "remedy" } else { word };
        writeln!(out, "{word}: {}", Escaped(&step.text))?;
    }
    writeln!(out, "</{element}>")?;
    writeln!(out, "    </testcase>")
}

fn fails(report: &Report<'_>, finding: &Finding) -> bool {
    finding.evidence.severity >= report.min_severity.unwrap_or(Severity::Warning)
}

/// Why a rule could not tell, where it could not.
fn reasons(report: &Report<'_>, rule: &Rule) -> Option<String> {
    let unknown = report.board.unknown.iter().filter(|unknown| unknown.rule == rule.id);
    let details: Vec<&str> = unknown.map(|unknown| unknown.gap.detail.as_str()).collect();
    (!details.is_empty()).then(|| details.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        facts::{Gap, Snapshot, Source, Why},
        findings::{Evidence, Key, RuleId, Subject, Unknown},
        ledger::Board,
    };

    #[test]
    fn what_a_rule_with_a_finding_could_not_tell_is_a_case_too() {
        let rule = RuleId("listener-on-node-port");
        let world = Snapshot::healthy();
        let key = Key { rule, subject: Subject::node("n1", None), port: None, protocol: None };
        let finding = Finding { key, evidence: Evidence::new(Severity::Critical, "It is so."), since: world.at };
        let unknown = ["the clients were cut", "so were the pods"].map(|detail| Unknown {
            rule,
            subject: None,
            gap: Gap::new(Source::Clients, Why::Ambiguous, detail),
        });
        let board = Board { findings: vec![finding], unknown: unknown.into(), failed: Vec::new() };
        let mut text = Vec::new();
        write_junit(&Report::of(&world, &board), &mut text).expect("memory takes everything");
        let text = String::from_utf8(text).expect("UTF-8");
        let xml = roxmltree::Document::parse(&text).expect("XML");
        let cases = xml.descendants().filter(|node| node.attribute("classname") == Some("listener-on-node-port"));
        let said: Vec<_> = cases.filter_map(|case| case.first_element_child()).collect();
        let names: Vec<_> = said.iter().map(|node| node.tag_name().name()).collect();
        assert_eq!(names, ["failure", "skipped"], "{text}");
        assert_eq!(said[1].attribute("message"), Some("the clients were cut; so were the pods"));
    }
}
