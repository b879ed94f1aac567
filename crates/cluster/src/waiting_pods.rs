//! Reads Pods without a Node in all namespaces. Keeps the Pods that wait for free ports, and the ports of other Pods.
//!
//! An agent reads the Pods of its own node, and a Pod without a Node is not one of them. Few Pods have no Node, and the
//! server finds these Pods in its index of Pods by Node. So the answer is small in a healthy cluster. Of Pods that wait
//! for other reasons, only the ports are kept when the Pods are parsed.

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

/// Adds only waiting Pods, and the ports of Pods without a Node. A server that does not support the field selector may
/// send all Pods.
fn add_waiting(facts: &mut FactsBuilder, place: &str, object: &RawValue) {
    let mut one = FactsBuilder::default();
    one.add::<Pod>(place, object);
    facts.waiting_pods.append(&mut one.waiting_pods);
    facts.pending_ports.append(&mut one.pending_ports);
}
