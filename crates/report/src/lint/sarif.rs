//! SARIF 2.1.0 (OASIS) with the place of each field, in the form that code scanning services accept.

use std::io::{self, Write};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde_json::{Value, json};

use super::{decides, is_undecided, remedy};
use crate::{
    indented_json::write_indented_json,
    sarif::{associate, descriptor, level, log, notification},
    terminal::tidy,
};
use portreeve_facts::Place;
use portreeve_rules::{
    findings::PlacedFinding,
    ids::{IDS, Id},
    lint::LintReport,
};

/// Writes one run: the list of rules, a result for each finding, and a notification for each failure.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_lint_sarif(report: &LintReport, out: &mut dyn Write) -> io::Result<()> {
    let is_chosen = |id: &&&Id| report.rules.iter().any(|rows| rows.rule == id.name);
    let ids: Vec<&Id> = IDS.iter().filter(is_chosen).copied().collect();
    let notifications = report.failures.iter().map(|(gap, place)| {
        let mut failure = notification("error", gap, None);
        failure["locations"] = place.iter().map(|place| json!({ "physicalLocation": physical(place) })).collect();
        failure
    });
    let unknown = report.unknown.iter().map(|it| {
        let level = if decides(report, it) { "error" } else { "note" };
        notification(level, &it.gap, Some(it.rows))
    });
    let not_run = report.not_run.iter().map(|(rows, why)| {
        let text = format!("not run: {}", tidy(why));
        let mut note = json!({ "level": "note", "message": { "text": text }, "properties": {} });
        associate(&mut note, *rows);
        note
    });
    let invocation = json!({
        "executionSuccessful": !is_undecided(report),
        "toolExecutionNotifications": notifications.chain(unknown).chain(not_run).collect::<Vec<_>>(),
    });
    let results = report.reported().map(|finding| {
        let index = ids.iter().position(|id| id.name == finding.rule);
        result(finding, index)
    });
    let results: Vec<Value> = results.collect();
    let rules = ids.iter().map(|id| descriptor(id));
    write_indented_json(&log(&rules.collect::<Vec<_>>(), &invocation, &results), out)
}

fn result(finding: &PlacedFinding, index: Option<usize>) -> Value {
    let evidence = &finding.evidence;
    let remedy: String = remedy(finding).iter().map(|line| format!("\n{line}")).collect();
    let object = tidy(&finding.object);
    let related = finding
        .related
        .iter()
        .map(|(place, object)| json!({ "physicalLocation": physical(place), "message": { "text": tidy(object) } }));
    let fingerprint = format!("{}/{object}/{}", finding.name(), finding.field);
    // If helm rendered the input, the message names the template, because the line in the template is unknown.
    let place = finding.place.template.is_some().then(|| format!("\n{}", tidy(&finding.place.to_string())));
    json!({
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": if evidence.is_refused() { "error" } else { level(evidence.severity) },
        "message": { "text": format!("{}{remedy}{}", tidy(&evidence.summary), place.unwrap_or_default()) },
        "locations": [{
            "physicalLocation": physical(&finding.place),
            "logicalLocations": [{
                "name": finding.field,
                "fullyQualifiedName": format!("{object} {}", finding.field),
                "kind": "member",
            }],
        }],
        "relatedLocations": related.collect::<Vec<_>>(),
        // The fingerprint contains no line, so a problem keeps its fingerprint when its line moves. GitHub reads only
        // `primaryLocationLineHash`.
        "partialFingerprints": { "portreeve.lint/v1": fingerprint, "primaryLocationLineHash": fingerprint },
        "properties": {
            "variant": evidence.variant,
            "severity": evidence.severity,
            "evidence": evidence.values.iter().map(|(name, value)| json!([name, tidy(value)])).collect::<Vec<_>>(),
        },
    })
}

/// Code scanning needs a line. In a template, the line is unknown, so line 1 is written.
fn physical(place: &Place) -> Value {
    let Place { line, column, width, .. } = place;
    let region = match place.template {
        None => json!({ "startLine": line, "startColumn": column, "endLine": line, "endColumn": column + width }),
        Some(_) => json!({ "startLine": 1 }),
    };
    json!({ "artifactLocation": { "uri": uri(place.file().path()) }, "region": region })
}

/// A path as a URI reference of RFC 3986. The function does not make a relative path absolute, because code scanning
/// services search for the file from the root of the repository.
fn uri(path: &[u8]) -> String {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
    let path = path.strip_prefix(b"./").unwrap_or(path);
    let scheme = if path.starts_with(b"/") { "file://" } else { "" };
    format!("{scheme}{}", percent_encode(path, RESERVED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_relative_reference() {
        for (path, wanted) in [
            ("./deploy/a b.yaml", "deploy/a%20b.yaml"),
            ("a:b/ä%.yaml", "a%3Ab/%C3%A4%25.yaml"),
            ("/tmp/x.yaml", "file:///tmp/x.yaml"),
            ("zw\u{200b}\u{1b}.yaml", "zw%E2%80%8B%1B.yaml"),
            ("standard input", "standard%20input"),
        ] {
            assert_eq!(uri(path.as_bytes()), wanted);
        }
    }
}
