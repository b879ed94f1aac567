//! JUnit XML: a test case per finding, one per failure, and one for each rule that found nothing.

use std::io::{self, Write};

use super::remedy;
use crate::{
    findings::PlacedFinding,
    lint::{LintReport, LintRule, lint_rules},
    sinks::xml::Escaped,
};

/// Writes one test suite. Findings that do not count are passed cases with their sentence as output.
///
/// # Errors
/// When the writer fails.
pub fn write_lint_junit(report: &LintReport, out: &mut dyn Write) -> io::Result<()> {
    let findings: Vec<&PlacedFinding> = report.reported().collect();
    let quiet: Vec<LintRule> =
        lint_rules().filter(|rule| !findings.iter().any(|finding| finding.rule == rule.id)).collect();
    let failed = findings.iter().filter(|finding| report.counts(finding)).count();
    let counts = format!(
        r#"tests="{}" failures="{failed}" errors="{}" skipped="0""#,
        findings.len() + quiet.len() + report.failures.len(),
        report.failures.len(),
    );
    writeln!(out, r#"<?xml version="1.0" encoding="UTF-8"?>"#)?;
    writeln!(out, r#"<testsuites name="portreeve" {counts}>"#)?;
    writeln!(out, r#"  <testsuite name="lint" {counts}>"#)?;
    for gap in &report.failures {
        let detail = Escaped(&gap.detail);
        writeln!(out, r#"    <testcase classname="portreeve" name="{detail}">"#)?;
        writeln!(out, r#"      <error message="{detail}"/>"#)?;
        writeln!(out, "    </testcase>")?;
    }
    for finding in findings {
        write_finding(report, finding, out)?;
    }
    for rule in quiet {
        writeln!(out, r#"    <testcase classname="{}" name="{}"/>"#, rule.id, Escaped(rule.title))?;
    }
    writeln!(out, "  </testsuite>")?;
    writeln!(out, "</testsuites>")
}

fn write_finding(report: &LintReport, finding: &PlacedFinding, out: &mut dyn Write) -> io::Result<()> {
    let PlacedFinding { place, rule, object, field, evidence, .. } = finding;
    let name = format!("{place}: {object} {field}");
    let (file, line) = (Escaped(&place.file), place.line);
    writeln!(out, r#"    <testcase classname="{rule}" name="{}" file="{file}" line="{line}">"#, Escaped(&name))?;
    let summary = Escaped(&evidence.summary);
    let element = if report.counts(finding) {
        writeln!(
            out,
            r#"      <failure type="{}" message="{summary}">{}"#,
            evidence.severity,
            Escaped(&place.to_string())
        )?;
        "failure"
    } else {
        writeln!(out, "      <system-out>{summary}")?;
        "system-out"
    };
    for (name, value) in &evidence.values {
        writeln!(out, "{name}: {}", Escaped(value))?;
    }
    for line in remedy(finding) {
        writeln!(out, "remedy: {}", Escaped(&line))?;
    }
    writeln!(out, "</{element}>")?;
    writeln!(out, "    </testcase>")
}
