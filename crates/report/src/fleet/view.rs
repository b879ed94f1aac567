//! The results of the agents of a cluster.

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
    /// The namespace of the agents.
    pub agent_namespace: String,
    /// The counts, if not every agent was queried.
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
    /// The oldest scan, in whole seconds, and its node.
    pub oldest: Option<(u64, Arc<str>)>,
    /// Agents that could not be queried, by reason.
    pub silent: Vec<Reason>,
    /// What those that answered could not see or judge, by reason.
    pub unseen: Vec<Reason>,
    /// The mildest that counts.
    pub(super) counts: Severity,
}

/// The counts if not every agent was queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Partial {
    /// How many agents are listed.
    pub listed: usize,
    /// How many of them were queried, with an answer or without.
    pub asked: usize,
    /// Why the others were not.
    pub why: Stopped,
}

/// Why not every agent was queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stopped {
    /// A person stopped it.
    Interrupted,
    /// The time for all agents together was over.
    TimeLimit,
}

impl Fleet {
    /// Findings if one counts, else clear if every agent answered and could read what it had to.
    pub fn result(&self) -> CheckResult {
        let worst = self.incidents.iter().map(|it| it.problem.severity).max();
        outcome(worst, self.counts, || !self.is_whole())
    }

    /// Whether there are agents, all of them answered, and all could read what they had to.
    pub fn is_whole(&self) -> bool {
        self.agents > 0 && self.silent.is_empty() && !self.unseen.iter().any(|it| it.is_failure)
    }

    /// The missing part if not every agent was queried: `partial: 12 of 5000 agents were queried; you stopped it`.
    pub fn partial_words(&self) -> Option<String> {
        let Partial { listed, asked, why } = self.partial?;
        let are = if asked == 1 { "was" } else { "were" };
        Some(format!("partial: {asked} of {listed} agents {are} queried; {}", why.words()))
    }

    /// How old the oldest scan is: `oldest scan 62 s ago (n1)`.
    pub fn oldest_in_words(&self) -> Option<String> {
        self.oldest.as_ref().map(|(seconds, node)| format!("oldest scan {seconds} s ago ({node})"))
    }

    /// Whether a person stopped it before every agent was queried.
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
