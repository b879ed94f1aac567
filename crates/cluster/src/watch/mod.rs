//! A live view of the cluster, kept up to date by watches and polls. A watch begins with the present state, object by
//! object, if the server supports this. Otherwise a LIST comes before the watch.
//!
//! ```text
//! watcher (Services) ───────┐
//! watcher (EndpointSlices) ─┤                        selections: which Pods, which EndpointSlices
//! watcher (Pods) ───────────┼─ Update ─> Index ─┬──────────────────────────────> watchers
//! poll (Nodes, settings) ───┤                   └─> ClusterView: facts, on request
//! EndpointsOf ──────────────┘
//! ```
//!
//! A resource is used only after its first complete read. A later failure does not remove the objects. Until the
//! watcher recovers, the objects become older, and [`ResourceStatus`] has their age.
//!
//! Services and the Pods of this node are always watched. Pods show who owns a socket, and which hostPorts are used.
//! EndpointSlices change with every pod of the cluster, but rules need the EndpointSlices of only a few Services. Only
//! the EndpointSlices that rules need now are watched.
//!
//! Nodes are polled, not watched, although rules need the addresses of all Nodes. A kubelet changes its Node every five
//! minutes. If 5,000 agents watched 5,000 Nodes, the server would send 80,000 changes a second (`docs/performance.md`).
//! Pods that wait for free ports are polled too. Every new Pod of the cluster has no Node for a moment, so a watch
//! would get every new Pod.

pub mod index;
mod patience;
mod poll;
mod position;
mod reading_pace;
pub mod resource;
mod resource_feed;
mod run;
pub mod selection;
mod timing;
mod view;
pub mod watch_event;
mod watcher;

use std::sync::Arc;

use tokio::task::JoinHandle;

use self::{index::Index, view::ViewWriter};
pub use self::{
    resource::{Resource, ResourceStatus},
    run::EndpointsOf,
    timing::WatchTiming,
    view::ClusterView,
};
use super::connect::Access;

/// The watches, which end when this value is dropped.
#[derive(Debug)]
pub struct Watch(JoinHandle<()>);

impl Watch {
    /// Watches these resources of the API server. `node` is this node's name, from the configuration or the downward
    /// API. Without `node`, this node is the Node whose name or Hostname address is `hostname`.
    ///
    /// Endpoints are read for the Services whose names are in `endpoints_of`. The facts also contain these names.
    ///
    /// Readers of the view are notified of changes. The view ends only if the watches end, which is a bug.
    pub fn start(
        access: Access,
        resources: &[Resource],
        node: Option<String>,
        hostname: String,
        mut endpoints_of: EndpointsOf,
        timing: WatchTiming,
    ) -> (Self, ClusterView) {
        let index = Index::new(node, hostname, Arc::clone(&endpoints_of.borrow_and_update())).only(resources);
        let (writer, view) = ViewWriter::new(index);
        (Self(tokio::spawn(run::run(access, timing, endpoints_of, writer))), view)
    }

    /// Waits until the watches end, and returns the reason. An end is a bug.
    pub async fn ended(&mut self) -> String {
        (&mut self.0).await.map_or_else(|panicked| panicked.to_string(), |()| "they returned".to_owned())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}
