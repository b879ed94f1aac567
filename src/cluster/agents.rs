//! The agents of a cluster, each read through the API server's pod proxy with the rights of the caller.
//!
//! It needs `list` of pods, `get` of `pods/proxy`, and `create` of `serviceaccounts/token` for the reader's ServiceAccount
//! in the agents' namespace, and nothing else. What an agent answers is handed on as it came, and not trusted: its node
//! may have been taken over.

use std::time::Duration;

use k8s_openapi::api::core::v1;
use tokio::task::JoinSet;

use super::{
    collection::Collection,
    connect::{Access, Impersonation, connect_as},
    error::Error,
    exchange::Exchange,
    reader_token::ReaderToken,
    requests::{Server, encoded},
    reviews::TOKEN_HEADER,
};
use crate::facts::{Gap, Pod, Source, Why, text};

/// The label by which the chart marks agents.
const LABEL: &str = "app.kubernetes.io/name=portreeve";
/// How long a login may take: a credential plug-in may be waiting for a person.
const LOGIN: Duration = Duration::from_secs(300);

/// A request to agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentRequest {
    /// The path, like `/findings`.
    pub path: &'static str,
    /// The longest answer that is taken, in bytes.
    pub longest: usize,
    /// How many requests run at a time.
    pub at_once: usize,
}

impl AgentRequest {
    /// What is wrong on a node.
    pub const FINDINGS: Self = Self { path: "/findings", longest: 8 << 20, at_once: 16 };
    /// Everything that a look saw, with all Services of the cluster.
    pub const SNAPSHOT: Self = Self { path: "/snapshot", longest: 128 << 20, at_once: 2 };
}

/// One agent, as the API server lists its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// The pod's name.
    pub pod: String,
    /// The node it runs on, as the scheduler wrote it: what the agent reports of itself decides nothing. Empty where it was
    /// given none.
    pub node: String,
    /// The port it answers on, or why no request is made.
    port: Result<u16, Gap>,
}

/// The agents of one namespace.
#[derive(Clone)]
pub struct Agents {
    server: Server,
    exchange: Exchange,
    token: ReaderToken,
    namespace: String,
}

/// Where agents run, and whose tokens they accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPlace {
    /// Their namespace.
    pub namespace: String,
    /// The ServiceAccount in it whose tokens they accept.
    pub reader: String,
}

impl Agents {
    /// Connects, acting as another user where `impersonation` names one.
    ///
    /// # Errors
    /// When the credentials cannot be used.
    pub async fn connect(access: &Access, impersonation: &Impersonation, place: AgentPlace) -> Result<Self, Gap> {
        let login = Access { request_timeout: access.request_timeout.max(LOGIN), ..access.clone() };
        let (client, address) = connect_as(&login, impersonation).await.map_err(|error| error.gap(Source::Pods))?;
        let server = Server::new(client.clone(), address.clone(), access.request_timeout);
        let exchange = Exchange { client, address, within: access.request_timeout };
        let AgentPlace { namespace, reader } = place;
        let token = ReaderToken::new(exchange.clone(), &namespace, &reader);
        Ok(Self { server, exchange, token, namespace })
    }

    /// Every agent that is listed, by node; `selector` selects further by labels of the pods.
    ///
    /// # Errors
    /// When the API server does not list them.
    pub async fn list(&self, selector: Option<&str>) -> Result<Vec<Agent>, Gap> {
        let selector = selector.map_or_else(|| LABEL.to_owned(), |more| format!("{LABEL},{more}"));
        let listed = self.server.list(&self.pods(), &format!("&labelSelector={}", encoded(&selector))).await;
        let pods = listed.map_err(|error| error.gap(Source::Pods))?.pods;
        let mut agents: Vec<Agent> = pods.iter().map(|pod| agent(pod)).collect();
        let order = |agent: &Agent| (agent.node.clone(), agent.port.is_err(), agent.pod.clone());
        agents.sort_by_cached_key(order);
        // One that is on its way out is not missed where another has taken its place.
        agents.dedup_by(|next, kept| next.node == kept.node && next.port.is_err() && kept.port.is_ok());
        Ok(agents)
    }

    /// Sends a request to agents, a few at a time. `take` gets each answer as soon as it is there: the index of the
    /// agent, and the answer or why there is none.
    pub async fn fetch(
        &self,
        agents: &[Agent],
        request: AgentRequest,
        mut take: impl FnMut(usize, Result<Vec<u8>, Gap>),
    ) {
        let mut running = JoinSet::new();
        let mut waiting = agents.iter().enumerate();
        loop {
            for (number, agent) in waiting.by_ref().take(request.at_once - running.len()) {
                let (agents, agent) = (self.clone(), agent.clone());
                running.spawn(async move { (number, agents.fetch_one(&agent, request).await) });
            }
            match running.join_next().await {
                Some(Ok((number, answer))) => take(number, answer),
                // A panic is a bug; it must not be mistaken for an agent that is well.
                Some(Err(failed)) => std::panic::resume_unwind(failed.into_panic()),
                None => return,
            }
        }
    }

    async fn fetch_one(&self, agent: &Agent, AgentRequest { path, longest, .. }: AgentRequest) -> Result<Vec<u8>, Gap> {
        let port = agent.port.clone()?;
        let path = self.pods().object(&format!("{}:{port}/proxy{path}", encoded(&agent.pod)));
        // An older agent wants none, so that a person who gets none may still be answered.
        let token = self.token.of(&agent.node).await;
        let headers: Vec<_> = token.iter().map(|token| (TOKEN_HEADER, token.clone())).collect();
        self.exchange.get(&path, &headers, longest).await.map_err(|error| match (&token, &error) {
            // The agent's answer says what is missing; this is why it was not sent.
            (Err(gap), Error::Status { code: 401, .. }) => {
                let detail = format!("no token for agents: {}; without one: {error}", gap.detail);
                Gap::new(Source::Agent, Why::NotPermitted, text::clean(&detail, 2 * text::NAME))
            }
            _ => error.gap(Source::Agent),
        })
    }

    fn pods(&self) -> Collection {
        Collection::in_namespace::<v1::Pod>(&encoded(&self.namespace))
    }
}

fn agent(pod: &Pod) -> Agent {
    let silent = |why, what: &str| Err(Gap::new(Source::Agent, why, format!("its pod {} {what}", pod.name)));
    let port = match pod.ports.first() {
        _ if pod.node.is_none() => silent(Why::NotYet, "was given no node yet"),
        _ if pod.finished => silent(Why::Unreachable, "has ended"),
        _ if !pod.ready => silent(Why::Unreachable, "is not Ready"),
        None => silent(Why::Malformed, "names no port to ask"),
        Some(port) => Ok(port.port),
    };
    Agent { pod: pod.name.clone(), node: pod.node.clone().unwrap_or_default(), port }
}
