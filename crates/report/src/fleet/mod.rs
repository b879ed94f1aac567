//! One report about many nodes. Each incident occurs once, with its nodes. The report also lists the rules that agents
//! could not judge, and the agents that could not be queried.

mod gathering;
mod incident;
mod node_report;
mod open_reports;
#[cfg(test)]
mod tests;
mod unknowns;
mod view;

pub use self::{
    gathering::{AgentAnswer, Gathering, Wanted},
    view::{Fleet, Stopped},
};
pub(super) use self::{
    incident::{Incident, MOST, common_name},
    unknowns::{Reason, Reasons},
    view::Partial,
};
use super::names::counted;

/// The agents of a report, in words: `3 agents of namespace portreeve`.
pub fn listed(agents: usize, namespace: &str) -> String {
    format!("{} of namespace {namespace}", counted(agents, "agent"))
}
