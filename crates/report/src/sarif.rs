//! SARIF 2.1.0 (OASIS), in the form that code scanning services accept.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{
    Report, ReportedGap,
    html_page::without_links,
    indented_json::write_indented_json,
    remedies::{joined, lines},
    terminal::tidy,
};
use portreeve_facts::{Gap, VERSION};
use portreeve_rules::{
    findings::{Finding, RuleId, Severity},
    ids::{IDS, Id, Rows},
};

/// Writes one run: the list of rules, a result for each finding, and a notification for each unread input.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_sarif(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    let failures = report.failures();
    let gaps = report.gaps();
    let notifications = gaps.iter().map(|ReportedGap { gap, rows, .. }| {
        let level = if failures.iter().any(|it| it.gap == *gap) { "error" } else { "note" };
        notification(level, gap, *rows)
    });
    let rules: Vec<Value> = IDS.iter().map(|id| descriptor(id)).collect();
    let invocation = json!({
        "executionSuccessful": failures.is_empty(),
        "startTimeUtc": format!("{:.0}", report.snapshot.at),
        "toolExecutionNotifications": notifications.collect::<Vec<_>>(),
    });
    let results: Vec<Value> = report.findings().map(|finding| result(report, finding)).collect();
    write_indented_json(&log(&rules, &invocation, &results), out)
}

pub(super) fn log(rules: &[Value], invocation: &Value, results: &[Value]) -> Value {
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "portreeve", "version": VERSION, "rules": rules }},
            "columnKind": "unicodeCodePoints",
            "invocations": [invocation],
            "results": results,
        }],
    })
}

/// The rule in the form of SARIF. `fullDescription`, which code scanning needs, is the first paragraph of the rule's
/// page.
pub(super) fn descriptor(id: &Id) -> Value {
    let Id { name, title, page, .. } = *id;
    let help = without_links(page);
    let mut descriptor = json!({
        "id": name,
        "name": name.reason(),
        "shortDescription": { "text": title },
        "fullDescription": { "text": first_paragraph(page) },
        "help": { "text": help, "markdown": help },
        "defaultConfiguration": { "level": level(id.ceiling()) },
    });
    if let Some(uri) = page_uri(env!("CARGO_PKG_HOMEPAGE"), name) {
        descriptor["helpUri"] = uri.into();
    }
    descriptor
}

pub(super) fn notification(level: &str, gap: &Gap, rows: Option<Rows>) -> Value {
    let mut notification = json!({
        "level": level,
        "message": { "text": tidy(&gap.detail) },
        "properties": { "source": gap.source, "why": gap.why },
    });
    if let Some(rows) = rows {
        associate(&mut notification, rows);
    }
    notification
}

pub(super) fn associate(notification: &mut Value, Rows { rule, variants }: Rows) {
    notification["associatedRule"] = json!({ "id": rule });
    notification["properties"]["variants"] = json!(variants);
}

/// The text before the first blank line, in one line, cut to the length that GitHub accepts.
fn first_paragraph(markdown: &str) -> String {
    let lines: Vec<&str> = markdown.trim_start().lines().take_while(|line| !line.trim().is_empty()).collect();
    lines.join(" ").chars().take(1024).collect()
}

/// The absolute address of a rule's page. `None` if the package has no homepage.
fn page_uri(homepage: &str, id: RuleId) -> Option<String> {
    (!homepage.is_empty()).then(|| format!("{}/docs/rules/{id}.md", homepage.trim_end_matches('/')))
}

fn result(report: &Report<'_>, finding: &Finding) -> Value {
    let (key, evidence) = (&finding.key, &finding.evidence);
    let port = key.port.map(|port| format!(":{port}")).unwrap_or_default();
    let protocol = key.protocol.map(|protocol| format!("/{protocol}")).unwrap_or_default();
    let subject = tidy(&key.subject.to_string());
    let place = format!("{subject}{port}{protocol}");
    let remedies = lines(&evidence.remedies).map(|(word, step)| joined(word, &tidy(&step.text)));
    let remedy: String = remedies.map(|line| format!("\n{line}")).collect();
    json!({
        "ruleId": key.rule,
        "ruleIndex": IDS.iter().position(|id| id.name == key.rule),
        "level": level(evidence.severity),
        "message": { "text": format!("{}{remedy}", tidy(&evidence.summary)) },
        "locations": [{ "logicalLocations": [{
            "name": tidy(&key.subject.name),
            "fullyQualifiedName": place,
            "kind": "resource",
        }] }],
        // The fingerprint contains the node, so a problem on two nodes is two results.
        "partialFingerprints": {
            "portreeve/v1": format!("{}/{}/{place}", tidy(report.snapshot.node_name()), key.name()),
        },
        "properties": {
            "variant": key.variant,
            "severity": evidence.severity,
            "affects": evidence.affects,
            "evidence": evidence.values.iter().map(|(name, value)| json!([name, tidy(value)])).collect::<Vec<_>>(),
        },
    })
}

pub(super) fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_described_by_the_first_paragraph_of_its_page() {
        assert_eq!(first_paragraph("\nOne\ntwo.\n\n## Why\n"), "One two.");
        assert_eq!(first_paragraph(&"x".repeat(2000)).len(), 1024);
    }

    #[test]
    fn a_page_has_an_address_where_the_package_has_one() {
        let id = RuleId("stale-redirection");
        assert_eq!(page_uri("", id), None);
        let wanted = Some("https://a.example/b/docs/rules/stale-redirection.md".to_owned());
        assert_eq!(page_uri("https://a.example/b/", id), wanted);
    }
}
