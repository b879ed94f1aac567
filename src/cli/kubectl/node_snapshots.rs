//! Snapshots of agents, judged here by the same rules as a snapshot taken on the node itself.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{
    agents::{AgentFlags, runtime},
    missing_endpoints::MissingEndpoints,
};
use crate::{
    cli::replay,
    cluster::AgentRequest,
    facts::{Gap, Snapshot, Source, Why, text},
};

/// The longest description of what is wrong with an answer, in bytes.
const DETAIL: usize = 256;

/// The result of one agent's snapshot, or why there is none.
pub(super) struct NodeResult<T> {
    /// The node that the agent's pod was given.
    pub(super) node: String,
    pub(super) result: Result<T, Gap>,
}

/// Asks the agents of these nodes, or all, for their snapshots. `judge` gets each as soon as it is there, and it is
/// dropped then: together they may be more than fits. Where it judges a port, it gets the endpoints behind that too.
pub(super) fn judge_node_snapshots<T>(
    agent_flags: &AgentFlags,
    nodes: &[String],
    port: Option<u16>,
    mut judge: impl FnMut(&Snapshot) -> Result<T, Gap>,
) -> anyhow::Result<Vec<NodeResult<T>>> {
    runtime()?.block_on(async {
        let agents = agent_flags.connect().await?;
        let listed = agent_flags.list(&agents, nodes).await?;
        let mut results: Vec<Option<Result<T, Gap>>> = listed.iter().map(|_| None).collect();
        let mut endpoints = MissingEndpoints::new(&agents);
        let take = async |number: usize, answer: Result<Vec<u8>, Gap>| {
            let mut snapshot = answer.and_then(|answer| read(&listed[number].node, &answer));
            if let (Ok(snapshot), Some(port)) = (&mut snapshot, port) {
                endpoints.fill_in(&mut snapshot.cluster, port).await;
            }
            // A compromised agent can send facts that no kernel reports.
            let judged = snapshot.and_then(|snapshot| {
                let judged = catch_unwind(AssertUnwindSafe(|| judge(&snapshot)));
                judged.unwrap_or_else(|_| wrong("what it says it saw cannot be judged"))
            });
            results[number] = Some(judged);
        };
        agents.fetch(&listed, AgentRequest::SNAPSHOT, take).await;
        let judged = listed.into_iter().zip(results);
        Ok(judged.filter_map(|(agent, result)| Some(NodeResult { node: agent.node, result: result? })).collect())
    })
}

/// The snapshot of the agent on `node`: one about another node is refused.
fn read(node: &str, answer: &[u8]) -> Result<Snapshot, Gap> {
    let snapshot = replay::parse(answer).or_else(|error| wrong(&format!("its answer is no snapshot: {error:#}")))?;
    match snapshot.node_name() {
        name if name == node => Ok(snapshot),
        other => wrong(&format!("it runs on {node} and speaks of the node {:?}", text::clean(other, text::NAME))),
    }
}

fn wrong<T>(what: &str) -> Result<T, Gap> {
    Err(Gap::new(Source::Agent, Why::Malformed, text::clean(what, DETAIL)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_of_another_node_is_refused() {
        let answer = serde_json::to_vec(&Snapshot::healthy()).expect("JSON");
        assert!(read("n1", &answer).is_ok());
        let gap = read("n2", &answer).expect_err("another node");
        assert_eq!(gap.detail, "it runs on n2 and speaks of the node \"n1\"");
        assert_eq!(read("n1", b"{}").expect_err("no snapshot").why, Why::Malformed);
    }
}
