//! What agents saw, judged here with the code that a look at the node itself would be judged with.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::reach::{Reach, runtime};
use crate::{
    cli::replay,
    cluster::AgentRequest,
    facts::{Gap, Snapshot, Source, Why, text},
};

/// The longest description of what is wrong with an answer, in bytes.
const DETAIL: usize = 256;

/// What was made of an agent's look, or why nothing.
pub(super) struct Looked<T> {
    /// The node that the agent's pod was given.
    pub(super) node: String,
    pub(super) made: Result<T, Gap>,
}

/// Asks the agents of these nodes, or all, for their snapshots. `judge` gets each as soon as it is there, and it is
/// dropped then: together they may be more than fits.
pub(super) fn looks<T>(
    reach: &Reach,
    nodes: &[String],
    mut judge: impl FnMut(&Snapshot) -> Result<T, Gap>,
) -> anyhow::Result<Vec<Looked<T>>> {
    runtime()?.block_on(async {
        let agents = reach.log_in().await?;
        let listed = reach.list(&agents, nodes).await?;
        let mut made: Vec<Option<Result<T, Gap>>> = listed.iter().map(|_| None).collect();
        let take = |number: usize, answer: Result<Vec<u8>, Gap>| {
            let look = answer.and_then(|answer| read(&listed[number].node, &answer));
            // What an agent makes up may be what no kernel ever said.
            let judged = look.and_then(|look| {
                let judged = catch_unwind(AssertUnwindSafe(|| judge(&look)));
                judged.unwrap_or_else(|_| wrong("what it says it saw cannot be judged"))
            });
            made[number] = Some(judged);
        };
        agents.fetch(&listed, AgentRequest::SNAPSHOT, take).await;
        let looked = listed.into_iter().zip(made);
        Ok(looked.filter_map(|(agent, made)| Some(Looked { node: agent.node, made: made? })).collect())
    })
}

/// The snapshot of the agent on `node`: it speaks for its own.
fn read(node: &str, answer: &[u8]) -> Result<Snapshot, Gap> {
    let look = replay::parse(answer).or_else(|error| wrong(&format!("its answer is no snapshot: {error:#}")))?;
    match look.node_name() {
        name if name == node => Ok(look),
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
    fn a_look_at_another_node_is_not_believed() {
        let answer = serde_json::to_vec(&Snapshot::healthy()).expect("JSON");
        assert!(read("n1", &answer).is_ok());
        let gap = read("n2", &answer).expect_err("another node");
        assert_eq!(gap.detail, "it runs on n2 and speaks of the node \"n1\"");
        assert_eq!(read("n1", b"{}").expect_err("no snapshot").why, Why::Malformed);
    }
}
