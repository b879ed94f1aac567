//! The Node condition `PortConflict` shows the result of the last scan to programs that read conditions. By default,
//! the agent does not write the condition.
//!
//! A task writes the condition with a strategic merge patch of the status of its own Node. So the task does not change
//! the conditions of other programs. After a start and after a failure, the task first sends an empty patch. The answer
//! contains the current condition. So the agent needs no right to read the Node.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    time::Duration,
};

use http::{Request, header};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::NodeCondition as Condition, apimachinery::pkg::apis::meta::v1::Time};
use kube::client::{Body, Client};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};
use tracing::{info, warn};

use crate::events::{NOTE, Spread};
use portreeve_cluster::{answer::Answer, error, jitter};
use portreeve_facts::{Snapshot, Unread, text::clean};
use portreeve_report::{CheckResult, Open, Report, clear_in_words};
use portreeve_rules::{findings::Severity, ledger::Board};

const TYPE: &str = "PortConflict";
const TRUE: &str = "True";
/// The longest answer that the task reads, in bytes. etcd stores no object that is larger than 1.5 MB.
const NODE: usize = 8 << 20;
const FAILURE: usize = 256;

/// When the condition is written. In a cluster with many nodes, a new state also waits for the turn of this node. The
/// last write, at the end of the agent, does not wait.
#[derive(Clone, Copy, Debug)]
pub struct ConditionTiming {
    /// The shortest time between two writes. After a failure, the wait has this length. Each further failure doubles
    /// the wait.
    pub least: Duration,
    /// The time between two writes of an equal state, and the longest wait after failures. A random part can double
    /// this time.
    pub heartbeat: Duration,
}

impl ConditionTiming {
    /// The times that an agent uses.
    pub const USUAL: Self = Self { least: Duration::from_secs(10), heartbeat: Duration::from_secs(300) };
}

/// The results of writes since the agent's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Writes that the API server accepted.
    pub written: u64,
    /// Writes that failed.
    pub failed: u64,
    /// Whether the agent tried to write `AgentStopped`.
    tried_last: bool,
}

/// The wanted state of the condition, for the task that writes the condition.
#[derive(Debug)]
pub struct NodeCondition {
    wanted: watch::Sender<Option<Wanted>>,
    writes: watch::Receiver<Writes>,
}

impl NodeCondition {
    /// The condition, and the task that writes it through `client`. `limit` is the time limit of each write.
    pub fn new(
        client: Client,
        limit: Duration,
        timing: ConditionTiming,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (wanted, receiver) = watch::channel(None);
        let (sender, writes) = watch::channel(Writes::default());
        let pace = Pace { timing, written: None, last: Instant::now(), wait: Duration::ZERO, failures: 0 };
        let writer = Writer { client, limit, pace, before: None, failure: None, writes: sender };
        (Self { wanted, writes }, writer.work(receiver))
    }

    /// Notes the result of a scan. This function does not wait for the API server. Some rules report a problem only in
    /// their second scan. So before the agent is `settled`, a result is used only if its status is `True`.
    pub fn scanned(&self, snapshot: &Snapshot, board: &Board, settled: bool) {
        let state = State::of(&Report { min_severity: Some(Severity::Warning), ..Report::of(snapshot, board) });
        let Some(node) = snapshot.cluster.node_name.clone().filter(|_| settled || state.status == TRUE) else { return };
        // All nodes may see an equal change at the same time. So each node waits for its own turn.
        let nodes = snapshot.cluster.nodes.known(Unread::Doubted).map(Vec::len);
        let spread = Spread::default().over(nodes).wait(&node, TYPE).unsigned_abs();
        self.wanted.send_modify(|wanted| {
            let same = wanted.take().filter(|before| before.state == state);
            let from = same.map_or_else(|| Instant::now() + spread, |before| before.from);
            *wanted = Some(Wanted { node, state, at: snapshot.at, from, is_last: false });
        });
    }

    /// Replaces the result by `AgentStopped`. Waits until the task has tried once to write `AgentStopped`.
    pub async fn stop(&self, at: Timestamp) {
        let has_result = self.wanted.send_if_modified(|wanted| {
            let Some(wanted) = wanted else { return false };
            wanted.state = State::new("Unknown", "AgentStopped", "the agent on this node stopped");
            (wanted.at, wanted.is_last) = (at, true);
            true
        });
        if has_result {
            // The wait fails if the task has ended. Then nothing is left to write.
            self.writes.clone().wait_for(|writes| writes.tried_last).await.ok();
        }
    }

    /// The results of writes since the agent's start.
    pub fn writes(&self) -> Writes {
        *self.writes.borrow()
    }
}

#[derive(Clone, Debug)]
struct Wanted {
    node: String,
    state: State,
    at: Timestamp,
    /// The earliest time at which this state is written.
    from: Instant,
    is_last: bool,
}

/// The condition without its times. Two scans can have an equal state.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl State {
    fn new(status: &'static str, reason: &'static str, message: &str) -> Self {
        Self { status, reason, message: clean(message, NOTE) }
    }

    /// The message has no text from the cluster, but only words and numbers that Portreeve chooses.
    fn of(report: &Report<'_>) -> Self {
        match report.result() {
            CheckResult::Findings => {
                let mut counts: BTreeMap<String, usize> = BTreeMap::new();
                report.findings().for_each(|it| *counts.entry(it.key.name()).or_default() += 1);
                let counts: Vec<String> = counts.iter().map(|(rule, count)| format!("{rule}: {count}")).collect();
                Self::new(TRUE, "PortsInConflict", &counts.join(", "))
            }
            CheckResult::Clear => Self::new("False", "NoPortConflict", &clear_in_words(report)),
            CheckResult::NotChecked => {
                let unread = report.failures().into_iter().map(|it| Open { claims: 0, ..it.open() }.in_words());
                let unread: Vec<String> = unread.collect::<BTreeSet<_>>().into_iter().collect();
                Self::new("Unknown", "NotChecked", &format!("not checked: {}", unread.join("; ")))
            }
        }
    }
}

#[derive(Debug)]
struct Pace {
    timing: ConditionTiming,
    /// The state of the last write, if the write succeeded.
    written: Option<State>,
    /// The end of the last write. The time `wait` begins here.
    last: Instant,
    wait: Duration,
    failures: u32,
}

impl Pace {
    fn due(&self, wanted: &Wanted) -> Instant {
        match &self.written {
            Some(written) if *written == wanted.state => self.last + self.timing.heartbeat,
            _ => wanted.from.max(self.last + self.wait),
        }
    }

    fn succeeded(&mut self, state: &State, now: Instant) {
        let timing = self.timing;
        *self = Self { timing, written: Some(state.clone()), last: now, wait: timing.least, failures: 0 };
    }

    /// The wait doubles after each failure. The server can request a longer wait. A random part can double the wait, so
    /// that agents send their next requests at different times.
    fn failed(&mut self, wanted: Option<Duration>, chance: f64, now: Instant) {
        let ConditionTiming { least, heartbeat } = self.timing;
        let own = least.saturating_mul(1 << self.failures.min(8)).min(heartbeat);
        let wait = wanted.map_or(own, |wanted| wanted.clamp(own, heartbeat)).mul_f64(1.0 + chance);
        *self = Self { timing: self.timing, written: None, last: now, wait, failures: self.failures.saturating_add(1) };
    }
}

struct Writer {
    client: Client,
    limit: Duration,
    pace: Pace,
    /// The current condition of the Node, if it is known. If the Node has no condition `PortConflict`, all fields are
    /// empty.
    before: Option<Condition>,
    /// A lasting failure is logged only once.
    failure: Option<String>,
    writes: watch::Sender<Writes>,
}

#[derive(Deserialize)]
struct Node {
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
}

type Failed = Box<dyn Error + Send + Sync>;

impl Writer {
    async fn work(mut self, mut wanted: watch::Receiver<Option<Wanted>>) {
        loop {
            let now = wanted.borrow_and_update().clone();
            let due = match &now {
                Some(now) if now.is_last && !self.writes.borrow().tried_last => Instant::now(),
                Some(now) => self.pace.due(now),
                None => Instant::now() + self.pace.timing.heartbeat,
            };
            match (timeout_at(due, wanted.changed()).await, now) {
                (Err(_), Some(now)) => self.write(&now).await,
                (Ok(Err(_)), _) => return,
                _ => {}
            }
        }
    }

    async fn write(&mut self, wanted: &Wanted) {
        let sent = timeout(self.limit, self.patch(wanted)).await;
        let sent = sent.unwrap_or_else(|_| Err(format!("no answer within {} s", self.limit.as_secs_f32()).into()));
        let failure = sent.as_ref().err().map(|failed| clean(&error::causes(failed.as_ref()), FAILURE));
        match sent {
            Ok(()) => self.pace.succeeded(&wanted.state, Instant::now()),
            Err(failed) => {
                let wait = failed.downcast_ref::<error::Error>().and_then(error::Error::retry_after);
                self.pace.failed(wait, jitter(), Instant::now());
            }
        }
        self.writes.send_modify(|writes| {
            match failure {
                None => writes.written += 1,
                Some(_) => writes.failed += 1,
            }
            writes.tried_last = wanted.is_last;
        });
        if failure != self.failure {
            match &failure {
                Some(failure) => warn!(%failure, "cannot write the Node condition"),
                None => info!("the Node condition can be written again"),
            }
            self.failure = failure;
        }
    }

    async fn patch(&mut self, wanted: &Wanted) -> Result<(), Failed> {
        let Wanted { node, state, at, .. } = wanted;
        // After a failure, the server may have written the new condition, so the current condition is unknown.
        let before = match self.before.take() {
            Some(before) => before,
            None => self.send(node, &json!({})).await?,
        };
        let since = before.last_transition_time.filter(|_| before.status == state.status);
        let condition = Condition {
            last_heartbeat_time: Some(Time(*at)),
            last_transition_time: Some(since.unwrap_or(Time(*at))),
            message: Some(state.message.clone()),
            reason: Some(state.reason.to_owned()),
            status: state.status.to_owned(),
            type_: TYPE.to_owned(),
        };
        self.before = Some(self.send(node, &json!({"status": {"conditions": [condition]}})).await?);
        Ok(())
    }

    /// Returns the Node's condition after the patch.
    async fn send(&self, node: &str, patch: &Value) -> Result<Condition, Failed> {
        let request = Request::patch(format!("/api/v1/nodes/{node}/status?fieldManager=portreeve"))
            .header(header::CONTENT_TYPE, "application/strategic-merge-patch+json")
            .header(header::ACCEPT, "application/json")
            .body(Body::from(serde_json::to_vec(patch)?))?;
        let response = self.client.send(request).await?;
        let is_success = response.status().is_success();
        let mut answer = Answer::new(format!("PATCH nodes/{node}/status"), response, None);
        if !is_success {
            return Err(answer.into_refusal().await.into());
        }
        let node: Node = serde_json::from_slice(&answer.bytes(NODE).await?)?;
        Ok(node.status.conditions.into_iter().find(|condition| condition.type_ == TYPE).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
