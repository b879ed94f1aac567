//! JUnit XML: a test case per finding, and one for each rule that was asked and found nothing or could not tell.

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
    let quiet: Vec<&Rule> = report
        .rules
        .iter()
        .copied()
        .filter(|rule| findings.iter().all(|finding| finding.key.rule != rule.id))
        .collect();
    let failed = findings.iter().filter(|finding| fails(report, finding)).count();
    let skipped = quiet.iter().filter(|rule| reason(report, rule).is_some()).count();
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
    for rule in quiet {
        match reason(report, rule) {
            None => {
                writeln!(out, r#"    <testcase classname="{}" name="{}"/>"#, rule.id, Escaped(rule.title))?;
            }
            Some(reason) => {
                writeln!(out, r#"    <testcase classname="{}" name="{}">"#, rule.id, Escaped(rule.title))?;
                writeln!(out, r#"      <skipped message="{}"/>"#, Escaped(reason))?;
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
fn reason<'a>(report: &Report<'a>, rule: &Rule) -> Option<&'a str> {
    let unknown = report.board.unknown.iter().find(|unknown| unknown.rule == rule.id)?;
    Some(&unknown.gap.detail)
}
