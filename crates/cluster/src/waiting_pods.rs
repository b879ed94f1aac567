//! Reads Pods that have no Node, in all namespaces, and keeps the Pods that wait for free ports.
//!
//! A Pod without a Node is not among the Pods of any agent's node. Agents already have the right to read all Pods. The
//! server has an index of Pods by Node, and few Pods have no Node. So the answer is small on a healthy cluster. Pods
//! that wait for other reasons are dropped when they are parsed.

use serde_json::value::RawValue;

use super::{
    collection::Collection,
    error::Error,
    facts_builder::FactsBuilder,
    objects::Pod,
    pages::Recency,
    requests::{JSON, Server, encoded},
};

const WITHOUT_NODE: &str = "spec.nodeName=,status.phase=Pending";

pub(super) async fn read(server: &Server) -> Result<FactsBuilder, Error> {
    let selector = format!("&fieldSelector={}", encoded(WITHOUT_NODE));
    let pods = Collection::of::<Pod>();
    let list = server.pages(JSON, &pods, &selector, Recency::Any, FactsBuilder::default, add_waiting).await;
    list.map(|(facts, _)| facts)
}

/// Keeps only waiting Pods. A server without the field selector may send all Pods.
fn add_waiting(facts: &mut FactsBuilder, place: &str, object: &RawValue) {
    let mut one = FactsBuilder::default();
    one.add::<Pod>(place, object);
    facts.waiting_pods.append(&mut one.waiting_pods);
}
