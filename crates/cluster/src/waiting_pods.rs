//! Reads Pods that have no Node, in all namespaces, and keeps the Pods that wait for free ports.
//!
//! A Pod without a Node is not among the Pods of any agent's node. Agents already have the right to read all Pods. The
//! server has an index of Pods by Node, and few Pods have no Node. So the answer is small on a healthy cluster. Pods
//! that wait for other reasons are dropped when they are parsed.

use serde_json::value::RawValue;

use super::{
    answer::ObjectSink,
    collection::Collection,
    error::Error,
    facts_builder::FactsBuilder,
    objects::{Object, Pod},
    pages::Recency,
    requests::{JSON, Server, encoded},
};

const WITHOUT_NODE: &str = "spec.nodeName=,status.phase=Pending";

pub(super) async fn read(server: &Server) -> Result<FactsBuilder, Error> {
    let selector = format!("&fieldSelector={}", encoded(WITHOUT_NODE));
    let list =
        server.pages::<Pod, _>(JSON, &Collection::of::<Pod>(), &selector, Recency::Any, WaitingOnly::default).await;
    list.map(|(WaitingOnly(facts), _)| facts)
}

/// Keeps only waiting Pods. A server without the field selector may send all Pods.
#[derive(Debug, Default)]
struct WaitingOnly(FactsBuilder);

impl ObjectSink for WaitingOnly {
    fn add<K: Object>(&mut self, place: &str, object: &RawValue) {
        let mut one = FactsBuilder::default();
        one.add::<K>(place, object);
        self.0.waiting_pods.append(&mut one.waiting_pods);
    }
}
