//! What is known of the cluster, between the watches, which change it, and its readers, who ask for facts.
//!
//! Facts are made when they are asked for, not at every change: a Service that somebody edits all the time costs what its
//! own conversion costs, and readers decide when they can afford more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{
    cached_object::KnownObjects,
    index::Index,
    resource::{Resource, ResourceStatus},
};
use portreeve_facts::ClusterFacts;

/// What is known of the cluster now. Clones see the same, and each is notified of changes by itself.
#[derive(Clone, Debug)]
pub struct ClusterView {
    known: Arc<Mutex<Known>>,
    changes: watch::Receiver<()>,
}

/// The watches ended, which is a bug: what is known grows old from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the watches of the cluster ended")]
pub struct WatchesEnded;

#[derive(Debug)]
struct Known {
    index: Index,
    /// The facts that were made last.
    facts: Arc<ClusterFacts>,
    /// Something has changed since then.
    outdated: bool,
}

impl ClusterView {
    /// Waits until something has changed since the last call of this or of [`Self::facts`]. Many changes are one.
    ///
    /// # Errors
    /// When nothing can change any more.
    pub async fn changed(&mut self) -> Result<(), WatchesEnded> {
        self.changes.changed().await.map_err(|_| WatchesEnded)
    }

    /// The facts; each resource that was never read as a whole is a gap. They are made now, in a time that grows with
    /// the cluster, unless nothing has changed since they were made.
    pub fn facts(&mut self) -> Arc<ClusterFacts> {
        self.changes.mark_unchanged();
        locked(&self.known).facts()
    }

    /// Whether something is still being read for the first time.
    pub fn is_awaited(&self) -> bool {
        locked(&self.known).index.is_awaited()
    }

    /// Whether the endpoints of all Services of these names are known, or why they cannot be.
    pub fn holds_endpoints_of(&self, names: &BTreeSet<String>) -> bool {
        locked(&self.known).index.holds_endpoints_of(names)
    }

    /// How fresh the knowledge of each resource is. It changes without a notification.
    pub fn statuses(&self) -> BTreeMap<Resource, ResourceStatus> {
        locked(&self.known).index.statuses()
    }
}

impl Known {
    fn facts(&mut self) -> Arc<ClusterFacts> {
        if std::mem::take(&mut self.outdated) {
            let fresh = self.index.facts();
            // What changed may have changed back.
            if fresh != *self.facts {
                self.facts = Arc::new(fresh);
            }
        }
        Arc::clone(&self.facts)
    }
}

/// The side of a [`ClusterView`] that changes it; when it is dropped, the view has ended.
#[derive(Debug)]
pub(super) struct ViewWriter {
    known: Arc<Mutex<Known>>,
    changes: watch::Sender<()>,
}

impl ViewWriter {
    /// A view of an index, and its writer.
    pub(super) fn new(index: Index) -> (Self, ClusterView) {
        let facts = Arc::new(index.facts());
        let known = Arc::new(Mutex::new(Known { index, facts, outdated: false }));
        let (changes, receiver) = watch::channel(());
        (Self { known: Arc::clone(&known), changes }, ClusterView { known, changes: receiver })
    }

    /// What is known of a resource, now and later.
    pub(super) fn known(&self, resource: Resource) -> KnownObjects {
        let known = Arc::clone(&self.known);
        KnownObjects::found_by(move |title, object| locked(&known).index.same(resource, title, object))
    }

    /// Looks at the index.
    pub(super) fn index<T>(&self, look: impl FnOnce(&Index) -> T) -> T {
        look(&locked(&self.known).index)
    }

    /// Changes the index; `change` returns whether facts may differ now, of which readers are then notified. Returns
    /// the same.
    pub(super) fn update(&self, change: impl FnOnce(&mut Index) -> bool) -> bool {
        let mut known = locked(&self.known);
        let changed = change(&mut known.index);
        known.outdated |= changed;
        drop(known);
        if changed {
            self.changes.send_replace(());
        }
        changed
    }
}

fn locked(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        answer::ObjectSink as _,
        objects::Service,
        watch::{
            cached_object::{CachedObject, ObjectBatch},
            selection::Selection,
            update::Update,
        },
    };

    fn view() -> (ViewWriter, ClusterView) {
        ViewWriter::new(Index::new(Some("n1".to_owned()), String::new(), Arc::default()))
    }

    fn empty(resource: Resource) -> impl FnOnce(&mut Index) -> bool {
        let nothing = ObjectBatch::of_one(CachedObject::More(Arc::default()));
        move |index| index.apply(resource, Update::Replaced(Selection::All, nothing), Instant::now())
    }

    #[tokio::test]
    async fn facts_are_made_when_they_are_asked_for_and_once_for_many_changes() {
        let (writer, mut view) = view();
        let first = view.facts();
        assert!(Arc::ptr_eq(&first, &view.facts()), "nothing has changed");
        assert!(writer.update(empty(Resource::Services)) && writer.update(empty(Resource::Nodes)));
        assert!(Arc::ptr_eq(&first, &locked(&view.known).facts), "nobody has asked");
        view.changed().await.expect("it is alive");
        let second = view.facts();
        assert!(second.services.seen().is_some() && second.nodes.seen().is_some());
        assert!(!view.changes.has_changed().expect("it is alive"), "both are in these facts");

        assert!(!writer.update(|index| index.apply(Resource::Nodes, Update::Confirmed, Instant::now())));
        assert!(!view.changes.has_changed().expect("it is alive"), "no fact differs");
        assert!(Arc::ptr_eq(&second, &view.facts()));
        drop(writer);
        assert_eq!(view.changed().await, Err(WatchesEnded));
    }

    #[test]
    fn what_changed_and_changed_back_is_the_same_facts() {
        let (writer, mut view) = view();
        let first = view.facts();
        for origin in ["elsewhere", "the API server"] {
            let update = Update::Connected(origin.to_owned());
            assert!(writer.update(|index| index.apply(Resource::Pods, update, Instant::now())));
        }
        assert!(Arc::ptr_eq(&first, &view.facts()));
    }

    #[test]
    fn an_object_that_is_read_again_as_it_was_is_held_once() {
        let (writer, _view) = view();
        let batch = || {
            let mut batch = ObjectBatch::within(Selection::Served, Some(writer.known(Resource::Services)));
            let text = r#"{"kind":"Service","metadata":{"name":"web"},"spec":{"ports":[{"port":80}]}}"#;
            let object: &RawValue = serde_json::from_str(text).expect("an object");
            batch.add::<Service>("here", object);
            batch
        };
        let service = |batch: &ObjectBatch| match batch.objects.values().next() {
            Some(CachedObject::Service(service)) => Arc::clone(service),
            other => panic!("no Service: {other:?}"),
        };
        let first = batch();
        let known = service(&first);
        writer.update(|index| {
            index.apply(Resource::Services, Update::Replaced(Selection::Served, first), Instant::now())
        });
        assert!(Arc::ptr_eq(&known, &service(&batch())));
    }
}
