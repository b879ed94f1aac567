//! What is known of the agents of a cluster, and what follows from it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::{incident::Incident, unknowns::Reason};
use crate::{
    findings_document::Node,
    outcome::{CheckResult, outcome},
};
use portreeve_rules::findings::Severity;

/// What the agents of a cluster report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// Where the agents run.
    pub agent_namespace: String,
    /// What is known, when not every agent was asked.
    pub partial: Option<Partial>,
    /// Worst first.
    pub incidents: Vec<Incident>,
    /// One for each agent, where the document is wanted.
    pub nodes: Vec<Node>,
    /// How many incidents are not reported.
    pub hidden: usize,
    /// How many agents are listed.
    pub agents: usize,
    /// How many of them answered.
    pub answered: usize,
    /// Of how many nodes those are.
    pub answered_nodes: usize,
    /// The oldest look, in whole seconds, and its node.
    pub oldest: Option<(u64, Arc<str>)>,
    /// Agents that could not be asked, by reason.
    pub silent: Vec<Reason>,
    /// What those that answered could not see or judge, by reason.
    pub unseen: Vec<Reason>,
    /// The mildest that counts.
    pub(super) counts: Severity,
}

/// What is known when not every agent was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Partial {
    /// How many agents are listed.
    pub listed: usize,
    /// How many of them were asked, and have answered or not.
    pub asked: usize,
    /// Why the others were not.
    pub why: Stopped,
}

/// Why not every agent was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// A person stopped it.
    Interrupted,
    /// The time for all agents together was over.
    TimeLimit,
}

impl Fleet {
    /// Whether there is a finding that counts, else whether all could be asked, and could look at what they had to.
    pub fn result(&self) -> CheckResult {
        let worst = self.incidents.iter().map(|it| it.problem.severity).max();
        outcome(worst, self.counts, || !self.is_whole())
    }

    /// Whether there are agents, all of them were asked, and none lacks what it had to read.
    pub fn is_whole(&self) -> bool {
        self.agents > 0 && self.silent.is_empty() && !self.unseen.iter().any(|it| it.is_failure)
    }

    /// What is missing where not every agent was asked: `partial: 12 of 5000 agents were asked; you stopped it`.
    pub fn partial_words(&self) -> Option<String> {
        let Partial { listed, asked, why } = self.partial?;
        let are = if asked == 1 { "was" } else { "were" };
        Some(format!("partial: {asked} of {listed} agents {are} asked; {}", why.words()))
    }

    /// How old the oldest look is: `oldest look 62 s ago (n1)`.
    pub fn oldest_in_words(&self) -> Option<String> {
        self.oldest.as_ref().map(|(seconds, node)| format!("oldest look {seconds} s ago ({node})"))
    }

    /// Whether a person stopped it before every agent was asked.
    pub fn was_interrupted(&self) -> bool {
        self.partial.is_some_and(|partial| partial.why == Stopped::Interrupted)
    }

    /// Whether it reports the same, whenever that was seen.
    pub fn reports_the_same_as(&self, other: &Self) -> bool {
        let timeless = |fleet: &Self| {
            let mut fleet = fleet.clone();
            fleet.nodes.iter_mut().for_each(|node| (node.looked_at, node.age_seconds) = (None, None));
            fleet.oldest = None;
            fleet
        };
        timeless(self) == timeless(other)
    }
}

impl Stopped {
    /// Why, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Interrupted => "you stopped it",
            Self::TimeLimit => "the time for all of them was over",
        }
    }
}
