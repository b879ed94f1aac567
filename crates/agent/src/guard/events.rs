//! Events of the guard on its Node.

use std::time::{Duration, Instant};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use tokio::time::timeout;
use tracing::warn;

use super::now;
use crate::events::NOTE;
use portreeve_facts::{Node, text};

/// From one Event to the next.
const PAUSE: Duration = Duration::from_secs(3600);
/// Events about a Node are here.
const NAMESPACE: &str = "default";

/// Writes an Event an hour, and never waits for the API server.
pub(super) struct Reporter {
    client: Client,
    limit: Duration,
    written: Option<Instant>,
}

impl Reporter {
    pub(super) fn new(client: Client, limit: Duration) -> Self {
        Self { client, limit, written: None }
    }

    /// Another program removed ports from the list.
    pub(super) fn overwritten(&mut self, node: &Node, note: &str) {
        if self.written.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        self.written = Some(Instant::now());
        let event = event(node, note);
        let (events, limit) = (Api::<Event>::namespaced(self.client.clone(), NAMESPACE), self.limit);
        tokio::spawn(async move {
            let parameters = PostParams::default();
            match timeout(limit, events.create(&parameters, &event)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => warn!(%error, "cannot write an Event"),
                Err(_) => warn!("cannot write an Event: no answer in time"),
            }
        });
    }
}

fn event(node: &Node, note: &str) -> Event {
    let at = now();
    let name = format!("{}.guard.{:x}", node.name, at.as_microsecond());
    Event {
        metadata: ObjectMeta { name: Some(name), namespace: Some(NAMESPACE.to_owned()), ..ObjectMeta::default() },
        event_time: Some(MicroTime(at)),
        reporting_controller: Some("portreeve-guard".to_owned()),
        reporting_instance: Some(text::clean(&format!("portreeve-guard-{}", node.name), 128)),
        action: Some("ReservePorts".to_owned()),
        reason: Some("ReservedPortsOverwritten".to_owned()),
        type_: Some("Warning".to_owned()),
        note: Some(text::clean(note, NOTE)),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.name.clone()),
            uid: node.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Event::default()
    }
}
