//! The task behind a watch: runs watchers and pollers, and applies their updates.

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
    index::Index,
    poll::{poll_nodes, poll_settings, poll_waiting_pods},
    resource::Resource,
    resource_feed::ResourceFeed,
    selection::Selection,
    timing::WatchTiming,
    update::Update,
    view::ViewWriter,
    watcher::watcher,
};
use crate::{
    connect::Access,
    error::Error,
    objects::{EndpointSlice, Pod, Service},
};

/// Updates that may wait to be applied.
const QUEUE: usize = 256;

/// The names of the Services whose endpoints are needed. To need all, name all.
pub type EndpointsOf = watch::Receiver<Arc<BTreeSet<String>>>;

/// The selections of the resources whose selection changes.
type Selections = BTreeMap<Resource, watch::Sender<Option<Selection>>>;

/// All of it is one task: if a part panics, everything ends, and the view with it.
pub(super) async fn run(access: Access, timing: WatchTiming, mut endpoints_of: EndpointsOf, view: ViewWriter) {
    let (updates, mut incoming) = mpsc::channel(QUEUE);
    let (pods, pod_selections) = watch::channel(None);
    let (slices, slice_selections) = watch::channel(view.index(|index| index.needed(Resource::EndpointSlices)));
    let (_services, service_selections) = watch::channel(Some(Selection::Served));
    let (node_count, nodes) = watch::channel(0);
    let own = view.index(|index| index.configured_node().map(str::to_owned));
    let allowance = view.index(|index| Arc::clone(index.allowance()));
    let feed = |resource| ResourceFeed {
        resource,
        access: access.clone(),
        timing: timing.clone(),
        updates: updates.clone(),
        known: view.known(resource),
        allowance: Arc::clone(&allowance),
    };
    let selections = Selections::from([(Resource::Pods, pods), (Resource::EndpointSlices, slices)]);
    join!(
        watcher::<Service>(feed(Resource::Services), service_selections),
        watcher::<EndpointSlice>(feed(Resource::EndpointSlices), slice_selections),
        watcher::<Pod>(feed(Resource::Pods), pod_selections),
        poll_nodes(feed(Resource::Nodes), own.as_deref(), node_count),
        poll_waiting_pods(feed(Resource::WaitingPods), nodes),
        poll_settings(feed(Resource::Settings), own.as_deref()),
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

/// Applies one update; a failure is logged when it begins and when it ends.
fn apply(view: &ViewWriter, resource: Resource, (update, at): (Update, Instant), selections: &Selections) {
    // Nothing else changes what has to be read.
    let steers = resource == Resource::Nodes || matches!(update, Update::EndpointsNeeded(_));
    let what_becomes = what_becomes_of_what_is_known(&update);
    let failure = |index: &Index| index.failure(resource).map(|gap| (gap.why, gap.detail.clone()));
    let before = view.index(failure);
    let changed = view.update(|index| index.apply(resource, update, at));
    match (before, view.index(failure)) {
        (was, Some((why, detail))) if was.as_ref().is_none_or(|(was, _)| *was != why) => {
            warn!(resource = resource.name(), detail, "cannot read the cluster; {what_becomes}");
        }
        (Some(_), None) => info!(resource = resource.name(), "the cluster can be read again"),
        _ => {}
    }
    if changed && steers {
        view.index(|index| send_selections(index, selections));
    }
}

/// What a failure does to what is known, for the log.
fn what_becomes_of_what_is_known(update: &Update) -> &'static str {
    match update {
        Update::Failed(Error::TooMuch { .. }) => "what was known of it is forgotten",
        _ => "what is known is kept",
    }
}

/// Sends the selections that follow from what is known. A selection that still serves stays as it is.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::cached_object::ObjectBatch;

    #[test]
    fn the_log_says_that_what_was_too_much_is_forgotten_as_it_is() {
        let failures = [
            Error::TooMuch { request: "GET x".to_owned(), what: "it is large".to_owned() },
            Error::Unreachable { request: "GET x".to_owned(), what: "it is gone".to_owned() },
        ];
        for failure in failures {
            let mut index = Index::new(Some("n1".to_owned()), String::new(), Arc::default());
            let empty = Update::Replaced(Selection::Served, ObjectBatch::default());
            index.apply(Resource::Services, empty, Instant::now());
            let failed = Update::Failed(failure);
            let says = what_becomes_of_what_is_known(&failed);
            index.apply(Resource::Services, failed, Instant::now());
            let is_kept = index.facts().services.seen().is_some();
            assert_eq!(says.contains("kept"), is_kept, "{says}");
        }
    }
}
