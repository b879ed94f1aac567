//! The cluster: reads Services, EndpointSlices, Pods, Nodes and settings, and converts them to `facts`. The sources are
//! files or an API server, which is read once or watched.
//!
//! All sources add their objects to a `FactsBuilder`, which makes [`ClusterFacts`]. If the API server would refuse an
//! object, the object is rejected by name, and the other objects are kept. Input that could not be read is marked as
//! unread.
//!
//! For each kind of object, the module `objects` has one struct with the fields that `facts` need. Objects are read one
//! at a time, so that memory stays small (`docs/performance.md`).
//!
//! The crate never keeps an object of Kubernetes after its conversion, never judges, and never reads the node.

#![allow(clippy::disallowed_methods, reason = "reads the files that a person named")]

mod agents;
pub mod answer;
mod cilium_node_configs;
mod cilium_settings;
mod cluster_source;
mod collection;
pub mod component_config;
pub mod connect;
mod credential_plugin;
mod declared;
pub mod error;
pub mod facts_builder;
mod flags;
pub mod input;
mod input_meter;
mod jitter;
mod list_reader;
mod manifest_files;
pub mod manifests;
mod nodes;
mod object_reader;
pub mod objects;
mod pages;
mod read_once;
mod reader_token;
mod reconnecting_client;
mod requests;
mod reviews;
pub mod settings;
mod settings_places;
mod tree;
mod waiting_pods;
pub mod watch;
mod yaml_documents;
mod yaml_options;

use std::io;

use tokio::{runtime, task};

use self::facts_builder::FactsBuilder;
pub use self::{
    agents::{Agent, AgentPlace, AgentRequest, Agents},
    answer::retry_after,
    cluster_source::{ClusterSource, Environment, SourceOptions},
    connect::{Access, ApiServer, Credentials, Impersonation},
    declared::Declared,
    input::{Accepted, Input, OpenInput},
    jitter::jitter,
    manifest_files::{ManifestFiles, read_manifests},
    reconnecting_client::client,
    reviews::{Review, Reviewer, TOKEN_HEADER},
    watch::{ClusterView, EndpointsOf, Resource, ResourceStatus, Watch, WatchTiming},
};
use portreeve_facts::{ClusterFacts, Gap, Reading, Source, Why};

/// Reads everything from `source`. Files must be regular files, so that they can be read again. `node` is this node's
/// name, from the configuration or the downward API. Without `node`, this node is the Node whose name or Hostname
/// address is `hostname`. The function always returns facts. Each fact that was not read has its own reason.
pub async fn read(source: &ClusterSource, node: Option<&str>, hostname: &str) -> ClusterFacts {
    match source {
        ClusterSource::None => nothing(node),
        ClusterSource::Files(inputs) => {
            let (inputs, node, hostname) = (inputs.clone(), node.map(str::to_owned), hostname.to_owned());
            let reader =
                task::spawn_blocking(move || of_files(&inputs, Accepted::RegularFiles, node.as_deref(), &hostname));
            // A panic in the reader is a bug, and must not make the cluster look empty.
            reader.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
        }
        // This future needs 80 KiB. The box on the heap keeps the futures of the callers small.
        ClusterSource::Api(access) => Box::pin(read_once::read(access, node, hostname)).await.0,
    }
}

/// Reads everything from `source` as [`read`] does, but only once. So the source can also be a pipe. The function
/// blocks: do not call it on an async runtime.
///
/// # Errors
/// Fails if the operating system has no resources left to wait for an API server.
pub fn read_now(source: &ClusterSource, node: Option<&str>, hostname: &str) -> io::Result<ClusterFacts> {
    Ok(read_with_namespace(source, node, hostname)?.0)
}

/// Like [`read_now`]. Also returns the default namespace, as in kubectl: the namespace of the context, or of the pod.
/// `None` if the source is not an API server, or if the credentials could not be read.
///
/// # Errors
/// Like [`read_now`].
pub fn read_with_namespace(
    source: &ClusterSource,
    node: Option<&str>,
    hostname: &str,
) -> io::Result<(ClusterFacts, Option<String>)> {
    Ok(match source {
        ClusterSource::None => (nothing(node), None),
        ClusterSource::Files(inputs) => (of_files(inputs, Accepted::Anything, node, hostname), None),
        ClusterSource::Api(access) => {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            let read = runtime.block_on(read_once::read(access, node, hostname));
            // A read from a file may hang. The program does not wait for this read.
            runtime.shutdown_background();
            read
        }
    })
}

fn of_files(inputs: &[Input], accepted: Accepted, node: Option<&str>, hostname: &str) -> ClusterFacts {
    let origin = inputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let facts = manifests::read(inputs, accepted);
    let node = facts.node_name(node, hostname);
    let mut facts = facts.finish(origin, true, node);
    if let Some(doubt) = facts.services_in_doubt() {
        facts.origin = format!("{} ({doubt})", facts.origin);
    }
    // If the files lack Services, the missing Services are reported as items that could not be read.
    let lacking = facts.lacks_services();
    facts.rejected.extend(lacking);
    facts
}

fn nothing(node: Option<&str>) -> ClusterFacts {
    unread("none", node.map(str::to_owned), Why::NotRequested, "no cluster was given")
}

/// The facts if nothing was read. All facts have the same reason. If no cluster was requested, the default NodePort
/// range is assumed. Otherwise the range is missing too.
pub fn unread(origin: &str, node: Option<String>, why: Why, detail: &str) -> ClusterFacts {
    let configured = why != Why::NotRequested;
    let mut facts = FactsBuilder::default();
    Resource::ALL.into_iter().for_each(|it| facts.mark_missing(Gap::new(it.source(), why, detail)));
    let mut facts = facts.finish(origin.to_owned(), configured, node);
    if configured {
        facts.node_port_range = Reading::Gap(Gap::new(Source::NodePortRange, why, detail));
    }
    facts
}
