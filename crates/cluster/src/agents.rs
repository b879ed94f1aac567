//! The agents of a cluster. Each agent is read through the API server's pod proxy, with the rights of the user.
//!
//! The user needs three rights in the agents' namespace: `list` of pods, `get` of `pods/proxy`, and `create` of
//! `serviceaccounts/token` for the reader's ServiceAccount. An agent's answer is passed on unchanged, and is not
//! trusted, because an attacker may control the agent's node.

use std::{collections::BTreeSet, mem, panic, sync::Arc, time::Duration};

use nix::sys::resource::{Resource, getrlimit};
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use super::{
    collection::Collection,
    connect::{Access, Impersonation, connect_as},
    declared::{self, Declared},
    error::Error,
    facts_builder::FactsBuilder,
    objects::{self, Identity, decode},
    pages::Recency,
    reader_token::ReaderToken,
    requests::{JSON, Server, encoded},
    watch::selection::Selection,
};
use portreeve_facts::{EndpointSlice, Gap, Pod, Source, Why, names, text};

/// The label that the chart gives to agents.
const LABEL: &str = "app.kubernetes.io/name=portreeve";
/// The label that the chart gives to guards.
const GUARD_LABEL: &str = "app.kubernetes.io/name=portreeve-guard";
const NO_NODE: &str = "has no node yet";
/// The largest number of Services whose endpoints are read in one request. The request contains the names of the
/// Services.
const NAMES: usize = 50;
/// The longest time for a login. A credential plug-in may wait for the user.
const LOGIN: Duration = Duration::from_secs(300);

/// A request to agents. All answers together need at most `at_once` times `usual` bytes of memory. This limit also
/// holds when long answers are requested a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentRequest {
    /// The path, for example `/findings`.
    pub path: &'static str,
    /// The largest number of requests at the same time.
    pub at_once: usize,
    /// The longest answer to a first request, in bytes. If an agent's answer is longer, the agent gets a second
    /// request. The second requests follow after all first requests, only a few at a time.
    pub usual: usize,
    /// The longest answer to a second request, in bytes.
    pub longest: usize,
}

impl AgentRequest {
    /// The findings of a node.
    pub const FINDINGS: Self = Self { path: "/findings", at_once: 64, usual: 1 << 20, longest: 8 << 20 };
    /// All facts of a scan, with all Services of the cluster.
    pub const SNAPSHOT: Self = Self { path: "/snapshot", at_once: 2, usual: 128 << 20, longest: 128 << 20 };

    /// The first round asks all agents. The second round accepts longer answers, from agents whose answer was too long.
    fn rounds(self) -> [Round; 2] {
        let Self { path, at_once, usual, longest } = self;
        // Each connection needs an open file. Half of the limit stays free for other open files.
        let files =
            getrlimit(Resource::RLIMIT_NOFILE).map_or(usize::MAX, |(now, _)| now.try_into().unwrap_or(usize::MAX));
        let at_once = at_once.min(files / 2).max(1);
        let of_long = (at_once * usual / longest).max(1);
        [(usual, at_once), (longest, of_long)].map(|(longest, at_once)| Round { path, longest, at_once })
    }
}

#[derive(Clone, Copy)]
struct Round {
    path: &'static str,
    longest: usize,
    at_once: usize,
}

struct Silent {
    gap: Gap,
    too_long: bool,
}

/// An agent, as the API server lists its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// The name of the pod.
    pub pod: String,
    /// The node of the agent's pod, as the scheduler wrote it, not as the agent reports it. For a pod that is not
    /// scheduled yet, this is the node of its node affinity. Empty if the node is not known.
    pub node: String,
    /// Whether the pod is Ready.
    is_ready: bool,
    port: Result<u16, Gap>,
}

/// The agents of one namespace.
#[derive(Clone)]
pub struct Agents {
    server: Server,
    token: ReaderToken,
    namespace: String,
}

/// The namespace of the agents, and the ServiceAccount whose tokens they accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPlace {
    /// The namespace of the agents.
    pub namespace: String,
    /// The ServiceAccount in this namespace whose tokens the agents accept.
    pub reader: String,
}

impl Agents {
    /// Connects to the API server. If `impersonation` names a user, the requests are made as this user.
    ///
    /// # Errors
    /// Fails if the credentials cannot be used.
    pub async fn connect(access: &Access, impersonation: &Impersonation, place: AgentPlace) -> Result<Self, Gap> {
        let login = Access { request_timeout: access.request_timeout.max(LOGIN), ..access.clone() };
        let (client, address) = connect_as(&login, impersonation).await.map_err(|error| error.gap(Source::Pods))?;
        let server = Server::new(client.clone(), address, access.request_timeout);
        let AgentPlace { namespace, reader } = place;
        let token = ReaderToken::new(client, &namespace, reader, access.request_timeout);
        Ok(Self { server, token, namespace })
    }

    /// Every agent in the API server's list of pods, sorted by node. `selector` is a second label selector for the
    /// pods.
    ///
    /// # Errors
    /// Fails if the API server does not list the pods.
    pub async fn list(&self, selector: Option<&str>) -> Result<Vec<Agent>, Gap> {
        let selector = selector.map_or_else(|| LABEL.to_owned(), |more| format!("{LABEL},{more}"));
        let mut agents = self.pods_with(&selector).await?;
        // `None` sorts before all errors. So an agent that can be queried comes first on its node.
        let why = |agent: &Agent| agent.port.as_ref().err().map(|gap| gap.why);
        agents.sort_by_cached_key(|agent| (agent.node.clone(), why(agent), agent.pod.clone()));
        // While a pod is replaced, its node may have two pods. If a node has several agents, agents that cannot be
        // queried are dropped, except the first agent.
        agents.dedup_by(|next, kept| next.node == kept.node && !next.node.is_empty() && next.port.is_err());
        Ok(agents)
    }

    /// The nodes on which a pod of a guard is Ready, according to the API server.
    ///
    /// # Errors
    /// Fails if the API server does not list the pods.
    pub async fn guarded_nodes(&self) -> Result<BTreeSet<String>, Gap> {
        let guards = self.pods_with(GUARD_LABEL).await?;
        Ok(guards.into_iter().filter(|guard| guard.is_ready).map(|guard| guard.node).collect())
    }

    async fn pods_with(&self, labels: &str) -> Result<Vec<Agent>, Gap> {
        let selector = format!("&labelSelector={}", encoded(labels));
        let listed = self.server.pages(JSON, &self.pods(), &selector, Recency::Now, Vec::new, add_agent).await;
        listed.map(|(pods, _)| pods).map_err(|error| error.gap(Source::Pods))
    }

    /// Sends a request to many agents at the same time. For each answer, `take` is called with the index of the agent.
    /// If there is no answer, `take` gets the reason. If the caller drops the future, the requests end.
    pub async fn fetch(
        &self,
        agents: &[Agent],
        request: AgentRequest,
        mut take: impl AsyncFnMut(usize, Result<Vec<u8>, Gap>),
    ) {
        let mut numbers: Vec<usize> = (0..agents.len()).collect();
        for round in request.rounds() {
            let mut waiting = mem::take(&mut numbers).into_iter();
            let mut running = JoinSet::new();
            loop {
                for number in waiting.by_ref().take(round.at_once - running.len()) {
                    let (of_all, agent) = (self.clone(), agents[number].clone());
                    running.spawn(async move { (number, of_all.fetch_one(&agent, round).await) });
                }
                match running.join_next().await {
                    Some(Ok((number, Err(Silent { too_long: true, .. })))) if round.longest < request.longest => {
                        numbers.push(number);
                    }
                    Some(Ok((number, answer))) => take(number, answer.map_err(|silent| silent.gap)).await,
                    // A panic is a bug, and must not make the agent look healthy.
                    Some(Err(failed)) => panic::resume_unwind(failed.into_panic()),
                    None => break,
                }
            }
        }
    }

    /// The EndpointSlices of all Services with these names. The user may lack the right to list EndpointSlices.
    ///
    /// # Errors
    /// Fails if the API server does not list the EndpointSlices, or if one EndpointSlice cannot be used. Also if a name
    /// is not valid, or if there are too many names.
    pub async fn endpoint_slices(&self, names: &BTreeSet<String>) -> Result<Vec<Arc<EndpointSlice>>, Gap> {
        if names.len() > NAMES || !names.iter().all(|name| names::is_label(name)) {
            let detail = format!("the endpoints of {} Services were not requested from the API server", names.len());
            return Err(Gap::new(Source::EndpointSlices, Why::NotRequested, detail));
        }
        let selector = Selection::EndpointsOf(Arc::new(names.clone())).query();
        let slices = Collection::of::<objects::EndpointSlice>();
        let listed = self.server.list::<objects::EndpointSlice>(&slices, &selector).await;
        let facts = listed.map_err(|error| error.gap(Source::EndpointSlices))?;
        facts.rejected().first().cloned().map_or(Ok(facts.endpoint_slices), Err)
    }

    /// The claims to ports of nodes in the whole cluster, as far as the user may list the objects. No agent is queried.
    pub async fn declared(&self) -> Declared {
        declared::read(&self.server).await
    }

    async fn fetch_one(&self, agent: &Agent, Round { path, longest, .. }: Round) -> Result<Vec<u8>, Silent> {
        let port = agent.port.clone().map_err(|gap| Silent { gap, too_long: false })?;
        let path = self.pods().object(&format!("{}:{port}/proxy{path}", encoded(&agent.pod)));
        // Without a token, the agent is queried anyway, because its answer contains the reason for the refusal.
        let token = self.token.of(&agent.node).await;
        self.server.bytes(&path, token.as_ref().ok(), longest).await.map_err(|error| Silent {
            too_long: matches!(error, Error::TooLong { .. }),
            gap: match (&token, &error) {
                // The agent's answer says only that the token is missing. This `Gap` adds the reason why the token is
                // missing.
                (Err(gap), Error::Status { code: 401, .. }) => {
                    let detail = format!("no token for agents: {}; without a token: {error}", gap.detail);
                    Gap::new(Source::Agent, Why::NotPermitted, text::clean(&detail, 2 * text::NAME))
                }
                _ => error.gap(Source::Agent),
            },
        })
    }

    fn pods(&self) -> Collection {
        Collection::in_namespace::<objects::Pod>(&encoded(&self.namespace))
    }
}

/// Every listed pod counts as an agent. Pods without a node, pods that the kubelet refused, and pods that cannot be
/// decoded also count.
fn add_agent(agents: &mut Vec<Agent>, place: &str, object: &RawValue) {
    let mut facts = FactsBuilder::default();
    let decoded = decode::<objects::Pod>(object);
    let node = decoded.as_ref().ok().and_then(objects::Pod::only_node).unwrap_or_default();
    let Identity { title, .. } = facts.add_decoded(place, decoded, object);
    let never_started = || {
        let pod = title.split_once('/').map_or(&*title, |(_, name)| name);
        let gap = match (facts.waiting_pods.first(), facts.rejected().first()) {
            (Some(waiting), _) if waiting.rejected => {
                silent(pod, Why::Unreachable, "was refused by the kubelet, because its ports are in use")
            }
            (Some(_), _) => silent(pod, Why::NotYet, "has no node with free ports yet"),
            (None, Some(rejected)) => Gap { source: Source::Agent, ..rejected.clone() },
            (None, None) => silent(pod, Why::NotYet, NO_NODE),
        };
        Agent { pod: pod.to_owned(), node, is_ready: false, port: Err(gap) }
    };
    agents.push(facts.pods.first().map_or_else(never_started, |pod| agent(pod)));
}

fn silent(pod: &str, why: Why, what: &str) -> Gap {
    Gap::new(Source::Agent, why, format!("its pod {pod} {what}"))
}

fn agent(pod: &Pod) -> Agent {
    let silent = |why, what| Err(silent(&pod.name, why, what));
    let ready = match () {
        () if pod.node.is_none() => silent(Why::NotYet, NO_NODE),
        () if pod.finished => silent(Why::Unreachable, "has ended"),
        () if !pod.ready => silent(Why::Unreachable, "is not Ready"),
        () => Ok(()),
    };
    let is_ready = ready.is_ok();
    let no_port = || self::silent(&pod.name, Why::Malformed, "names no port");
    let port = ready.and_then(|()| pod.ports.first().map(|port| port.port).ok_or_else(no_port));
    Agent { pod: pod.name.clone(), node: pod.node.clone().unwrap_or_default(), is_ready, port }
}
