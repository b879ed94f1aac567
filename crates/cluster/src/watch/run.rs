//! The task of a watch: runs watchers and pollers, and applies their updates.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::{
    join,
    sync::{mpsc, watch},
    time::Instant,
};
use tracing::{info, warn};

use super::{
    index::{Index, Update},
    poll::{poll_nodes, poll_settings, poll_waiting_pods},
    resource::Resource,
    resource_feed::ResourceFeed,
    selection::Selection,
    timing::WatchTiming,
    view::ViewWriter,
    watcher::watcher,
};
use crate::{
    connect::Access,
    objects::{EndpointSlice, Pod, Service},
};

const QUEUE: usize = 256;

/// The names of all Services whose endpoints are needed.
pub type EndpointsOf = watch::Receiver<Arc<BTreeSet<String>>>;

type Selections = BTreeMap<Resource, watch::Sender<Option<Selection>>>;

/// Runs all watchers and pollers. If one watcher or poller panics, all watchers and pollers end, and the view ends too.
pub(super) async fn run(access: Access, timing: WatchTiming, mut endpoints_of: EndpointsOf, view: ViewWriter) {
    let (updates, mut incoming) = mpsc::channel(QUEUE);
    let (pods, pod_selections) = watch::channel(None);
    let (slices, slice_selections) = watch::channel(view.index(|index| index.needed(Resource::EndpointSlices)));
    let (_services, service_selections) = watch::channel(Some(Selection::Served));
    let (node_count, nodes) = watch::channel(0);
    let own = view.index(|index| index.configured_node().map(str::to_owned));
    let feed = |resource| ResourceFeed {
        resource,
        access: access.clone(),
        timing: timing.clone(),
        updates: updates.clone(),
        known: view.known(resource),
    };
    let reads = |resource| view.index(|index| index.reads(resource));
    let selections = Selections::from([(Resource::Pods, pods), (Resource::EndpointSlices, slices)]);
    join!(
        watcher::<Service>(feed(Resource::Services), service_selections),
        watcher::<Pod>(feed(Resource::Pods), pod_selections),
        poll_nodes(feed(Resource::Nodes), own.as_deref(), node_count),
        async {
            if reads(Resource::EndpointSlices) {
                watcher::<EndpointSlice>(feed(Resource::EndpointSlices), slice_selections).await;
            }
        },
        async {
            if reads(Resource::WaitingPods) {
                poll_waiting_pods(feed(Resource::WaitingPods), nodes).await;
            }
        },
        async {
            if reads(Resource::Settings) {
                poll_settings(feed(Resource::Settings), own.as_deref()).await;
            }
        },
        async {
            while endpoints_of.changed().await.is_ok() {
                let names = Arc::clone(&endpoints_of.borrow_and_update());
                let update = (Resource::EndpointSlices, Update::EndpointsNeeded(names), Instant::now());
                updates.send(update).await.expect("the index lives");
            }
        },
        async {
            while let Some((resource, update, at)) = incoming.recv().await {
                apply(&view, resource, (update, at), &selections);
            }
        },
    );
}

/// Applies an update. The beginning and the end of a failure are logged.
fn apply(view: &ViewWriter, resource: Resource, (update, at): (Update, Instant), selections: &Selections) {
    // Only Nodes and `EndpointsNeeded` can change what must be selected.
    let steers = resource == Resource::Nodes || matches!(update, Update::EndpointsNeeded(_));
    let failure = |index: &Index| index.failure(resource).map(|gap| (gap.why, gap.detail.clone()));
    let before = view.index(failure);
    let changed = view.update(|index| index.apply(resource, update, at));
    match (before, view.index(failure)) {
        (was, Some((why, detail))) if was.as_ref().is_none_or(|(was, _)| *was != why) => {
            warn!(resource = resource.name(), detail, "cannot read the cluster; the last known state is kept");
        }
        (Some(_), None) => info!(resource = resource.name(), "the cluster can be read again"),
        _ => {}
    }
    if changed && steers {
        view.index(|index| send_selections(index, selections));
    }
}

/// Sends new selections to the watchers. A selection is kept if it includes everything that is needed and is not much
/// larger.
fn send_selections(index: &Index, selections: &Selections) {
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
