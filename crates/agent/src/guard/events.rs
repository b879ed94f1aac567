//! Events of the guard: on its Node, and on pods that bind claimed ports.

use std::time::{Duration, Instant};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, Error, api::PostParams};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{binds::Conflict, now};
use crate::events::{NOTE, hash, reference};
use portreeve_cluster::{self as cluster, ClusterSource};
use portreeve_facts::{Node, text};
use portreeve_rules::findings::Subject;

/// From one Event to the next.
const PAUSE: Duration = Duration::from_secs(3600);
/// The waits before each attempt to write an Event.
const ATTEMPTS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(45),
    Duration::from_secs(135),
];
/// Events about a Node are here.
const NAMESPACE: &str = "default";

/// Writes an Event an hour about the list, and never waits for the API server.
pub(super) struct Reporter {
    client: Client,
    limit: Duration,
    written: Option<Instant>,
}

impl Reporter {
    /// A writer, if the cluster has an API server. Needs a tokio runtime.
    pub(super) fn of(cluster: &ClusterSource) -> Option<Self> {
        match cluster {
            ClusterSource::Api(access) => {
                Some(Self { client: cluster::client(access.clone()), limit: access.request_timeout, written: None })
            }
            ClusterSource::Files(_) | ClusterSource::None => None,
        }
    }

    /// Another program removed ports from the list.
    pub(super) fn overwritten(&mut self, node: &Node, note: &str) {
        if self.written.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        self.written = Some(Instant::now());
        let name = hash(&["guard", &node.name, &now().as_microsecond().to_string()]);
        let mut event = event(
            &format!("portreeve.{name:032x}"),
            &node.name,
            reference("Node", None, &node.name, node.uid.as_deref()),
        );
        event.action = Some("ReservePorts".to_owned());
        event.reason = Some("ReservedPortsOverwritten".to_owned());
        event.note = Some(text::clean(note, NOTE));
        self.write(event);
    }

    /// A claimed port was bound, or a bind was refused. The same again has the same name for an hour.
    pub(super) fn bound(&self, conflict: &Conflict, is_refused: bool, node: &str) {
        let Conflict { key, maker, note } = conflict;
        let number = |it: &dyn ToString| it.to_string();
        let hour = now().as_second() / 3600;
        let name = hash(&[
            "bind",
            key.rule.0,
            key.variant,
            &key.subject.to_string(),
            &key.port.map(|port| number(&port)).unwrap_or_default(),
            &key.protocol.map(|protocol| number(&protocol)).unwrap_or_default(),
            &maker.to_string(),
            node,
            &number(&is_refused),
            &number(&hour),
        ]);
        let mut event = event(&format!("portreeve.{name:032x}"), node, of(maker));
        event.action = Some(if is_refused { "RefuseBind" } else { "ReportBind" }.to_owned());
        event.reason = Some(key.rule.reason());
        event.related = Some(of(&key.subject));
        event.note = Some(text::clean(note, NOTE));
        self.write(event);
    }

    /// Events about binds are bounded before they are here, so that at most some sixty wait at a time.
    fn write(&self, event: Event) {
        let namespace = event.metadata.namespace.as_deref().unwrap_or(NAMESPACE);
        let (events, limit) = (Api::<Event>::namespaced(self.client.clone(), namespace), self.limit);
        tokio::spawn(async move {
            let parameters = PostParams::default();
            let mut failure = String::new();
            for wait in ATTEMPTS {
                sleep(wait).await;
                failure = match timeout(limit, events.create(&parameters, &event)).await {
                    Ok(Ok(_)) => return,
                    Ok(Err(Error::Api(status))) if status.reason == "AlreadyExists" => return,
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "no answer in time".to_owned(),
                };
            }
            warn!(failure = text::clean(&failure, 256), "cannot write an Event, and will not try again");
        });
    }
}

fn of(subject: &Subject) -> ObjectReference {
    reference(subject.kind.name(), subject.namespace.as_deref(), &subject.name, subject.uid.as_deref())
}

/// An Event of the guard on this node.
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
