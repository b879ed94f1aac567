//! The claims to ports of all nodes, read once, for a user whose cluster has no agents.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::{
    collection::Collection,
    facts_builder::FactsBuilder,
    objects,
    pages::Recency,
    requests::{JSON, Server, encoded},
    watch::selection::Selection,
};
use portreeve_facts::{Gap, Pod, Reading, Service, Source};

const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// The claims to ports of nodes.
#[derive(Debug)]
pub struct Declared {
    /// Services with ports that kube-proxy or its replacement serves.
    pub services: Reading<Vec<Arc<Service>>>,
    /// Pods that need ports of their nodes.
    pub pods: Reading<Vec<Arc<Pod>>>,
    /// Objects that could not be used.
    pub rejected: Vec<Gap>,
}

/// Reads the Services and Pods. Each of these lists has its own limit.
pub(super) async fn read(server: &Server) -> Declared {
    let mut rejected = Vec::new();
    let services = Collection::of::<objects::Service>();
    let services = server.list::<objects::Service>(&services, &Selection::Served.query()).await.map(|facts| {
        rejected.extend_from_slice(facts.rejected());
        facts.services
    });
    let selector = format!("&fieldSelector={}", encoded(NOT_ENDED));
    let pods = server
        .pages(JSON, &Collection::of::<objects::Pod>(), &selector, Recency::Any, FactsBuilder::default, add_of_nodes)
        .await;
    let pods = pods.map(|(facts, _)| {
        rejected.extend_from_slice(facts.rejected());
        facts.pods
    });
    Declared {
        services: services.map_err(|error| error.gap(Source::Services)).into(),
        pods: pods.map_err(|error| error.gap(Source::Pods)).into(),
        rejected,
    }
}

/// Adds the pod only if it needs ports of its node. A cluster has few such pods.
fn add_of_nodes(facts: &mut FactsBuilder, place: &str, object: &RawValue) {
    let mut one = FactsBuilder::default();
    one.add::<objects::Pod>(place, object);
    one.pods.retain(|pod| pod.node_ports().next().is_some());
    facts.pods.append(&mut one.pods);
    for gap in one.rejected() {
        facts.reject(gap.clone());
    }
}
