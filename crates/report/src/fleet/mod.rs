//! Many nodes: each incident once with its nodes, what each agent could not judge, and which could not be asked.

mod document;
mod gathering;
mod incident;
mod node_report;
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

/// The agents that are asked: so many, in their namespace.
pub fn listed(agents: usize, namespace: &str) -> String {
    let agents = if agents == 1 { "the one agent" } else { &format!("the {agents} agents") };
    format!("{agents} listed in namespace {namespace}")
}
