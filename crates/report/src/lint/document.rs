//! Findings in manifests as one document, `portreeve.lint/v1`: JSON and YAML. Within v1 fields are only ever added.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use super::{lint_result, remedy};
use crate::{
    CheckResult,
    findings_document::{Range, Unknown, Value, tidy_remedy, values},
    indented_json::write_indented_json,
    terminal::tidy,
};
use portreeve_facts::{Place, Protocol, VERSION};
use portreeve_rules::{
    findings::{PlacedFinding, Remedy, Severity},
    ids::Rows,
    lint::LintReport,
};

/// The findings in manifests. A field that does not apply is absent.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(title = "Portreeve findings in manifests")]
struct LintDocument {
    /// Always `portreeve.lint/v1`.
    #[schemars(extend("const" = "portreeve.lint/v1"))]
    schema: &'static str,
    /// The version of the program that wrote the document.
    version: &'static str,
    /// The result: `findings` of at least `--min-severity` (`warning`), else `not-checked`, else `clear`; the exit code says the same.
    result: CheckResult,
    /// How many files were read.
    files: usize,
    /// How many objects there were, of whatever kind, read or not.
    objects: usize,
    /// How many of them were judged.
    judged: usize,
    /// How many objects had the kind, the namespace and the name of one that was there already.
    again: usize,
    /// How many others there were, by kind and group; a document without a kind has the empty one.
    skipped: BTreeMap<String, usize>,
    /// The folders of Helm charts whose templates were not read: they are manifests only after rendering.
    unread_charts: Vec<String>,
    /// The NodePort range.
    node_port_range: Range,
    /// What the manifests were compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<String>,
    /// The findings, by file and line.
    findings: Vec<PlacedProblem>,
    /// How many findings the owners of their objects accept, by annotation; they are not among `findings`.
    accepted: usize,
    /// Rules that could not judge some object.
    unknown: Vec<Unknown>,
    /// Rules that lack what they compare with.
    not_asked: Vec<NotAsked>,
    /// What could not be read.
    failures: Vec<Unknown>,
}

/// A rule that was not run.
#[derive(Debug, Serialize, JsonSchema)]
struct NotAsked {
    /// Its name.
    rule: String,
    /// Which of its variants were not judged.
    variants: Vec<String>,
    /// The input that it lacks.
    detail: String,
}

/// One finding, in words that are safe to print.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct PlacedProblem {
    /// The file, as it was named; `standard input`.
    file: String,
    /// The line of the very field, from 1.
    line: u64,
    /// Its column in characters, from 1.
    column: u64,
    /// The template that helm rendered this part of standard input from; the line is none of the template.
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    /// The way to the field.
    field: String,
    /// The rule's id.
    rule: String,
    /// Which of its cases it is, in a word of the rule's page.
    variant: String,
    /// How bad it is.
    severity: Severity,
    /// Whom it is about, `Service shop/web`.
    object: String,
    /// The port it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// The protocol it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<Protocol>,
    /// The problem in one stable sentence.
    summary: String,
    /// The compared values, in reading order; a name may come more than once.
    evidence: Vec<Value>,
    /// What to change, in words: `then` leads to a further step, `or` to another remedy.
    remedy: Vec<String>,
    /// The same as data, most direct first; each remedy is enough.
    remedies: Vec<Remedy>,
    /// Fields of other objects that have a part in it.
    related: Vec<Related>,
}

/// A field of another object.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Related {
    /// Its file.
    file: String,
    /// Its line.
    line: u64,
    /// Its column.
    column: u64,
    /// Its template, as above.
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    /// Its object.
    object: String,
}

/// Writes the document as indented JSON and a line end.
///
/// # Errors
/// When the writer fails.
pub fn write_lint_json(report: &LintReport, out: &mut dyn Write) -> io::Result<()> {
    write_indented_json(&LintDocument::of(report), out)
}

/// Writes the document as YAML.
///
/// # Errors
/// When the writer fails.
pub fn write_lint_yaml(report: &LintReport, out: &mut dyn Write) -> io::Result<()> {
    let text = serde_saphyr::to_string(&LintDocument::of(report)).map_err(io::Error::other)?;
    writeln!(out, "{}", text.trim_end())
}

/// The JSON Schema (draft 2020-12) of the document.
pub fn lint_schema() -> Schema {
    schema_for!(LintDocument)
}

impl LintDocument {
    fn of(report: &LintReport) -> Self {
        let unknown = report.unknown.iter().map(|(rows, gap)| Unknown::of_rows(Some(*rows), gap));
        Self {
            schema: "portreeve.lint/v1",
            version: VERSION,
            result: lint_result(report),
            files: report.files,
            objects: report.objects,
            judged: report.judged,
            again: report.again,
            skipped: report.skipped.iter().map(|(kind, count)| (tidy(kind), *count)).collect(),
            unread_charts: report.charts.iter().map(|folder| tidy(folder)).collect(),
            node_port_range: Range::of(&report.range),
            against: report.against.as_deref().map(tidy),
            findings: report.reported().map(PlacedProblem::of).collect(),
            accepted: report.accepted,
            unknown: unknown.collect(),
            not_asked: report.not_asked.iter().map(NotAsked::of).collect(),
            failures: report.failures.iter().map(|(gap, _)| Unknown::of(gap)).collect(),
        }
    }
}

impl NotAsked {
    fn of((rows, detail): &(Rows, String)) -> Self {
        let variants = rows.variants.iter().map(|variant| (*variant).to_owned()).collect();
        Self { rule: rows.rule.to_string(), variants, detail: tidy(detail) }
    }
}

impl PlacedProblem {
    fn of(finding: &PlacedFinding) -> Self {
        let Place { file, line, column, .. } = &finding.place;
        let evidence = &finding.evidence;
        Self {
            file: tidy(file),
            line: *line,
            column: *column,
            template: template(&finding.place),
            field: finding.field.clone(),
            rule: finding.rule.to_string(),
            variant: evidence.variant.to_owned(),
            severity: evidence.severity,
            object: tidy(&finding.object),
            port: finding.port,
            protocol: finding.protocol,
            summary: tidy(&evidence.summary),
            evidence: values(evidence),
            remedy: remedy(finding),
            remedies: evidence.remedies.iter().map(tidy_remedy).collect(),
            related: finding.related.iter().map(|(place, object)| Related::of(place, object)).collect(),
        }
    }
}

impl Related {
    fn of(place: &Place, object: &str) -> Self {
        let Place { file, line, column, .. } = place;
        Self { file: tidy(file), line: *line, column: *column, template: template(place), object: tidy(object) }
    }
}

/// The template, as helm names it.
fn template(place: &Place) -> Option<String> {
    place.template.as_ref().map(|name| tidy(name))
}
