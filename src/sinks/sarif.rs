//! SARIF 2.1.0 (OASIS), as code scanning services take it.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Report, indented_json::write_indented_json, terminal::tidy};
use crate::{
    findings::{Finding, Severity},
    rules::{RULES, Rule},
};

/// Writes one run: the catalogue of rules, a result per finding, a notification per gap.
///
/// # Errors
/// When the writer fails.
pub fn write_sarif(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    let notifications: Vec<Value> = report
        .gaps()
        .iter()
        .map(|unseen| {
            let gap = unseen.gap;
            let mut notification = json!({
                "level": if report.failures().contains(&gap) { "error" } else { "note" },
                "message": { "text": tidy(&gap.detail) },
                "properties": { "source": gap.source, "why": gap.why },
            });
            if let Some(rule) = unseen.rule {
                notification["associatedRule"] = json!({ "id": rule });
            }
            notification
        })
        .collect();
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "portreeve",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": RULES.iter().map(|rule| descriptor(rule)).collect::<Vec<_>>(),
            }},
            "invocations": [{
                "executionSuccessful": report.failures().is_empty(),
                "startTimeUtc": format!("{:.0}", report.snapshot.at),
                "toolExecutionNotifications": notifications,
            }],
            "results": report.findings().map(|finding| result(report, finding)).collect::<Vec<_>>(),
        }],
    });
    write_indented_json(&log, out)
}

fn descriptor(rule: &Rule) -> Value {
    json!({
        "id": rule.id,
        "name": rule.id.reason(),
        "shortDescription": { "text": rule.title },
        "help": { "text": rule.documentation(), "markdown": rule.documentation() },
        "defaultConfiguration": { "level": level(rule.ceiling) },
    })
}

fn result(report: &Report<'_>, finding: &Finding) -> Value {
    let (key, evidence) = (&finding.key, &finding.evidence);
    let port = key.port.map(|port| format!(":{port}")).unwrap_or_default();
    let protocol = key.protocol.map(|protocol| format!("/{protocol}")).unwrap_or_default();
    let subject = tidy(&key.subject.to_string());
    let place = format!("{subject}{port}{protocol}");
    let remedy: String = evidence.remedy.iter().map(|remedy| format!("\n{}", tidy(remedy))).collect();
    json!({
        "ruleId": key.rule,
        "ruleIndex": RULES.iter().position(|rule| rule.id == key.rule),
        "level": level(evidence.severity),
        "message": { "text": format!("{}{remedy}", tidy(&evidence.summary)) },
        "locations": [{ "logicalLocations": [{
            "name": tidy(&key.subject.name),
            "fullyQualifiedName": place,
            "kind": "resource",
        }] }],
        // The same problem on two nodes is two results.
        "partialFingerprints": {
            "portreeve/v1": format!("{}/{}/{place}", tidy(report.snapshot.node_name()), key.rule),
        },
        "properties": {
            "severity": evidence.severity,
            "affects": evidence.affects,
            "evidence": evidence.values.iter().map(|(name, value)| json!([name, tidy(value)])).collect::<Vec<_>>(),
        },
    })
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    }
}
