//! Writes the findings of many nodes as one `ClusterReport` of OpenReports (openreports.io/v1alpha1 of
//! github.com/openreports/reports-api 0.2.1). Dashboards of policy engines show such reports.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    slice,
};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Reason, incident::Incident, view::Fleet};
use crate::{names::first_nodes, table::port};
use portreeve_rules::findings::{Severity, Subject, SubjectKind};

/// The largest size of the list of results, in bytes of JSON. etcd accepts requests of at most 1.5 MiB.
const LONGEST: usize = 1 << 20;
/// The largest number of node names in one result, and also the largest number of objects.
const NAMES: usize = 100;

#[derive(Serialize)]
struct ReportResult<'a> {
    policy: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    rule: &'a str,
    category: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    severity: Option<&'static str>,
    result: Outcome,
    scored: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resources: Vec<Value>,
    message: &'a str,
    properties: BTreeMap<&'static str, String>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Fail,
    Warn,
    Error,
}

impl Fleet {
    /// Writes one `ClusterReport` in JSON: the findings, worst first, and then the unread inputs that could hide a
    /// finding. An unread input has the result `error`. The summary counts all results. The list ends before the report
    /// is too large for the API server.
    ///
    /// # Errors
    /// Fails if the writer fails.
    pub fn write_open_reports(&self, out: &mut dyn Write) -> io::Result<()> {
        let unread = self.silent.iter().chain(self.unseen.iter().filter(|reason| reason.is_failure));
        // An iterator needs little memory, even if a hostile agent reports a very large number of unread inputs.
        let all = self.incidents.iter().map(found).chain(unread.map(not_read));
        let (mut counts, mut results, mut length, mut left_out) = (BTreeMap::new(), Vec::new(), 0, 0);
        for result in all {
            *counts.entry(result.result).or_insert(0) += 1;
            let result = serde_json::to_value(result)?;
            length += result.to_string().len();
            if length > LONGEST { left_out += 1 } else { results.push(result) }
        }
        let count = |outcome| counts.get(&outcome).copied().unwrap_or(0);
        let mut report = json!({
            "apiVersion": "openreports.io/v1alpha1",
            "kind": "ClusterReport",
            "metadata": {"name": "portreeve", "labels": {"app.kubernetes.io/managed-by": "portreeve"}},
            "source": "portreeve",
            "summary": {
                "pass": 0, "fail": count(Outcome::Fail), "warn": count(Outcome::Warn), "error": count(Outcome::Error), "skip": 0,
            },
            "results": results,
        });
        if left_out > 0 {
            report["metadata"]["annotations"] = json!({"portreeve/results-left-out": left_out.to_string()});
        }
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)
    }
}

fn found(incident: &Incident) -> ReportResult<'_> {
    let Incident { problem, nodes, subjects, .. } = incident;
    let subjects = if subjects.is_empty() { slice::from_ref(&problem.subject) } else { subjects };
    let (severity, result) = match problem.severity {
        Severity::Critical => ("critical", Outcome::Fail),
        Severity::Warning => ("medium", Outcome::Fail),
        Severity::Info => ("info", Outcome::Warn),
    };
    let port = port(problem.port, problem.protocol).map(|port| ("port", port));
    let remedy = Some(("remedy", problem.remedy.join("\n"))).filter(|(_, text)| !text.is_empty());
    ReportResult {
        policy: &problem.rule,
        rule: &problem.variant,
        category: "ports",
        severity: Some(severity),
        result,
        scored: result == Outcome::Fail,
        timestamp: problem.since.parse().ok().map(timestamp),
        resources: subjects.iter().filter_map(reference).take(NAMES).collect(),
        message: &problem.summary,
        properties: port.into_iter().chain(remedy).chain([("nodes", first_nodes(nodes, NAMES))]).collect(),
    }
}

fn not_read(reason: &Reason) -> ReportResult<'_> {
    ReportResult {
        policy: "not-read",
        rule: "",
        category: "ports",
        severity: None,
        result: Outcome::Error,
        scored: false,
        timestamp: None,
        resources: Vec::new(),
        message: &reason.detail,
        properties: [("nodes", first_nodes(&reason.nodes, NAMES))].into(),
    }
}

/// The reference to the object that a finding is about. `None` if the finding is about the whole cluster.
fn reference(subject: &Subject) -> Option<Value> {
    let Subject { kind, namespace, name, uid } = subject;
    (*kind != SubjectKind::Cluster).then(|| {
        let mut object = json!({"apiVersion": "v1", "kind": kind.name(), "name": name});
        for (field, value) in [("namespace", namespace), ("uid", uid)] {
            if let Some(value) = value {
                object[field] = json!(value);
            }
        }
        object
    })
}

fn timestamp(at: Timestamp) -> Value {
    json!({"seconds": at.as_second(), "nanos": at.subsec_nanosecond()})
}
