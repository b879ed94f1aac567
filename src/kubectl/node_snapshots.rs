//! Snapshots from agents. The plugin judges these snapshots with the same rules that `portreeve` uses for its own node.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use anyhow::{anyhow, bail};
use jiff::{SignedDuration, Timestamp};

use super::{
    agents::{AgentFlags, runtime},
    queries::Interrupts,
};
use crate::{
    console::Console,
    scope::{Behind, NodeResults, Scope, Wanted},
};
use portreeve_cluster::{Agent, AgentRequest, Agents};
use portreeve_facts::{ClusterFacts, EndpointSlice, Gap, Reading, Snapshot, Source, Unread, Why, text};
use portreeve_report::{NodeScan, ScanAge, Stopped, listed as listed_agents};

/// The longest description of a wrong answer, in bytes.
const DETAIL: usize = 256;

#[derive(Debug, clap::Args)]
pub(crate) struct AgentScope {
    /// Query only the agent of this node; may be given several times
    #[arg(long, value_name = "NODE", help_heading = "Agents")]
    pub(super) node: Vec<String>,
    #[command(flatten)]
    pub(super) agent_flags: AgentFlags,
}

impl Scope for AgentScope {
    fn judge<T>(
        self,
        wanted: &Wanted,
        _: &Console,
        judge: impl FnMut(&Snapshot) -> Result<T, Gap>,
    ) -> anyhow::Result<NodeResults<T>> {
        judge_node_snapshots(&self.agent_flags, &self.node, wanted, |_| Ok(()), judge)
    }
}

/// Requests a snapshot from the agent of the one node in `nodes`, or from the only agent if `nodes` is empty. Prints the
/// age of the snapshot.
///
/// # Errors
/// Returns an error if there is no agent, or if no node is named and there are several agents. If several agents are
/// possible, the function queries no agent.
pub(super) fn judge_one_snapshot<T>(
    agent_flags: &AgentFlags,
    nodes: &[String],
    console: &Console,
    judge: impl FnMut(&Snapshot) -> Result<T, Gap>,
) -> anyhow::Result<(NodeScan, Result<T, Gap>)> {
    let only_one = |listed: &[Agent]| {
        let mut nodes = listed.iter().map(|agent| &agent.node).filter(|node| !node.is_empty());
        match (nodes.next(), nodes.next_back()) {
            (Some(one), Some(last)) if one != last => {
                bail!("several nodes have agents, for example {one} and {last}; choose one with --node")
            }
            _ => Ok(()),
        }
    };
    let NodeResults { mut results, mut nodes, oldest, .. } =
        judge_node_snapshots(agent_flags, nodes, &Wanted::default(), only_one, judge)?;
    oldest.iter().for_each(|note| console.print_note(note));
    let none = || anyhow!("no agent is listed in namespace {}, so no port was judged", agent_flags.agent_namespace);
    nodes.pop().zip(results.pop()).map(|(node, (_, result))| (node, result)).ok_or_else(none)
}

/// Queries the agents, and calls `judge` with each snapshot when the snapshot arrives. Then the snapshot is dropped,
/// because all snapshots together may be too large for the memory.
pub(super) fn judge_node_snapshots<T>(
    agent_flags: &AgentFlags,
    nodes: &[String],
    wanted: &Wanted,
    accepts: impl FnOnce(&[Agent]) -> anyhow::Result<()>,
    mut judge: impl FnMut(&Snapshot) -> Result<T, Gap>,
) -> anyhow::Result<NodeResults<T>> {
    runtime()?.block_on(async {
        let agents = agent_flags.connect().await?;
        let listed = agent_flags.list(&agents, nodes).await?;
        accepts(&listed)?;
        let guarded = if wanted.guards { agents.guarded_nodes().await } else { Ok(BTreeSet::new()) };
        let mut results: Vec<Option<Result<T, Gap>>> = listed.iter().map(|_| None).collect();
        let mut nodes: Vec<NodeScan> = listed.iter().map(|agent| NodeScan::none(&agent.node)).collect();
        let mut endpoints = MissingEndpoints { agents: &agents, known: BTreeMap::new() };
        let mut oldest: Option<(SignedDuration, usize)> = None;
        let take = async |number: usize, answer: Result<Vec<u8>, Gap>| {
            let mut snapshot = answer.and_then(|answer| read(&listed[number].node, &answer, Timestamp::now()));
            if let Ok(snapshot) = &snapshot {
                oldest = oldest.max(Some((Timestamp::now().duration_since(snapshot.at), number)));
                nodes[number] = NodeScan::of(snapshot);
            }
            match (&mut snapshot, wanted.behind) {
                (Ok(snapshot), Behind::Port(port)) => endpoints.fill_in(&mut snapshot.cluster, port).await,
                (Ok(snapshot), Behind::EveryNodePort) => endpoints.fill_in_all(&mut snapshot.cluster).await,
                (Err(_), _) | (_, Behind::NoPort) => {}
            }
            // An attacker who controls an agent can send impossible facts, which may make a rule panic.
            let judged = snapshot.and_then(|snapshot| {
                let judged = catch_unwind(AssertUnwindSafe(|| judge(&snapshot)));
                judged.unwrap_or_else(|_| wrong("the agent's snapshot cannot be judged"))
            });
            results[number] = Some(judged);
        };
        let mut interrupts = Interrupts::new()?;
        let stopped = interrupts.query(&agents, &listed, AgentRequest::SNAPSHOT, agent_flags.time_limit, take).await;
        let oldest = oldest.map(|(age, number)| {
            format!("the oldest scan is {} s old ({})", age.as_secs().max(0), listed[number].node)
        });
        let about = listed_agents(listed.len(), &agent_flags.agent_namespace);
        let scope = format!("{about}; other nodes are not included");
        let (all, queried) = (listed.len(), results.iter().flatten().count());
        let partial = stopped.map(|why| format!("partial: {queried} of {all} agents were queried; {}", why.words()));
        let not_queried =
            || Gap::new(Source::Agent, Why::NotRequested, stopped.map_or("the agent was not queried", Stopped::words));
        let judged = listed.into_iter().zip(results);
        let judged = judged.map(|(agent, result)| (agent.node, result.unwrap_or_else(|| Err(not_queried()))));
        nodes.sort_by(|a, b| a.node.cmp(&b.node));
        Ok(NodeResults { results: judged.collect(), nodes, partial, guarded, oldest, scope })
    })
}

/// Refuses a snapshot of another node, and a snapshot that is too old or too new at the time `now`.
fn read(node: &str, answer: &[u8], now: Timestamp) -> Result<Snapshot, Gap> {
    let snapshot = Snapshot::from_json(answer)
        .or_else(|error| wrong(&format!("the agent's answer is not a snapshot: {error}")))?;
    match snapshot.node_name() {
        name if name == node => ScanAge::gap(snapshot.at, None, now).map_or(Ok(snapshot), Err),
        other => {
            wrong(&format!("the agent runs on {node} but reports about the node {:?}", text::clean(other, text::NAME)))
        }
    }
}

fn wrong<T>(what: &str) -> Result<T, Gap> {
    Err(Gap::new(Source::Agent, Why::Malformed, text::clean(what, DETAIL)))
}

/// The largest number of Services in one request for endpoints.
const AT_ONCE: usize = 50;

/// The EndpointSlices of some Services. `None` if the request failed.
type Slices = Option<Vec<Arc<EndpointSlice>>>;

/// Endpoints that an agent's snapshot lacks. An agent reads only the endpoints that rules need on its node, but a user
/// may query any port. The missing endpoints are read with the user's rights, once for all nodes.
struct MissingEndpoints<'a> {
    agents: &'a Agents,
    known: BTreeMap<BTreeSet<String>, Slices>,
}

impl MissingEndpoints<'_> {
    async fn fill_in_all(&mut self, facts: &mut ClusterFacts) {
        let services = facts.services.known_part(Unread::Chooses).iter();
        let with_node_port = services.filter(|it| it.ports.iter().any(|port| port.node_port.is_some()));
        let names: Vec<String> =
            with_node_port.map(|it| it.name.clone()).collect::<BTreeSet<_>>().into_iter().collect();
        for some in names.chunks(AT_ONCE) {
            self.fill_in_those(facts, some.iter().cloned().collect()).await;
        }
    }

    /// Adds the endpoints of the Services on `port`. Endpoints that cannot be read stay missing.
    async fn fill_in(&mut self, facts: &mut ClusterFacts, port: u16) {
        let wanted = facts.reached_on(port);
        self.fill_in_those(facts, wanted).await;
    }

    async fn fill_in_those(&mut self, facts: &mut ClusterFacts, wanted: BTreeSet<String>) {
        if facts.holds_endpoints_of(&wanted) {
            return;
        }
        if !self.known.contains_key(&wanted) {
            let read = self.agents.endpoint_slices(&wanted).await;
            self.known.insert(wanted.clone(), read.ok());
        }
        if let Some(Some(slices)) = self.known.get(&wanted) {
            add(facts, &wanted, slices);
        }
    }
}

/// Adds `slices`, which are all EndpointSlices of the Services in `names`.
fn add(facts: &mut ClusterFacts, names: &BTreeSet<String>, slices: &[Arc<EndpointSlice>]) {
    let (Reading::Seen(all), Some(known)) = (&mut facts.endpoint_slices, &mut facts.endpoints_of) else { return };
    all.retain(|slice| !names.contains(&slice.service));
    all.extend(slices.iter().filter(|slice| names.contains(&slice.service)).cloned());
    *known = Arc::new(known.union(names).cloned().collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_of_another_node_is_refused() {
        let healthy = Snapshot::healthy();
        let (answer, now) = (serde_json::to_vec(&healthy).expect("JSON"), healthy.at);
        assert!(read("n1", &answer, now).is_ok());
        let gap = read("n2", &answer, now).expect_err("another node");
        assert_eq!(gap.detail, "the agent runs on n2 but reports about the node \"n1\"");
        assert_eq!(read("n1", b"{}", now).expect_err("no snapshot").why, Why::Malformed);
    }

    #[test]
    fn a_snapshot_of_another_day_is_refused() {
        let healthy = Snapshot::healthy();
        let answer = serde_json::to_vec(&healthy).expect("JSON");
        let read_after = |hours: i64| read("n1", &answer, healthy.at + SignedDuration::from_hours(hours));
        assert!(read_after(0).is_ok());
        for hours in [-24, 24] {
            assert_eq!(read_after(hours).expect_err("of another day").why, Why::Stale);
        }
    }

    #[test]
    fn endpoints_are_added_to_those_that_are_known_and_said_to_be() {
        let world =
            Snapshot::healthy().service("web", |it| it.node_port(30080)).service("api", |it| it.node_port(30443));
        let all = world.cluster.endpoint_slices.seen().expect("endpoints").clone();
        let of = |name: &str| BTreeSet::from([name.to_owned()]);
        let mut facts = world.cluster;
        assert_eq!(facts.reached_on(30080), of("web"));
        facts.endpoint_slices = Reading::Seen(all.iter().filter(|slice| slice.service == "api").cloned().collect());
        facts.endpoints_of = Some(Arc::new(of("api")));
        assert!(!facts.holds_endpoints_of(&of("web")));
        add(&mut facts, &of("web"), &all);
        assert!(facts.holds_endpoints_of(&of("web")) && facts.holds_endpoints_of(&of("api")));
        let mut known: Vec<_> = facts.endpoint_slices.seen().expect("endpoints").iter().map(Arc::as_ref).collect();
        let mut wanted: Vec<_> =
            all.iter().map(Arc::as_ref).filter(|slice| ["web", "api"].contains(&&*slice.service)).collect();
        known.sort_by_key(|slice| format!("{slice:?}"));
        wanted.sort_by_key(|slice| format!("{slice:?}"));
        assert_eq!(known, wanted);
    }
}
