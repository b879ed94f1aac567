//! Reads Pods that have no Node, of all namespaces, and keeps those that wait for free ports.
//!
//! Nobody but the scheduler knows them: they are on no Node, so no agent sees them among its own. RBAC for Pods is granted
//! already. The server finds Pods by Node with an index of its cache, and there are few without one, so the answer is
//! small where nothing is wrong. What is not kept is dropped as soon as it is parsed.

use serde_json::value::RawValue;

use super::{
    answer::ObjectSink,
    collection::Collection,
    error::Error,
    facts_builder::FactsBuilder,
    objects::{Object, Pod},
    pages::Recency,
    requests::{Server, encoded},
};

/// The field selector of Pods that nobody has given a Node yet.
const WITHOUT_NODE: &str = "spec.nodeName=,status.phase=Pending";

/// Every Pod that waits for free ports, and nothing else.
pub(super) async fn read(server: &Server) -> Result<FactsBuilder, Error> {
    let selector = format!("&fieldSelector={}", encoded(WITHOUT_NODE));
    let list = server.pages::<Pod, _>(&Collection::of::<Pod>(), &selector, Recency::Any, WaitingOnly::default).await;
    list.map(|(WaitingOnly(facts), _)| facts)
}

/// Keeps waiting Pods only: a server that does not know the selector may send others.
#[derive(Debug, Default)]
struct WaitingOnly(FactsBuilder);

impl ObjectSink for WaitingOnly {
    fn add<K: Object>(&mut self, place: &str, object: &RawValue) {
        let mut one = FactsBuilder::default();
        one.add::<K>(place, object);
        self.0.waiting_pods.append(&mut one.waiting_pods);
    }
}
