//! The document `portreeve.lint/v1`, as JSON or YAML: the findings in manifests. Later versions of v1 only add fields.

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
    /// The result. `findings`: a finding has at least the severity `--min-severity` (by default `warning`). Otherwise
    /// `not-checked` if necessary input is missing, or else `clear`. The exit code agrees.
    result: CheckResult,
    /// How many files were read.
    files: usize,
    /// How many objects the files contain, of any kind.
    objects: usize,
    /// How many objects were judged.
    judged: usize,
    /// How many objects repeat the kind, the namespace and the name of an earlier object.
    again: usize,
    /// How many objects have a kind that `lint` does not read, by kind and group. A document without a kind has the
    /// empty kind.
    skipped: BTreeMap<String, usize>,
    /// The folders of Helm charts whose templates were not read, because a template is a manifest only after rendering.
    unread_charts: Vec<String>,
    /// The NodePort range.
    node_port_range: Range,
    /// The cluster or file with which the manifests were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<String>,
    /// The time of the cluster or the snapshot of `--against`, RFC 3339; absent for a file of objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    looked_at: Option<String>,
    /// The namespace of objects without a namespace; only with `--against cluster` and without `--namespace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// The findings, by file and line.
    findings: Vec<PlacedProblem>,
    /// How many findings are accepted by an annotation of their object. `findings` does not list these findings.
    accepted: usize,
    /// Rules that could not judge at least one object.
    unknown: Vec<Unknown>,
    /// Rules that did not run, because the input for their comparison is missing.
    not_run: Vec<NotRun>,
    /// The unread input.
    failures: Vec<Unknown>,
}

/// A rule that was not run.
#[derive(Debug, Serialize, JsonSchema)]
struct NotRun {
    /// The name.
    rule: String,
    /// The variants that were not judged.
    variants: Vec<String>,
    /// The missing input.
    detail: String,
}

/// One finding, in words that are safe to print.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct PlacedProblem {
    /// The file, as the user named it; or `standard input`.
    file: String,
    /// The line of the field, from 1.
    line: u64,
    /// The column in characters, from 1.
    column: u64,
    /// The template from which helm rendered this part of standard input. `line` is a line of the rendered output.
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    /// The path of the field.
    field: String,
    /// The rule's id.
    rule: String,
    /// The variant: a word on the rule's page.
    variant: String,
    /// The severity.
    severity: Severity,
    /// The object of the finding, `Service shop/web`.
    object: String,
    /// The port of the finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    /// The protocol of the finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<Protocol>,
    /// The problem in one sentence, without values that change from scan to scan.
    summary: String,
    /// The compared values, in reading order; a name may occur several times.
    evidence: Vec<Value>,
    /// The remedies in words. A text that begins with `then` is the next step. A text that begins with `or` is another
    /// remedy.
    remedy: Vec<String>,
    /// The remedies as data, the most direct remedy first. One remedy is enough.
    remedies: Vec<Remedy>,
    /// Fields of other objects that also cause the problem.
    related: Vec<Related>,
}

/// A field of another object.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Related {
    /// The file.
    file: String,
    /// The line.
    line: u64,
    /// The column.
    column: u64,
    /// The template from which helm rendered the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    /// The object.
    object: String,
}

/// Writes the document as indented JSON and a line end.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_lint_json(report: &LintReport, out: &mut dyn Write) -> io::Result<()> {
    write_indented_json(&LintDocument::of(report), out)
}

/// Writes the document as YAML.
///
/// # Errors
/// Fails if the writer fails.
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
        let unknown = report.unknown.iter();
        let unknown = unknown.map(|it| Unknown { claims: it.claims, ..Unknown::of_rows(Some(it.rows), &it.gap) });
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
            looked_at: report.looked_at.map(|at| format!("{at:.0}")),
            namespace: report.namespace.clone(),
            findings: report.reported().map(PlacedProblem::of).collect(),
            accepted: report.accepted,
            unknown: unknown.collect(),
            not_run: report.not_run.iter().map(NotRun::of).collect(),
            failures: report.failures.iter().map(|(gap, _)| Unknown::of(gap)).collect(),
        }
    }
}

impl NotRun {
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

fn template(place: &Place) -> Option<String> {
    place.template.as_ref().map(|name| tidy(name))
}
