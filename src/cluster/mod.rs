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
mod table;
mod values;
mod watch;
mod wire;
mod yaml_documents;

use std::io;

use tokio::{runtime, task};

use self::gathered::Gathered;
pub use self::{
    access::{ACCESS, Grant},
    agents::{Agent, Agents, Question},
    connect::{Access, ApiServer, Credentials, Persona},
    manifests::Input,
    renewed::client,
    source::{Choice, ClusterSource, Environment},
    watch::{EndpointsOf, Pace, Resource, Standing, View, Watch},
};
use crate::facts::{ClusterFacts, Gap, Source, Why};

/// Everything that `source` tells. `node` is this node's name where a person or the downward API said it; `hostname`
/// finds it among the Nodes otherwise. Never fails as a whole: each fact carries its own gap.
pub async fn read(source: &ClusterSource, node: Option<&str>, hostname: &str) -> ClusterFacts {
    match source {
        ClusterSource::None => nothing(node),
        ClusterSource::Files(inputs) => {
            let (inputs, node, hostname) = (inputs.clone(), node.map(str::to_owned), hostname.to_owned());
            let reader = task::spawn_blocking(move || of_files(&inputs, node.as_deref(), &hostname));
            // A panic in the reader is a bug; it must not be mistaken for an empty cluster.
            reader.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
        }
        ClusterSource::Api(access) => of_api(access, node, hostname).await,
    }
}

/// The same for whoever has nothing else to do meanwhile. Must not be called on an async runtime.
///
/// # Errors
/// When the operating system has no means left to wait for an API server.
pub fn read_now(source: &ClusterSource, node: Option<&str>, hostname: &str) -> io::Result<ClusterFacts> {
    Ok(match source {
        ClusterSource::None => nothing(node),
        ClusterSource::Files(inputs) => of_files(inputs, node, hostname),
        ClusterSource::Api(access) => {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(of_api(access, node, hostname))
        }
    })
}

fn of_files(inputs: &[Input], node: Option<&str>, hostname: &str) -> ClusterFacts {
    let origin = inputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let gathered = manifests::read(inputs);
    let node = gathered.node_name(node, hostname);
    gathered.finish(origin, true, node)
}

async fn of_api(access: &Access, node: Option<&str>, hostname: &str) -> ClusterFacts {
    let (origin, node, gathered) = api::read(access, node, hostname).await;
    gathered.finish(origin, true, node)
}

/// No cluster was given: everything is unknown, and the range is assumed.
fn nothing(node: Option<&str>) -> ClusterFacts {
    let mut gathered = Gathered::default();
    for source in [Source::Services, Source::EndpointSlices, Source::Pods, Source::Nodes, Source::ConfigMaps] {
        gathered.lack(Gap::new(source, Why::NotAsked, "no cluster was given"));
    }
    gathered.finish("none".to_owned(), false, node.map(str::to_owned))
}
