//! The document `portreeve.findings/v1`, as JSON or YAML: the findings of one node or of many nodes. Later versions of
//! v1 only add fields.

use std::{
    io::{self, Write},
    slice,
    sync::Arc,
};

use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Serialize};

use super::{
    CheckResult, Open, Report, ReportedGap, ScanAge,
    fleet::{Incident, Partial},
    indented_json::write_indented_json,
    remedies::{joined, lines},
    terminal::tidy,
};
use portreeve_facts::{
    Gap, Mode, NodePortRange, Protocol, RangeSource, Source, Unread, VERSION, Why,
    text::{self, clean},
};
use portreeve_rules::{
    Rule,
    findings::{Evidence, Finding, Remedy, Scope, Severity, Step, StepKind, Subject, Vantage},
    ids::{self, Rows},
};

pub(super) const SCHEMA: &str = "portreeve.findings/v1";

/// Findings on one node or on many nodes, and the unknown results. A field that does not apply is absent.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(title = "Portreeve findings")]
pub(super) struct FindingsDocument<'a> {
    /// Always `portreeve.findings/v1`.
    #[schemars(extend("const" = "portreeve.findings/v1"))]
    pub(super) schema: &'static str,
    /// The version of the program that wrote the document.
    pub(super) version: &'static str,
    /// The result. A finding sets the result if the severity of the finding is at least `--min-severity` (by default
    /// `warning`). The exit code of a command has the same meaning, unless `--exit-zero` is set.
    pub(super) result: CheckResult,
    /// The namespace in which the command searched for agents; absent in a report of one node. A node without an agent
    /// in this namespace is not included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agent_namespace: Option<&'a str>,
    /// How many agents were queried; absent if all agents were queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) partial: Option<Partial>,
    /// The findings, worst first. Each problem occurs once, with all its nodes.
    pub(super) findings: &'a [Incident],
    /// The rules that a node could not judge, and the inputs that the node could not read. If an agent could not be
    /// queried, one entry has the reason.
    pub(super) unknown: Vec<UnknownOn<'a>>,
    /// How many findings are not reported: they are in another namespace, are of another rule, or have a lower
    /// severity.
    pub(super) hidden: usize,
    /// One entry for each node, or for each queried agent.
    pub(super) nodes: &'a [Node],
}

/// One node, or its agent, with the time of the scan and the unknown results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// The node's name; empty if an agent's pod has no node.
    pub node: Arc<str>,
    /// The agent's pod; absent if no agent was queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Arc<str>>,
    /// The version of the agent; absent if the agent could not be queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The time at which the scan began, RFC 3339; absent if the agent could not be queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub looked_at: Option<String>,
    /// The age of the scan at the time of the document, in seconds of a monotonic clock; absent in a document of
    /// `portreeve check`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// The age from which the scan is too old to be trusted, in seconds; only in a document of an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_after_seconds: Option<u64>,
    /// The age of the last scan that read connections, at the time of the document, in seconds; only in a document of
    /// an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_age_seconds: Option<u64>,
    /// The proxy mode and its settings on this node; absent if unknown, and in a document about many nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) proxy: Option<Proxy>,
    /// The NodePort range; absent if unknown, and in a document about many nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node_port_range: Option<Range>,
    /// How many rules ran, and how many of them judged all their subjects; absent in a document about many nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged: Option<JudgedRules>,
    /// The findings of this node, worst first; absent in a document of one node, and if the agent could not be queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) findings: Option<Vec<Problem>>,
    /// The unjudged rules and unread inputs. If the agent could not be queried, one entry has the reason. The field
    /// `unknown` of the document lists these entries.
    #[serde(skip)]
    pub(super) unknown: Vec<Unknown>,
}

/// An unknown result of a node.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct UnknownOn<'a> {
    /// The node's name; empty if an agent's pod has no node.
    pub(super) node: &'a str,
    #[serde(flatten)]
    pub(super) what: &'a Unknown,
}

/// How many rules judged their subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct JudgedRules {
    /// The number of rules that judged all their subjects.
    pub whole: usize,
    /// Rules that ran.
    pub run: usize,
}

impl JudgedRules {
    pub(super) fn of(report: &Report<'_>) -> Self {
        let unknown: Vec<Rows> = report.gaps().iter().filter_map(|it| it.rows).collect();
        let has = |rows: &Rows, rule: &Rule| rule.variants.iter().any(|variant| rows.have(rule.name(), variant));
        let is_whole = |rule: &&&'static Rule| !unknown.iter().any(|rows| has(rows, rule));
        Self { whole: report.rules.iter().filter(is_whole).count(), run: report.rules.len() }
    }
}

/// The proxy mode and its settings on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Proxy {
    /// The proxy mode.
    mode: Mode,
    /// The source of the mode.
    source: String,
    /// `nodePortAddresses`. Empty stands for the mode's default. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_port_addresses: Option<Vec<String>>,
}

/// The NodePort range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Range {
    /// The lowest port.
    first: u16,
    /// The highest port.
    last: u16,
    /// The source of the range.
    source: String,
    /// The kind of the source.
    source_kind: RangeSource,
}

/// One finding, in words that are safe to print.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The rule's id.
    pub rule: String,
    /// The variant: a word on the rule's page.
    pub variant: String,
    /// The severity.
    pub severity: Severity,
    /// Whether the finding is about this node or about the cluster. A finding about the cluster is equal on all nodes.
    pub scope: Scope,
    /// The subject of the finding.
    pub subject: Subject,
    /// The port of the finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The protocol of the finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// A word of the rule for what happens to the subject. `api-server-refuses`: the API server will refuse the object
    /// of a manifest. Absent if the rule has no word for the outcome.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub outcome: String,
    /// The problem in one sentence, without values that change from scan to scan.
    pub summary: String,
    /// The measured values, in reading order; a name may occur several times.
    pub evidence: Vec<Value>,
    /// The places of the affected clients.
    pub affects: Vec<Vantage>,
    /// The remedies in words. A text that begins with `then` is the next step. A text that begins with `or` is another
    /// remedy.
    pub remedy: Vec<String>,
    /// The remedies as data, the most direct remedy first. One remedy is enough.
    pub remedies: Vec<Remedy>,
    /// The time at which the finding was first seen, RFC 3339; absent in predicted findings of `what-if`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(extend("format" = "date-time"))]
    pub since: String,
}

/// One measured value of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Value {
    /// The name of the measured value.
    pub name: String,
    /// The value.
    pub value: String,
}

/// One unknown result or unread input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unknown {
    /// The rule that could not judge; absent if the missing input is only for evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The variants that were not judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<String>,
    /// The subject that the rule could not judge; absent if there are several, and if the rule judged nothing at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// How many ports and objects the rule could not judge; absent if the rule judged nothing at all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub claims: usize,
    /// The source of the missing fact.
    pub source: Source,
    /// The reason.
    pub why: Why,
    /// The details, as text.
    pub detail: String,
}

/// Writes the document as indented JSON, and a line end. `age` is set only in the document of an agent.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_json(report: &Report<'_>, age: Option<ScanAge>, out: &mut dyn Write) -> io::Result<()> {
    let since_connections = report.snapshot.since_connections();
    let node = Node {
        age_seconds: age.map(|it| it.age.as_secs()),
        old_after_seconds: age.map(|it| it.old_after.as_secs()),
        connections_age_seconds: age.map(|it| it.age.saturating_add(since_connections).as_secs()),
        ..Node::of(report)
    };
    with_document(report, &node, |document| write_indented_json(document, out))
}

/// Writes the document as YAML.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_yaml(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    with_document(report, &Node::of(report), |document| document.write_yaml(out))
}

/// The JSON Schema (draft 2020-12) of the document.
pub fn findings_schema() -> Schema {
    schema_for!(FindingsDocument)
}

fn with_document<T>(report: &Report<'_>, node: &Node, write: impl FnOnce(&FindingsDocument<'_>) -> T) -> T {
    let findings: Vec<Incident> =
        report.findings().map(|finding| Incident::on(&node.node, Problem::of(finding))).collect();
    let hidden = report.board.findings.len() - findings.len();
    write(&FindingsDocument::new(report.result(), &findings, hidden, slice::from_ref(node)))
}

impl<'a> FindingsDocument<'a> {
    pub(super) fn new(result: CheckResult, findings: &'a [Incident], hidden: usize, nodes: &'a [Node]) -> Self {
        let of_node = |node: &'a Node| node.unknown.iter().map(|what| UnknownOn { node: &node.node, what });
        let unknown = nodes.iter().flat_map(of_node).collect();
        let (schema, version, agent_namespace, partial) = (SCHEMA, VERSION, None, None);
        Self { schema, version, result, agent_namespace, partial, findings, unknown, hidden, nodes }
    }

    pub(super) fn write_yaml(&self, out: &mut dyn Write) -> io::Result<()> {
        let text = serde_saphyr::to_string(self).map_err(io::Error::other)?;
        writeln!(out, "{}", text.trim_end_matches('\n'))
    }
}

impl Node {
    /// The entry of the scanned node, with the version of this program.
    fn of(report: &Report<'_>) -> Self {
        let snapshot = report.snapshot;
        let config = snapshot.proxy_config().ok();
        let unknown: Vec<Unknown> = report.gaps().into_iter().map(Unknown::of_reported).collect();
        Self {
            node: tidy(snapshot.node_name()).into(),
            version: Some(VERSION.to_owned()),
            looked_at: Some(format!("{:.0}", snapshot.at)),
            proxy: snapshot.proxy_mode().ok().map(|mode| Proxy {
                mode: mode.value,
                source: tidy(&mode.place),
                node_port_addresses: config
                    .map(|config| config.node_port_addresses.iter().map(|address| tidy(address)).collect()),
            }),
            node_port_range: snapshot.cluster.node_port_range.known(Unread::Reported("unknown")).map(Range::of),
            judged: Some(JudgedRules::of(report)),
            unknown,
            ..Self::default()
        }
    }
}

impl Range {
    pub(super) fn of(range: &NodePortRange) -> Self {
        let NodePortRange { range, source, place } = range;
        Self { first: range.first, last: range.last, source: tidy(place), source_kind: *source }
    }
}

pub(super) fn values(evidence: &Evidence) -> Vec<Value> {
    evidence.values.iter().map(|(name, value)| Value { name: (*name).to_owned(), value: tidy(value) }).collect()
}

impl Problem {
    /// The rule and the variant, for example `node-port-claimed-twice/lost`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.rule, self.variant)
    }

    pub(super) fn of(finding: &Finding) -> Self {
        let Finding { key, evidence, since } = finding;
        Self {
            rule: key.rule.to_string(),
            variant: key.variant.to_owned(),
            severity: evidence.severity,
            scope: evidence.scope,
            subject: tidy_subject(&key.subject),
            port: key.port,
            protocol: key.protocol,
            outcome: evidence.outcome.to_owned(),
            summary: tidy(&evidence.summary),
            evidence: values(evidence),
            affects: evidence.affects.iter().copied().collect(),
            remedy: lines(&evidence.remedies).map(|(word, step)| joined(word, &tidy(&step.text))).collect(),
            remedies: evidence.remedies.iter().map(tidy_remedy).collect(),
            since: format!("{since:.0}"),
        }
    }

    pub(super) fn tidied(self) -> Self {
        Self {
            rule: clean(&self.rule, text::NAME),
            variant: clean(&self.variant, text::NAME),
            subject: tidy_subject(&self.subject),
            outcome: clean(&self.outcome, text::NAME),
            summary: tidy(&self.summary),
            evidence: self
                .evidence
                .into_iter()
                .map(|Value { name, value }| Value { name: tidy(&name), value: tidy(&value) })
                .collect(),
            remedy: self.remedy.iter().map(|remedy| tidy(remedy)).collect(),
            remedies: self.remedies.iter().map(tidy_remedy).collect(),
            since: clean(&self.since, text::NAME),
            ..self
        }
    }
}

/// The upper limit for [`Unknown::claims`] from an agent. No node has more ports and objects, but an agent can report
/// any number.
pub(super) const MOST_CLAIMS: usize = 1_000_000;

impl Unknown {
    pub(super) fn of(gap: &Gap) -> Self {
        Self {
            rule: None,
            variants: Vec::new(),
            subject: None,
            claims: 0,
            source: gap.source,
            why: gap.why,
            detail: tidy(&gap.detail),
        }
    }

    fn of_reported(unseen: ReportedGap<'_>) -> Self {
        Self {
            subject: unseen.subject.map(tidy_subject),
            claims: unseen.claims,
            ..Self::of_rows(unseen.rows, unseen.gap)
        }
    }

    pub(super) fn of_rows(rows: Option<Rows>, gap: &Gap) -> Self {
        let variants = rows.iter().flat_map(|rows| rows.variants).map(|variant| (*variant).to_owned()).collect();
        Self { rule: rows.map(|rows| rows.rule.to_string()), variants, ..Self::of(gap) }
    }

    pub(super) fn open(&self) -> Open {
        let Self { rule, variants, claims, source, why, .. } = self;
        Open {
            ceiling: rule.as_ref().map(|rule| ids::ceiling(rule, variants)),
            claims: *claims,
            source: *source,
            why: *why,
        }
    }

    pub(super) fn tidied(self) -> Self {
        Self {
            rule: self.rule.map(|rule| clean(&rule, text::NAME)),
            variants: self.variants.iter().map(|variant| clean(variant, text::NAME)).collect(),
            subject: self.subject.as_ref().map(tidy_subject),
            claims: self.claims.min(MOST_CLAIMS),
            detail: tidy(&self.detail),
            ..self
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(claims: &usize) -> bool {
    *claims == 0
}

pub(super) fn tidy_remedy(remedy: &Remedy) -> Remedy {
    let steps = remedy.steps.iter().map(|step| match step.kind {
        StepKind::Command => Step::command(tidy(&step.text)),
        StepKind::Advice => Step::advice(tidy(&step.text)),
    });
    steps.collect::<Vec<_>>().into()
}

pub(super) fn tidy_subject(subject: &Subject) -> Subject {
    Subject {
        kind: subject.kind,
        namespace: subject.namespace.as_deref().map(tidy),
        name: tidy(&subject.name),
        uid: subject.uid.as_deref().map(tidy),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use portreeve_facts::Snapshot;
    use portreeve_rules::ledger::Board;

    #[test]
    fn findings_of_an_agent_tell_how_old_the_look_and_its_connections_are() {
        let age = ScanAge::new(Duration::from_secs(3), Duration::from_secs(60));
        let told = |world: &Snapshot| {
            let mut out = Vec::new();
            write_json(&Report::of(world, &Board::default()), Some(age), &mut out).expect("a document");
            let document: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
            ["ageSeconds", "connectionsAgeSeconds"].map(|name| document["nodes"][0][name].as_u64())
        };
        let mut world = Snapshot::healthy();
        assert_eq!(told(&world), [Some(3), Some(3)]);
        world.connections_at = Some(world.at - jiff::SignedDuration::from_mins(19));
        assert_eq!(told(&world), [Some(3), Some(19 * 60 + 3)]);
        // The clock was set back after the connections were read. So the document has the same age for the connections
        // and for the scan.
        world.connections_at = Some(world.at + jiff::SignedDuration::from_mins(19));
        assert_eq!(told(&world), [Some(3), Some(3)]);
    }
}
