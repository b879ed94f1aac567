//! The document `portreeve.fleet/v1`: JSON and YAML. Within v1 fields are only ever added.

use std::{
    collections::HashSet,
    io::{self, Write},
    slice,
    sync::Arc,
};

use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use super::{
    incident::Incident,
    view::{Fleet, Node, Partial},
};
use crate::{CheckResult, findings_document::Problem, indented_json::write_indented_json};
use portreeve_rules::findings::{Scope, Subject};

/// What the agents of a cluster report. A field that does not apply is absent.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(title = "Portreeve findings of many nodes")]
struct FleetDocument<'a> {
    /// Always `portreeve.fleet/v1`.
    #[schemars(extend("const" = "portreeve.fleet/v1"))]
    schema: &'static str,
    /// Where the agents were listed. Of nodes without an agent there nothing is known.
    agent_namespace: &'a str,
    /// How much this is of the whole; absent where every agent was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<Partial>,
    /// The result: `findings` of at least `--min-severity`, else `not-checked`, else `clear`; the exit code says the same.
    result: CheckResult,
    /// What is wrong, each mistake once with all nodes that have it, and what is wrong with the cluster; worst first.
    incidents: &'a [Incident],
    /// One entry for each agent.
    nodes: &'a [Node],
    /// What is wrong with the cluster, whichever node one looks from; worst first.
    cluster: Vec<Shared<'a>>,
    /// The oldest of the looks; absent where no agent answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_look: Option<OldestLook<'a>>,
    /// How many incidents are not reported, being in another namespace, of another rule, or too mild.
    hidden: usize,
}

/// The oldest of the looks that the document is made of.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct OldestLook<'a> {
    /// The node.
    node: &'a str,
    /// Its age in whole seconds, by the clock of its agent.
    age_seconds: u64,
}

/// What several agents report of the cluster.
#[derive(Serialize, JsonSchema)]
struct Shared<'a> {
    /// The finding, as the first of those reports it that call it worst.
    #[serde(flatten)]
    problem: &'a Problem,
    /// The nodes whose agents report it.
    nodes: &'a [Arc<str>],
}

/// The JSON Schema (draft 2020-12) of the document.
pub fn fleet_schema() -> Schema {
    schema_for!(FleetDocument<'_>)
}

impl Fleet {
    fn document(&self) -> FleetDocument<'_> {
        let of_cluster = self.incidents.iter().filter(|it| it.problem.scope == Scope::Cluster);
        FleetDocument {
            schema: "portreeve.fleet/v1",
            agent_namespace: &self.agent_namespace,
            partial: self.partial,
            result: self.result(),
            incidents: &self.incidents,
            nodes: &self.nodes,
            cluster: of_cluster.map(|it| Shared { problem: &it.problem, nodes: &it.nodes }).collect(),
            oldest_look: self.oldest.as_ref().map(|(age_seconds, node)| OldestLook { node, age_seconds: *age_seconds }),
            hidden: self.hidden,
        }
    }

    /// Writes the document as indented JSON and a line end.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        write_indented_json(&self.document(), out)
    }

    /// Writes the document as YAML.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write_yaml(&self, out: &mut dyn Write) -> io::Result<()> {
        let text = serde_saphyr::to_string(&self.document()).map_err(io::Error::other)?;
        writeln!(out, "{}", text.trim_end_matches('\n'))
    }

    /// Writes whom findings are about as kubectl names objects, `service/web`: each once, worst first.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write_names(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut written: HashSet<&Subject> = HashSet::new();
        for Incident { problem, subjects, .. } in &self.incidents {
            let all = if subjects.is_empty() { slice::from_ref(&problem.subject) } else { subjects };
            for subject in all {
                if written.insert(subject) {
                    writeln!(out, "{}/{}", subject.kind.name().to_lowercase(), subject.name)?;
                }
            }
        }
        Ok(())
    }
}
