//! Many nodes as one document, `portreeve.fleet/v1`: what each agent reports of its own, and which could not be asked.

mod node_report;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use self::node_report::NodeReport;
use super::{
    CheckResult,
    findings_document::{Problem, Unknown},
    indented_json::write_indented_json,
    indispensable::is_failure as is_core_failure,
    terminal::tidy,
};
use crate::{
    facts::{Gap, Protocol, Source},
    findings::{Scope, Severity, Subject},
};

/// What one agent answered, or why nothing.
#[derive(Clone, Debug)]
pub struct AgentAnswer {
    /// The node that the agent's pod was given; empty where it was given none.
    pub node: String,
    /// The agent's pod.
    pub pod: String,
    /// Its `/findings` as it came.
    pub answer: Result<Vec<u8>, Gap>,
}

/// Which findings are reported and counted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only those whose subject is in this namespace.
    pub namespace: Option<String>,
    /// Only those of at least this severity. Where nothing was chosen, all are reported, and those from
    /// [`Severity::Warning`] on count.
    pub min_severity: Option<Severity>,
}

/// The agents that are asked: so many, in their namespace.
pub fn listed(agents: usize, namespace: &str) -> String {
    let agents = if agents == 1 { "the one agent" } else { &format!("the {agents} agents") };
    format!("{agents} listed in namespace {namespace}")
}

/// What the agents of a cluster report. A field that does not apply is absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(title = "Portreeve findings of many nodes")]
pub struct Fleet {
    /// Always `portreeve.fleet/v1`.
    #[schemars(extend("const" = "portreeve.fleet/v1"))]
    schema: String,
    /// Where the agents were listed. Of nodes without an agent there nothing is known.
    pub(super) agent_namespace: String,
    /// One entry for each agent.
    pub(super) nodes: Vec<Node>,
    /// What is wrong with the cluster, whichever node one looks from; worst first.
    pub(super) cluster: Vec<Shared>,
    /// How many findings are not reported, being in another namespace or too mild.
    pub(super) hidden: usize,
    #[serde(skip)]
    counts: Severity,
}

/// One agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Node {
    /// The node it runs on; empty where its pod was given none.
    pub(super) node: String,
    /// Its pod.
    pub(super) pod: String,
    /// When it looked, RFC 3339; absent where it could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub(super) at: Option<String>,
    /// What is wrong on this node, worst first; absent where the agent could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) findings: Option<Vec<Problem>>,
    /// What could not be judged or seen; of an agent that could not be asked, why.
    pub(super) unknown: Vec<Unknown>,
}

/// What several agents report of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Shared {
    /// The finding, as the first of those reports it that call it worst.
    #[serde(flatten)]
    pub(super) problem: Problem,
    /// The nodes whose agents report it.
    pub(super) nodes: Vec<String>,
}

/// The JSON Schema (draft 2020-12) of the document.
pub fn fleet_schema() -> Schema {
    schema_for!(Fleet)
}

impl Fleet {
    /// Of the answers that the agents listed in a namespace gave just now.
    pub fn of(agent_namespace: &str, answers: Vec<AgentAnswer>, wanted: &Wanted, now: Timestamp) -> Self {
        let mut nodes = Vec::new();
        let mut shared: BTreeMap<(String, Subject, Option<u16>, Option<Protocol>), Shared> = BTreeMap::new();
        let mut hidden = 0;
        for AgentAnswer { node, pod, answer } in answers {
            let report = answer.and_then(|answer| NodeReport::read(&node, &answer, now));
            let (node, pod) = (tidy(&node), tidy(&pod));
            nodes.push(match report {
                Err(gap) => Node { node, pod, at: None, findings: None, unknown: vec![Unknown::of(&gap)] },
                Ok(NodeReport { at, findings, unknown }) => {
                    let (common, own): (Vec<Problem>, Vec<Problem>) =
                        findings.into_iter().partition(|it| it.scope == Scope::Cluster);
                    for problem in common {
                        let key = (problem.rule.clone(), problem.subject.clone(), problem.port, problem.protocol);
                        let first = || Shared { problem: problem.clone(), nodes: Vec::new() };
                        let entry = shared.entry(key).or_insert_with(first);
                        // A sentence goes with its own severity.
                        if problem.severity > entry.problem.severity {
                            entry.problem = problem;
                        }
                        entry.nodes.push(node.clone());
                    }
                    let (mut own, others): (Vec<Problem>, Vec<Problem>) =
                        own.into_iter().partition(|it| wanted.wants(it));
                    hidden += others.len();
                    own.sort_by(worst_first);
                    Node { node, pod, at: Some(format!("{at:.0}")), findings: Some(own), unknown }
                }
            });
        }
        let (mut cluster, others): (Vec<Shared>, Vec<Shared>) =
            shared.into_values().partition(|it| wanted.wants(&it.problem));
        hidden += others.len();
        cluster.sort_by(|a, b| worst_first(&a.problem, &b.problem));
        Self {
            schema: "portreeve.fleet/v1".to_owned(),
            agent_namespace: tidy(agent_namespace),
            nodes,
            cluster,
            hidden,
            counts: wanted.min_severity.unwrap_or(Severity::Warning),
        }
    }

    /// Whether there is a finding that counts, else whether all could be asked, and could look at what they had to.
    pub fn result(&self) -> CheckResult {
        if self.problems().any(|problem| problem.severity >= self.counts) {
            CheckResult::Findings
        } else if self.is_whole() {
            CheckResult::Clear
        } else {
            CheckResult::NotChecked
        }
    }

    /// Whether there are agents, all of them were asked, and none lacks what it had to read.
    pub fn is_whole(&self) -> bool {
        let failed = |node: &Node| node.findings.is_none() || node.unknown.iter().any(is_failure);
        !self.nodes.is_empty() && !self.nodes.iter().any(failed)
    }

    /// Whether it reports the same, whenever that was seen.
    pub fn reports_the_same_as(&self, other: &Self) -> bool {
        let timeless = |fleet: &Self| {
            let mut fleet = fleet.clone();
            fleet.nodes.iter_mut().for_each(|node| node.at = None);
            fleet
        };
        timeless(self) == timeless(other)
    }

    /// Every finding, those of the cluster once.
    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> {
        let own = self.nodes.iter().flat_map(|node| node.findings.iter().flatten());
        self.cluster.iter().map(|it| &it.problem).chain(own)
    }

    /// The agents that could not be asked.
    pub(super) fn without_answer(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.findings.is_none())
    }

    /// Writes the document as indented JSON and a line end.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        write_indented_json(self, out)
    }

    /// Writes the document as YAML.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write_yaml(&self, out: &mut dyn Write) -> io::Result<()> {
        let text = serde_saphyr::to_string(self).map_err(io::Error::other)?;
        writeln!(out, "{}", text.trim_end_matches('\n'))
    }

    /// Writes whom findings are about as kubectl names objects, `service/web`: each once, worst first.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write_names(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut problems: Vec<&Problem> = self.problems().collect();
        problems.sort_by(|a, b| worst_first(a, b));
        let mut written: Vec<&Subject> = Vec::new();
        for Problem { subject, .. } in problems {
            if !written.contains(&subject) {
                writeln!(out, "{}/{}", subject.kind.name().to_lowercase(), subject.name)?;
                written.push(subject);
            }
        }
        Ok(())
    }
}

impl Wanted {
    fn wants(&self, problem: &Problem) -> bool {
        let here = self.namespace.is_none() || problem.subject.namespace == self.namespace;
        here && problem.severity >= self.min_severity.unwrap_or(Severity::Info)
    }
}

pub(super) fn worst_first(a: &Problem, b: &Problem) -> std::cmp::Ordering {
    let key = |it: &Problem| (it.rule.clone(), it.subject.clone(), it.port, it.protocol);
    b.severity.cmp(&a.severity).then_with(|| key(a).cmp(&key(b)))
}

/// Whether an agent lacks what it had to read, as far as its answer shows: its cluster, and the core of its node.
pub(super) fn is_failure(unknown: &Unknown) -> bool {
    let core = matches!(
        unknown.source,
        Source::Services
            | Source::EndpointSlices
            | Source::Listeners
            | Source::Clients
            | Source::Addresses
            | Source::Sysctls
            | Source::Agent
    );
    core && is_core_failure(unknown.source, unknown.why)
}
