//! The Events that the guard writes: about its Node, about objects with claimed ports, and about pods whose `bind` was
//! refused.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, Error, api::PostParams};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::warn;

use super::{GuardState, binds::Conflict, now};
use crate::events::{NOTE, Place, annotations, finding_event, hash, is_refusal, reference};
use portreeve_cluster::{self as cluster, ClusterSource};
use portreeve_facts::{Node, Snapshot, text};
use portreeve_rules::findings::{Finding, Subject};

/// The shortest time between two Events about the list of reserved ports.
const PAUSE: Duration = Duration::from_secs(3600);
const ATTEMPTS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(45),
    Duration::from_secs(135),
];
/// The namespace of Events about a Node.
const NAMESPACE: &str = "default";

/// Writes at most one Event an hour about the list of reserved ports, and one Event for each conflict. The caller does
/// not wait for the API server.
pub(super) struct Reporter {
    client: Client,
    limit: Duration,
    waits: &'static [Duration],
    /// The time of the last Event about the list of reserved ports. `None` if the API server did not answer.
    overwritten: Arc<Mutex<Option<Instant>>>,
    /// The codes that were logged: each code is logged once. The code 0 stands for a missing answer.
    failed: Arc<Mutex<BTreeSet<u16>>>,
    state: watch::Sender<GuardState>,
    /// The namespace of the agents, if it is known.
    agents: Option<String>,
}

impl Reporter {
    /// The caller needs a tokio runtime.
    pub(super) fn of(cluster: &ClusterSource, state: watch::Sender<GuardState>) -> Option<Self> {
        match cluster {
            ClusterSource::Api(access) => {
                let client = cluster::client(access.clone());
                let reporter = Self::with(client, access.request_timeout, &ATTEMPTS, state);
                Some(Self { agents: access.own_namespace(), ..reporter })
            }
            ClusterSource::Files(_) | ClusterSource::None => None,
        }
    }

    fn with(client: Client, limit: Duration, waits: &'static [Duration], state: watch::Sender<GuardState>) -> Self {
        let (overwritten, failed) = (Arc::default(), Arc::default());
        Self { client, limit, waits, overwritten, failed, state, agents: None }
    }

    pub(super) fn overwritten(&self, node: &Node, note: &str) {
        {
            let mut last = self.overwritten.lock().unwrap_or_else(PoisonError::into_inner);
            if last.is_some_and(|at| at.elapsed() < PAUSE) {
                return;
            }
            *last = Some(Instant::now());
        }
        let name = hash(&["guard", &node.name, &now().as_microsecond().to_string()]);
        let mut event = event(
            &format!("portreeve.{name:032x}"),
            &node.name,
            reference("Node", None, &node.name, node.uid.as_deref()),
        );
        event.action = Some("ReservePorts".to_owned());
        event.reason = Some("ReservedPortsOverwritten".to_owned());
        event.note = Some(text::clean(note, NOTE));
        let (last, writing) = (Arc::clone(&self.overwritten), self.write(event));
        tokio::spawn(async move {
            if !writing.await {
                // The next run of the guard writes the Event again.
                *last.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
        });
    }

    /// Equal conflicts within an hour have the same Event name, so the API server keeps one Event.
    pub(super) fn bound(&self, conflict: &Conflict, snapshot: &Snapshot) {
        let place = Place::of(snapshot, self.agents.as_deref());
        if let Some(event) = bind_event(conflict, &place, now()) {
            tokio::spawn(self.write(event));
        }
    }

    /// Returns true if the API server accepted or refused the Event. If the function returns false, a later attempt may
    /// succeed. The caller limits Events about binds, so at most about sixty Events wait at the same time.
    fn write(&self, event: Event) -> impl Future<Output = bool> + use<> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or(NAMESPACE);
        let (events, limit, waits) = (Api::<Event>::namespaced(self.client.clone(), namespace), self.limit, self.waits);
        let (failed, state) = (Arc::clone(&self.failed), self.state.clone());
        async move {
            let parameters = PostParams::default();
            let (mut code, mut failure) = (0, String::new());
            for wait in waits {
                sleep(*wait).await;
                (code, failure) = match timeout(limit, events.create(&parameters, &event)).await {
                    Ok(Err(Error::Api(status))) if status.reason != "AlreadyExists" => (status.code, status.message),
                    Ok(Ok(_) | Err(Error::Api(_))) => {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).clear();
                        return true;
                    }
                    Ok(Err(error)) => (0, error.to_string()),
                    Err(_) => (0, "no answer in time".to_owned()),
                };
                if is_refusal(code) {
                    break;
                }
            }
            state.send_modify(|state| state.unwritten_events += 1);
            if failed.lock().unwrap_or_else(PoisonError::into_inner).insert(code) {
                warn!(code, failure = text::clean(&failure, 256), "cannot write an Event, and will not try again");
            }
            is_refusal(code)
        }
    }
}

/// The Event about a bind. If the bind passed, this is the Event of the finding about the listener. An agent that finds
/// the listener writes no second Event, and writes the Event about the end of the finding. `None` if the bind passed
/// and the object of the finding has no uid: the agent writes no Event about this object either.
fn bind_event(conflict: &Conflict, place: &Place, at: Timestamp) -> Option<Event> {
    let Some(evidence) = conflict.evidence.clone() else { return Some(refusal_event(conflict, place, at)) };
    let event = finding_event(&Finding { key: conflict.key.clone(), evidence, since: at }, place, at)?;
    Some(Event { action: Some("ReportBind".to_owned()), related: Some(of(&conflict.maker)), ..event })
}

fn refusal_event(Conflict { key, maker, note, .. }: &Conflict, place: &Place, at: Timestamp) -> Event {
    let number = |it: &dyn ToString| it.to_string();
    let name = hash(&[
        "bind",
        key.rule.0,
        key.variant,
        &key.subject.to_string(),
        &key.port.map(|port| number(&port)).unwrap_or_default(),
        &key.protocol.map(|protocol| number(&protocol)).unwrap_or_default(),
        &maker.to_string(),
        &place.node,
        &number(&(at.as_second() / 3600)),
    ]);
    let mut event = event(&format!("portreeve.{name:032x}"), &place.node, of(maker));
    event.metadata.annotations = annotations(key);
    Event {
        action: Some("RefuseBind".to_owned()),
        reason: Some(key.rule.reason()),
        related: Some(of(&key.subject)),
        note: Some(text::clean(note, NOTE)),
        ..event
    }
}

fn of(subject: &Subject) -> ObjectReference {
    reference(subject.kind.name(), subject.namespace.as_deref(), &subject.name, subject.uid.as_deref())
}

fn event(name: &str, node: &str, regarding: ObjectReference) -> Event {
    let namespace = regarding.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
    Event {
        metadata: ObjectMeta { name: Some(name.to_owned()), namespace: Some(namespace), ..ObjectMeta::default() },
        event_time: Some(MicroTime(now())),
        reporting_controller: Some("portreeve-guard".to_owned()),
        reporting_instance: Some(text::clean(&format!("portreeve-guard-{node}"), 128)),
        type_: Some("Warning".to_owned()),
        regarding: Some(regarding),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, btree_map::Entry},
        sync::atomic::{AtomicUsize, Ordering},
    };

    use axum::{
        Router,
        body::Bytes,
        extract::Path,
        http::StatusCode,
        routing::{patch, post},
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::{events::Recorder, guard::binds::conflict};
    use portreeve_bind_hook::{Answer, Bind, ClaimId, Protocol};
    use portreeve_facts::{Cgroup, healthy::held};
    use portreeve_rules::{
        Limits,
        ledger::{Change, Clearance},
    };

    const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
    const UNIT: &str = "/system.slice/squatter.service";

    async fn serving(router: Router) -> Client {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let place = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let mut config = kube::Config::new(place.parse().expect("an address"));
        config.default_retry = false;
        Client::try_from(config).expect("a client")
    }

    /// An API server that keeps Events. A patch changes nothing, and returns the Event.
    async fn keeping() -> (Client, Arc<Mutex<BTreeMap<String, Value>>>) {
        let kept = Arc::<Mutex<BTreeMap<String, Value>>>::default();
        let (created, patched) = (Arc::clone(&kept), Arc::clone(&kept));
        let create = move |body: Bytes| {
            let event: Value = serde_json::from_slice(&body).expect("JSON");
            let name = event["metadata"]["name"].as_str().expect("a name").to_owned();
            let exists = json!({
                "kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists", "message": "it exists",
            });
            let answer = match created.lock().expect("no panic").entry(name) {
                Entry::Vacant(place) => (StatusCode::CREATED, place.insert(event).to_string()),
                Entry::Occupied(_) => (StatusCode::CONFLICT, exists.to_string()),
            };
            async move { answer }
        };
        let read = move |Path(name): Path<String>| {
            let event = patched.lock().expect("no panic").get(&name).map(Value::to_string);
            async move { event.ok_or(StatusCode::NOT_FOUND) }
        };
        let router = Router::new().route(EVENTS, post(create)).route(&format!("{EVENTS}/{{name}}"), patch(read));
        (serving(router).await, kept)
    }

    async fn server(failed: usize, code: u16) -> (Client, Arc<AtomicUsize>) {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let answer = move |event: Bytes| {
            let fails = count.fetch_add(1, Ordering::Relaxed) < failed;
            let status =
                json!({"kind": "Status", "status": "Failure", "code": code, "reason": "Some", "message": "no"});
            async move {
                if fails {
                    (StatusCode::from_u16(code).expect("a code"), status.to_string().into())
                } else {
                    (StatusCode::CREATED, event)
                }
            }
        };
        (serving(Router::new().route(EVENTS, post(answer))).await, requests)
    }

    fn reporter(client: Client) -> (Reporter, watch::Receiver<GuardState>) {
        let (state, receiver) = watch::channel(GuardState::default());
        (Reporter::with(client, Duration::from_secs(60), &[Duration::ZERO; 2], state), receiver)
    }

    #[tokio::test]
    async fn an_event_that_was_not_written_does_not_silence_the_next_one_and_one_that_was_does() {
        let (client, requests) = server(2, 503).await;
        let (reporter, state) = reporter(client);
        let world = Snapshot::healthy();
        let node = world.own_node().expect("a node");
        let is_free = || reporter.overwritten.lock().expect("no panic").is_none();
        reporter.overwritten(node, "x");
        assert!(!is_free());
        while !is_free() {
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(requests.load(Ordering::Relaxed), 2, "both attempts failed");
        assert_eq!(state.borrow().unwritten_events, 1);
        for _ in 0..3 {
            reporter.overwritten(node, "x");
            while requests.load(Ordering::Relaxed) < 3 {
                sleep(Duration::from_millis(5)).await;
            }
        }
        sleep(Duration::from_millis(200)).await;
        assert!(!is_free());
        assert_eq!(requests.load(Ordering::Relaxed), 3, "one Event an hour");
    }

    #[tokio::test]
    async fn an_event_that_the_api_server_refuses_is_counted_and_not_tried_again() {
        for code in [400, 403, 404, 422] {
            let (client, requests) = server(usize::MAX, code).await;
            let (reporter, mut state) = reporter(client);
            let world = Snapshot::healthy();
            let node = world.own_node().expect("a node");
            reporter.overwritten(node, "x");
            state.wait_for(|state| state.unwritten_events == 1).await.expect("the sender lives");
            reporter.overwritten(node, "x");
            sleep(Duration::from_millis(200)).await;
            assert_eq!(requests.load(Ordering::Relaxed), 1, "{code}");
            assert_eq!(*reporter.failed.lock().expect("no panic"), [code].into());
        }
    }

    fn world() -> Snapshot {
        Snapshot::healthy().service("web", |it| it.node_port(30080))
    }

    fn conflict_of(answer: Answer) -> Conflict {
        let bind = Bind {
            pid: 7,
            uid: 0,
            name: "squatter".to_owned(),
            cgroup: 9,
            protocol: Protocol::Tcp,
            at: "0.0.0.0:30080".parse().expect("an address"),
            claim: ClaimId(30080),
            answer,
        };
        let group = Cgroup { path: UNIT.to_owned(), pod: None };
        let judged = conflict(&world(), &bind, Ok(group), Duration::ZERO);
        judged.expect("each input was read").expect("a conflict")
    }

    #[tokio::test]
    async fn a_bind_and_the_scan_of_its_listener_are_one_event_and_the_agent_writes_its_end() {
        let (client, kept) = keeping().await;
        let (conflict, place, at) = (conflict_of(Answer::Allowed), Place::of(&world(), None), now());
        let (reporter, _state) = reporter(client.clone());
        assert!(reporter.write(bind_event(&conflict, &place, at).expect("an Event")).await);
        let events = || kept.lock().expect("no panic").clone();
        let first = events();
        let (name, event) = first.first_key_value().expect("an Event");
        assert_eq!((&event["regarding"]["name"], &event["related"]["name"]), (&json!("web"), &json!("n1")));
        assert_eq!((&event["reportingController"], &event["action"]), (&json!("portreeve"), &json!("ReportBind")));
        let note = event["note"].as_str().expect("a note");
        assert!(note.starts_with("On node n1: 30080/tcp is the NodePort of Service default/web, and"), "{note}");

        let scanned = world().listens_as("0.0.0.0:30080", held(UNIT, None, "squatter", 7));
        let findings = crate::judge(&scanned, &Limits::default()).findings;
        let found = findings.into_iter().find(|finding| finding.key == conflict.key).expect("a finding");
        let (recorder, _writing) = Recorder::start(client, Duration::from_secs(60), None, move || at, || 0.0);
        recorder.offer(at, &[Change::Raised(found.clone())], &place);
        recorder.idle().await;
        assert_eq!((recorder.counters().deduplicated, events()), (1, first.clone()), "no second Event");
        recorder.offer(at, &[Change::Cleared(found, Clearance::Repaired)], &place);
        recorder.idle().await;
        let names: Vec<String> = events().into_keys().collect();
        assert_eq!(names, [name.clone(), format!("{name}.resolved")]);
    }

    #[test]
    fn a_bind_takes_the_event_about_a_listener_of_another_process() {
        let (conflict, place, at) = (conflict_of(Answer::Allowed), Place::of(&world(), None), now());
        let event = bind_event(&conflict, &place, at).expect("an Event");
        let scanned = world().listens_as("0.0.0.0:30080", held("/system.slice/rival.service", None, "rival", 8));
        let findings = crate::judge(&scanned, &Limits::default()).findings;
        let found = findings.iter().find(|finding| finding.key == conflict.key).expect("a finding");
        let of_agent = finding_event(found, &place, at).expect("an Event");
        assert_eq!(of_agent.metadata.name, event.metadata.name, "the API server keeps the first Event");
        let note = event.note.expect("a note");
        assert!(note.contains("squatter") && !note.contains("rival"), "{note}");
    }

    #[test]
    fn a_bind_that_passed_is_no_event_about_a_refusal_if_its_object_has_no_uid() {
        let of = |answer| {
            let mut conflict = conflict_of(answer);
            conflict.key.subject.uid = None;
            bind_event(&conflict, &Place::of(&world(), None), now()).and_then(|event| event.action)
        };
        assert_eq!([of(Answer::Allowed), of(Answer::Refused)], [None, Some("RefuseBind".to_owned())]);
    }

    #[test]
    fn a_refused_bind_is_an_event_about_its_process_because_no_scan_finds_a_listener() {
        let event = bind_event(&conflict_of(Answer::Refused), &Place::of(&world(), None), now()).expect("an Event");
        let name = |object: Option<ObjectReference>| object.and_then(|object| object.name).unwrap_or_default();
        assert_eq!((name(event.regarding), name(event.related)), ("n1".to_owned(), "web".to_owned()));
        assert_eq!(event.reporting_controller.as_deref(), Some("portreeve-guard"));
        assert_eq!(event.action.as_deref(), Some("RefuseBind"));
        let annotations = event.metadata.annotations.expect("annotations");
        assert_eq!(annotations["portreeve/finding"], "listener-on-node-port/loses");
    }
}
