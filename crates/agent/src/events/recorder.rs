//! Writes Events through the API server, one request at a time, in a task of its own.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Request as HttpRequest, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::events::v1::EventSeries, apimachinery::pkg::apis::meta::v1::MicroTime};
use kube::client::{Body, Client};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::{Notify, watch},
    task::{AbortHandle, JoinHandle},
    time,
};
use tracing::{info, warn};

use super::{
    place::Place,
    plan::{Counters, LONGEST, Plan, Reply, Request, Write},
};
use portreeve_cluster::retry_after;
use portreeve_facts::{Snapshot, text::clean};
use portreeve_rules::ledger::Change;

/// The longest answer that the recorder reads, in bytes.
const ANSWER: usize = 256 << 10;
/// The longest message of a server in a log line, in bytes.
const MESSAGE: usize = 256;
/// Agents that failed at the same moment send their next requests at random times, spread over this time or longer.
const APART: Duration = Duration::from_secs(2);
/// The longest sleep. A person may change the clock during the sleep, so the sleep is short.
const NAP: Duration = Duration::from_secs(60);

/// Writes Events. When this value is dropped, its task ends. A new recorder writes the missing Events.
#[derive(Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
    task: AbortHandle,
    /// The namespace of the agents, if it is known.
    agents: Option<String>,
}

/// The plan. The agent's loop adds findings to the plan, and the task takes requests from the plan. The size of the
/// plan is limited. Each lock of the plan is short.
#[derive(Debug, Default)]
struct Shared {
    plan: Mutex<Plan>,
    changed: Notify,
    idle: watch::Sender<bool>,
}

impl Shared {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self, at: Timestamp) -> Option<Write> {
        let mut plan = self.plan();
        let write = plan.next(at);
        self.idle.send_replace(write.is_none());
        write
    }
}

impl Recorder {
    /// Starts a task that writes through `client`. `limit` is the time limit of each request. `agents` is the namespace
    /// of the agents. `chance` returns random numbers from 0 to 1. The function needs a tokio runtime. The task ends
    /// when the `Recorder` is dropped. If the task ends earlier, the program has a bug.
    pub fn start(
        client: Client,
        limit: Duration,
        agents: Option<String>,
        clock: impl Fn() -> Timestamp + Send + 'static,
        chance: impl Fn() -> f64 + Send + 'static,
    ) -> (Self, JoinHandle<()>) {
        let shared = Arc::<Shared>::default();
        let task = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move { work(shared, Writer { client, limit, failure: None }, clock, chance).await }
        });
        (Self { shared, task: task.abort_handle(), agents }, task)
    }

    /// Adds the changes of a scan.
    pub fn round(&self, snapshot: &Snapshot, changes: &[Change]) {
        let counts_nodes = snapshot.cluster.nodes.gap().is_none() && !self.shared.plan().knows_nodes();
        if counts_nodes || !changes.is_empty() {
            self.offer(snapshot.at, changes, &Place::of(snapshot, self.agents.as_deref()));
        }
    }

    /// Adds the changes of a scan. This function does not wait for the API server.
    pub fn offer(&self, at: Timestamp, changes: &[Change], place: &Place) {
        let mut plan = self.shared.plan();
        plan.know(place);
        for change in changes {
            plan.offer(at, change, place);
        }
        self.shared.idle.send_replace(false);
        drop(plan);
        self.shared.changed.notify_one();
    }

    /// Waits until no request is due.
    pub async fn idle(&self) {
        // The sender is in `shared`, so this wait cannot fail.
        self.shared.idle.subscribe().wait_for(|idle| *idle).await.ok();
    }

    /// The results of requests since the start.
    pub fn counters(&self) -> Counters {
        self.shared.plan().counters()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn work(shared: Arc<Shared>, mut writer: Writer, clock: impl Fn() -> Timestamp, chance: impl Fn() -> f64) {
    loop {
        match shared.next(clock()) {
            Some(write) => {
                let reply = writer.send(&write).await;
                let wanted = if let Reply::Unavailable(wanted) = &reply { Some(*wanted) } else { None };
                shared.plan().answer(clock(), &write, reply);
                if let Some(wanted) = wanted {
                    time::sleep(apart(wanted, chance())).await;
                }
            }
            None => {
                let now = clock();
                let due = shared.plan().due(now).map(|due| due.duration_since(now).unsigned_abs());
                // If a request becomes due between `next` and `due`, the task waits only for a moment.
                let nap = due.unwrap_or(NAP).clamp(Duration::from_millis(10), NAP);
                tokio::select! {
                    () = shared.changed.notified() => {}
                    () = time::sleep(nap) => {}
                }
            }
        }
    }
}

/// A random wait. With this wait, agents that failed at the same moment do not send together again.
pub(super) fn apart(wanted: Option<SignedDuration>, chance: f64) -> Duration {
    let most = wanted.map_or(APART, SignedDuration::unsigned_abs).clamp(APART, LONGEST.unsigned_abs());
    most.mul_f64(chance.clamp(0.0, 1.0))
}

struct Writer {
    client: Client,
    limit: Duration,
    /// A lasting failure is logged only once.
    failure: Option<String>,
}

/// The fields that the recorder reads. Each field is optional, because another program may have written the Event.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    reporting_instance: Option<String>,
}

#[derive(Deserialize)]
struct Status {
    message: String,
    /// Distinguishes errors that have equal status codes.
    reason: Option<String>,
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

impl Writer {
    async fn send(&mut self, write: &Write) -> Reply {
        let answered = time::timeout(self.limit, self.exchange(write)).await;
        let answered =
            answered.unwrap_or_else(|_| Err(format!("no answer within {} s", self.limit.as_secs_f32()).into()));
        let (reply, failure) =
            answered.unwrap_or_else(|failed| (Reply::Unavailable(None), Some(clean(&failed.to_string(), MESSAGE))));
        if failure != self.failure {
            match &failure {
                Some(failure) => warn!(%failure, "cannot write an Event"),
                None => info!("Events can be written again"),
            }
            self.failure = failure;
        }
        reply
    }

    /// Returns the answer. If the request failed, also returns the failure in words.
    async fn exchange(&self, write: &Write) -> Result<(Reply, Option<String>), Failed> {
        let response = self.client.send(request(write)?).await?;
        let wait = retry_after(&response).and_then(|wait| SignedDuration::try_from(wait).ok());
        let status = response.status();
        let body = match Limited::new(response.into_body(), ANSWER).collect().await {
            Ok(body) => body.to_bytes(),
            // Only an Event of another program makes an answer longer than `ANSWER`. So the server works.
            Err(failed) if failed.is::<LengthLimitError>() => Default::default(),
            Err(failed) => return Err(failed),
        };
        let answer = serde_json::from_slice::<Status>(&body);
        let exists = answer.as_ref().is_ok_and(|answer| answer.reason.as_deref() == Some("AlreadyExists"));
        let reply = match (status, &write.request) {
            (status, Request::Read) if status.is_success() => {
                let read: Result<Seen, _> = serde_json::from_slice(&body);
                read.map_or(Reply::Stuck, |seen| Reply::Current(seen.reporting_instance))
            }
            (status, _) if status.is_success() => Reply::Written,
            (StatusCode::CONFLICT, Request::Create(_)) if exists => Reply::Exists,
            (StatusCode::NOT_FOUND, _) => Reply::Missing,
            (StatusCode::FORBIDDEN, _) => Reply::Forbidden,
            (StatusCode::UNPROCESSABLE_ENTITY, Request::Create(_)) => Reply::Refused,
            (status, _) if is_refusal(status.as_u16()) => Reply::Stuck,
            (_, _) => Reply::Unavailable(wait),
        };
        let fine = match (&reply, &write.request) {
            (Reply::Written | Reply::Exists | Reply::Current(_), _) => true,
            (Reply::Missing, request) => !matches!(request, Request::Create(_)),
            (Reply::Forbidden | Reply::Stuck | Reply::Refused | Reply::Unavailable(_), _) => false,
        };
        let failure = (!fine).then(|| {
            let message = match answer {
                Ok(answer) => answer.message,
                Err(_) if status.is_success() => {
                    format!("{}/{} is no Event, or a long one", write.namespace, write.name)
                }
                Err(_) => String::new(),
            };
            clean(&format!("{status}: {message}"), MESSAGE)
        });
        Ok((reply, failure))
    }
}

/// Whether a repeated request would get the same answer. For four codes, a later answer may differ. A token can be
/// renewed (401), a server can be busy (408, 429), or two writers can use a quota together (409).
pub(crate) fn is_refusal(code: u16) -> bool {
    (400..500).contains(&code) && ![401, 408, 409, 429].contains(&code)
}

fn request(write: &Write) -> Result<HttpRequest<Body>, Failed> {
    let events = format!("/apis/events.k8s.io/v1/namespaces/{}/events", write.namespace);
    let one = format!("{events}/{}", write.name);
    let (method, uri, kind, body) = match &write.request {
        Request::Create(event) => ("POST", events, "application/json", serde_json::to_vec(event)?),
        Request::Repeat(count, last) => {
            let series = EventSeries { count: *count, last_observed_time: MicroTime(*last) };
            ("PATCH", one, MERGE, serde_json::to_vec(&json!({ "series": series }))?)
        }
        // An empty patch returns the Event and changes nothing. So the agent needs no right to read Events.
        Request::Read => ("PATCH", one, MERGE, b"{}".to_vec()),
    };
    let request = HttpRequest::builder().method(method).uri(uri);
    let request = request.header(header::CONTENT_TYPE, kind).header(header::ACCEPT, "application/json");
    Ok(request.body(Body::from(body))?)
}

const MERGE: &str = "application/merge-patch+json";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_may_pass_is_no_refusal() {
        assert!([400, 403, 404, 413, 422, 499].into_iter().all(is_refusal));
        assert!(![0, 200, 304, 401, 408, 409, 429, 500, 503].into_iter().any(is_refusal));
    }

    #[test]
    fn agents_with_the_same_wait_come_back_at_different_times() {
        let waits = |wanted| [0.0, 0.5, 1.0].map(|chance| apart(wanted, chance).as_secs());
        assert_eq!(waits(None), [0, 1, 2]);
        assert_eq!(waits(Some(SignedDuration::from_secs(60))), [0, 30, 60]);
        assert_eq!(waits(Some(SignedDuration::from_hours(9))), [0, 150, 300]);
    }
}
