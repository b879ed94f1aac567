//! The task behind a watch: runs watchers and pollers, applies their updates, and publishes a view when facts change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use tokio::{
    join,
    sync::{mpsc, watch},
    time::{Instant, timeout_at},
};
use tracing::{info, warn};

use super::{
    index::Index,
    poll::{poll_nodes, poll_settings},
    resource::{Resource, ResourceStatus},
    resource_feed::ResourceFeed,
    selection::Selection,
    timing::WatchTiming,
    update::Update,
    watcher::watcher,
};
use crate::{
    cluster::{collection::Collection, connect::Access},
    facts::ClusterFacts,
};

/// Updates that may wait to be applied.
const QUEUE: usize = 256;

/// The names of the Services whose endpoints are needed. To need all, name all.
pub type EndpointsOf = watch::Receiver<Arc<BTreeSet<String>>>;

/// What is known of the cluster.
#[derive(Clone, Debug)]
pub struct ClusterView {
    /// The facts; each resource that was never read as a whole is a gap.
    pub facts: Arc<ClusterFacts>,
    /// How fresh the knowledge of each resource is.
    pub statuses: BTreeMap<Resource, ResourceStatus>,
}

/// All of it is one task: if a part panics, everything ends, and the receivers see their channel close.
pub(super) async fn run(
    access: Access,
    timing: WatchTiming,
    index: Index,
    mut endpoints_of: EndpointsOf,
    views: watch::Sender<Arc<ClusterView>>,
) {
    let (updates, incoming) = mpsc::channel(QUEUE);
    let (pods, pod_selections) = watch::channel(None);
    let (slices, slice_selections) = watch::channel(index.needed(Resource::EndpointSlices));
    let (_services, service_selections) = watch::channel(Some(Selection::Served));
    let own = index.configured_node().map(str::to_owned);
    let feed =
        |resource| ResourceFeed { resource, access: access.clone(), timing: timing.clone(), updates: updates.clone() };
    let selections = BTreeMap::from([(Resource::Pods, pods), (Resource::EndpointSlices, slices)]);
    join!(
        watcher(feed(Resource::Services), Collection::of::<Service>(), service_selections),
        watcher(feed(Resource::EndpointSlices), Collection::of::<EndpointSlice>(), slice_selections),
        watcher(feed(Resource::Pods), Collection::of::<Pod>(), pod_selections),
        poll_nodes(feed(Resource::Nodes), own.as_deref()),
        poll_settings(feed(Resource::Settings)),
        async {
            while endpoints_of.changed().await.is_ok() {
                let names = Arc::clone(&endpoints_of.borrow_and_update());
                let update = (Resource::EndpointSlices, Update::EndpointsNeeded(names));
                updates.send(update).await.expect("the publisher lives");
            }
        },
        publish(index, incoming, &selections, &views, timing.debounce),
    );
}

/// Applies updates, and publishes what becomes of them.
async fn publish(
    mut index: Index,
    mut incoming: mpsc::Receiver<(Resource, Update)>,
    selections: &BTreeMap<Resource, watch::Sender<Option<Selection>>>,
    views: &watch::Sender<Arc<ClusterView>>,
    debounce: Duration,
) {
    while let Some((resource, update)) = incoming.recv().await {
        let began = Instant::now();
        let mut changed = apply(&mut index, resource, update);
        if changed {
            send_selections(&index, selections);
        }
        // Changes come in bursts. The endpoints of a new Service are worth a longer wait than the next burst.
        loop {
            let end = began + if index.is_settled() { debounce } else { 4 * debounce };
            let Ok(Some((resource, update))) = timeout_at(end, incoming.recv()).await else { break };
            if apply(&mut index, resource, update) {
                changed = true;
                send_selections(&index, selections);
            }
        }
        let fresh = changed.then(|| Arc::new(index.facts()));
        views.send_if_modified(|view| {
            let fresh = fresh.filter(|fresh| *fresh != view.facts);
            let differs = fresh.is_some();
            let facts = fresh.unwrap_or_else(|| Arc::clone(&view.facts));
            *view = Arc::new(ClusterView { facts, statuses: index.statuses() });
            differs
        });
    }
}

/// Applies one update; a failure is logged when it begins and when it ends. True if facts may have changed.
fn apply(index: &mut Index, resource: Resource, update: Update) -> bool {
    let before = index.failure(resource).map(|gap| gap.why);
    let changed = index.apply(resource, update, Instant::now());
    match (before, index.failure(resource)) {
        (was, Some(gap)) if was != Some(gap.why) => {
            warn!(resource = resource.name(), detail = %gap.detail, "cannot read the cluster; what is known is kept");
        }
        (Some(_), None) => info!(resource = resource.name(), "the cluster can be read again"),
        _ => {}
    }
    changed
}

/// Sends the selections that follow from what is known. A selection that still serves stays as it is.
fn send_selections(index: &Index, selections: &BTreeMap<Resource, watch::Sender<Option<Selection>>>) {
    for (resource, sender) in selections {
        let Some(needed) = index.needed(*resource) else { continue };
        sender.send_if_modified(|selection| {
            let new = !selection.as_ref().is_some_and(|selection| selection.serves(&needed));
            if new {
                *selection = Some(needed);
            }
            new
        });
    }
}
