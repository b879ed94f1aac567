//! The cluster: reads Services, EndpointSlices, Pods, Nodes and settings from files or from an API server, once or by
//! watching it, and says them in our words.
//!
//! Several sources, one result: all feed `Gathered` with wire objects, and [`ClusterFacts`] come out. What has the wrong
//! shape is named and left out, the rest is kept; what could not be read is a gap.
//!
//! Never: keeps an object of Kubernetes after its conversion, judges, or reads the node.

#![allow(clippy::disallowed_methods, reason = "reads the files that a person named")]

mod access;
mod agents;
mod api;
mod connect;
mod convert;
mod document;
mod embedded;
mod error;
mod field;
mod flags;
mod gathered;
mod managed;
mod manifests;
mod renewed;
mod requests;
mod settings;
mod source;
mod values;
mod watch;
mod wire;
mod yaml_documents;

use tokio::task;

use self::gathered::Gathered;
pub use self::{
    access::{ACCESS, Grant},
    agents::{Agent, Agents, Question},
    connect::{Access, ApiServer, Credentials, Persona},
    manifests::Input,
    renewed::client,
    source::{Choice, ClusterSource, Environment},
    watch::{Pace, Resource, Standing, View, Watch},
};
use crate::facts::{ClusterFacts, Gap, Source, Why};

/// Everything that `source` tells. `node` is this node's name where a person or the downward API said it; `hostname`
/// finds it among the Nodes otherwise. Never fails as a whole: each fact carries its own gap.
pub async fn read(source: &ClusterSource, node: Option<&str>, hostname: &str) -> ClusterFacts {
    match source {
        ClusterSource::None => nothing(node),
        ClusterSource::Files(inputs) => {
            let origin = inputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let wanted = inputs.clone();
            let reader = task::spawn_blocking(move || manifests::read(&wanted));
            // A panic in the reader is a bug; it must not be mistaken for an empty cluster.
            let gathered = reader.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
            let node = gathered.node_name(node, hostname);
            gathered.finish(origin, true, node)
        }
        ClusterSource::Api(access) => {
            let (origin, node, gathered) = api::read(access, node, hostname).await;
            gathered.finish(origin, true, node)
        }
    }
}

/// No cluster was given: everything is unknown, and the range is assumed.
fn nothing(node: Option<&str>) -> ClusterFacts {
    let mut gathered = Gathered::default();
    for source in [Source::Services, Source::EndpointSlices, Source::Pods, Source::Nodes, Source::ConfigMaps] {
        gathered.lack(Gap::new(source, Why::NotAsked, "no cluster was given"));
    }
    gathered.finish("none".to_owned(), false, node.map(str::to_owned))
}
