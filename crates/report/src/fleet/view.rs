//! The results of all agents in a cluster, written as a document or as the names of the objects with findings.

use std::{
    collections::HashSet,
    io::{self, Write},
    slice,
    sync::Arc,
};

use schemars::JsonSchema;
use serde::Serialize;

use super::{incident::Incident, unknowns::Reason};
use crate::{
    findings_document::{FindingsDocument, Node},
    indented_json::write_indented_json,
    outcome::{CheckResult, outcome},
};
use portreeve_rules::findings::{Severity, Subject};

/// The reports of all agents in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// The namespace of the agents.
    pub agent_namespace: String,
    /// How many agents were queried. `None` if every agent was queried.
    pub partial: Option<Partial>,
    /// The incidents, worst first.
    pub incidents: Vec<Incident>,
    /// One entry for each agent. The list is empty if the output is not a document.
    pub nodes: Vec<Node>,
    /// The number of incidents that are not reported.
    pub hidden: usize,
    /// How many agents are listed.
    pub agents: usize,
    /// The number of agents that answered.
    pub answered: usize,
    /// The number of nodes whose agents answered.
    pub answered_nodes: usize,
    /// The age of the oldest scan, in whole seconds, and its node.
    pub oldest: Option<(u64, Arc<str>)>,
    /// Agents that could not be queried, by reason.
    pub silent: Vec<Reason>,
    /// The inputs that agents could not read, and the rules that agents could not judge, by reason.
    pub unseen: Vec<Reason>,
    /// The lowest severity that sets the result.
    pub(super) counts: Severity,
}

/// How many agents were queried, if not every agent was queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Partial {
    /// How many agents are listed.
    pub listed: usize,
    /// How many agents were queried. Some queried agents may not have answered.
    pub queried: usize,
    /// Why some agents were not queried.
    pub why: Stopped,
}

/// The reason why some agents were not queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// A user stopped the command.
    Interrupted,
    /// The time limit for all agents ended.
    TimeLimit,
}

impl Fleet {
    /// `Findings` if a finding sets the result. Otherwise `Clear` if every agent answered and read its necessary input.
    /// Otherwise `NotChecked`.
    pub fn result(&self) -> CheckResult {
        let worst = self.incidents.iter().map(|it| it.problem.severity).max();
        outcome(worst, self.counts, || !self.is_whole())
    }

    /// Whether there is at least one agent, and every agent answered and read its necessary input.
    pub fn is_whole(&self) -> bool {
        self.agents > 0 && self.silent.is_empty() && !self.unseen.iter().any(|it| it.is_failure)
    }

    /// The sentence about agents that were not queried: `partial: 12 of 5000 agents were queried; you stopped the
    /// command`. `None` if every agent was queried.
    pub fn partial_words(&self) -> Option<String> {
        let Partial { listed, queried, why } = self.partial?;
        let are = if queried == 1 { "was" } else { "were" };
        Some(format!("partial: {queried} of {listed} agents {are} queried; {}", why.words()))
    }

    /// The age of the oldest scan in words: `oldest scan 62 s ago (n1)`.
    pub fn oldest_in_words(&self) -> Option<String> {
        self.oldest.as_ref().map(|(seconds, node)| format!("oldest scan {seconds} s ago ({node})"))
    }

    /// Whether a user stopped the command before every agent was queried.
    pub fn was_interrupted(&self) -> bool {
        self.partial.is_some_and(|partial| partial.why == Stopped::Interrupted)
    }

    /// Whether two reports are equal, apart from their times.
    pub fn reports_the_same_as(&self, other: &Self) -> bool {
        let timeless = |fleet: &Self| {
            let mut fleet = fleet.clone();
            fleet.nodes.iter_mut().for_each(|node| (node.looked_at, node.age_seconds) = (None, None));
            fleet.oldest = None;
            fleet
        };
        timeless(self) == timeless(other)
    }

    fn document(&self) -> FindingsDocument<'_> {
        FindingsDocument {
            agent_namespace: Some(&self.agent_namespace),
            partial: self.partial,
            ..FindingsDocument::new(self.result(), &self.incidents, self.hidden, &self.nodes)
        }
    }

    /// Writes the document as indented JSON and a line end.
    ///
    /// # Errors
    /// Fails if the writer fails.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        write_indented_json(&self.document(), out)
    }

    /// Writes the document as YAML.
    ///
    /// # Errors
    /// Fails if the writer fails.
    pub fn write_yaml(&self, out: &mut dyn Write) -> io::Result<()> {
        self.document().write_yaml(out)
    }

    /// Writes the subjects of findings in kubectl's form, `service/web`. The subjects of the worst findings come first.
    ///
    /// # Errors
    /// Fails if the writer fails.
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

impl Stopped {
    /// The reason, as text.
    pub fn words(self) -> &'static str {
        match self {
            Self::Interrupted => "you stopped the command",
            Self::TimeLimit => "the time limit for all queries ended",
        }
    }
}
