//! The known state of the cluster. The watches write the state, and readers request facts.
//!
//! Facts are made when a reader requests them, not at every change. A change converts only the object that changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{
    index::{CachedObject, Index},
    resource::{Resource, ResourceStatus},
};
use portreeve_facts::ClusterFacts;

/// The present state of the cluster. All clones see the same state. Each clone receives its own notifications of
/// changes.
#[derive(Clone, Debug)]
pub struct ClusterView {
    known: Arc<Mutex<Known>>,
    changes: watch::Receiver<()>,
}

#[derive(Debug)]
struct Known {
    index: Index,
    facts: Arc<ClusterFacts>,
    outdated: bool,
}

impl ClusterView {
    /// Waits for a change since the last call of this function or of [`Self::facts`]. Several changes count as one.
    ///
    /// # Errors
    /// Fails if the watches ended, which is a bug. The known state does not change after this error.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.changes.changed().await
    }

    /// The facts. Until the first complete read of a resource, its facts count as unread. If the state has changed, the
    /// facts are made in this call. In a larger cluster, this takes longer.
    pub fn facts(&mut self) -> Arc<ClusterFacts> {
        self.changes.mark_unchanged();
        locked(&self.known).facts()
    }

    /// Whether some resource is still being read for the first time.
    pub fn is_awaited(&self) -> bool {
        locked(&self.known).index.is_awaited()
    }

    /// Whether a read of these Services' endpoints succeeded or failed.
    pub fn holds_endpoints_of(&self, names: &BTreeSet<String>) -> bool {
        locked(&self.known).index.holds_endpoints_of(names)
    }

    /// How fresh each resource is. Readers are not notified when only the freshness changes.
    pub fn statuses(&self) -> BTreeMap<Resource, ResourceStatus> {
        locked(&self.known).index.statuses()
    }
}

impl Known {
    fn facts(&mut self) -> Arc<ClusterFacts> {
        if std::mem::take(&mut self.outdated) {
            let fresh = self.index.facts();
            // The new facts may equal the old facts, because a later change may undo an earlier change.
            if fresh != *self.facts {
                self.facts = Arc::new(fresh);
            }
        }
        Arc::clone(&self.facts)
    }
}

/// Changes the known state. When the writer is dropped, the view ends.
#[derive(Debug)]
pub(super) struct ViewWriter {
    known: Arc<Mutex<Known>>,
    changes: watch::Sender<()>,
}

impl ViewWriter {
    pub(super) fn new(index: Index) -> (Self, ClusterView) {
        let facts = Arc::new(index.facts());
        let known = Arc::new(Mutex::new(Known { index, facts, outdated: false }));
        let (changes, receiver) = watch::channel(());
        (Self { known: Arc::clone(&known), changes }, ClusterView { known, changes: receiver })
    }

    pub(super) fn known(&self, resource: Resource) -> KnownObjects {
        KnownObjects { known: Arc::clone(&self.known), resource }
    }

    pub(super) fn index<T>(&self, look: impl FnOnce(&Index) -> T) -> T {
        look(&locked(&self.known).index)
    }

    /// Changes the index, and returns the result of `change`. If the result is true, facts may differ now, and readers
    /// are notified.
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

/// The known objects of one resource. The next complete read compares its objects with the known objects.
#[derive(Clone, Debug)]
pub struct KnownObjects {
    known: Arc<Mutex<Known>>,
    resource: Resource,
}

impl KnownObjects {
    /// The known object with this title, if it is equal to `object`.
    pub(super) fn same(&self, title: &str, object: &CachedObject) -> Option<CachedObject> {
        locked(&self.known).index.same(self.resource, title, object)
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
        objects::Service,
        watch::{
            index::{ObjectBatch, Update},
            selection::Selection,
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
    async fn facts_are_made_on_request_and_once_for_many_changes() {
        let (writer, mut view) = view();
        let first = view.facts();
        assert!(Arc::ptr_eq(&first, &view.facts()), "nothing has changed");
        assert!(writer.update(empty(Resource::Services)) && writer.update(empty(Resource::Nodes)));
        assert!(Arc::ptr_eq(&first, &locked(&view.known).facts), "no reader requested facts");
        view.changed().await.expect("the view is alive");
        let second = view.facts();
        assert!(second.services.seen().is_some() && second.nodes.seen().is_some());
        assert!(!view.changes.has_changed().expect("the view is alive"), "these facts have both changes");

        assert!(!writer.update(|index| index.apply(Resource::Nodes, Update::Confirmed, Instant::now())));
        assert!(!view.changes.has_changed().expect("the view is alive"), "no fact differs");
        assert!(Arc::ptr_eq(&second, &view.facts()));
        drop(writer);
        assert!(view.changed().await.is_err(), "the watches ended");
    }

    #[test]
    fn a_change_that_was_undone_gives_the_same_facts() {
        let (writer, mut view) = view();
        let first = view.facts();
        for origin in ["elsewhere", "the API server"] {
            let update = Update::Connected(origin.to_owned());
            assert!(writer.update(|index| index.apply(Resource::Pods, update, Instant::now())));
        }
        assert!(Arc::ptr_eq(&first, &view.facts()));
    }

    #[test]
    fn an_unchanged_object_that_is_read_again_is_kept_once() {
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
