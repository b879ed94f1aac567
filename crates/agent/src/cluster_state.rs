//! The agent's facts about the cluster, from watches or from files.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch::Receiver;

use crate::metrics::ViewAge;
use portreeve_cluster::{ClusterView, Resource};
use portreeve_facts::{ClusterFacts, Why};

/// The latest facts about the cluster. Clones share the facts, and each clone gets its own notice of a change.
#[derive(Clone, Debug)]
pub(super) enum ClusterState {
    /// The state is from an API server that is watched. Facts are made on request.
    Watched(ClusterView),
    /// The state is from files that are read when they change, or from no source.
    Read(Receiver<LastReading>),
}

/// The last reading of the files.
#[derive(Clone, Debug)]
pub(super) struct LastReading {
    pub(super) facts: Arc<ClusterFacts>,
    /// When each kind of object was last read whole.
    pub(super) whole: BTreeMap<Resource, Instant>,
    /// Failures by kind of object and reason.
    pub(super) errors: BTreeMap<(Resource, String), u64>,
}

impl ClusterState {
    /// Waits for a change since the last call of this or of [`Self::facts`]. Many changes are treated as one. If no change can come, it
    /// waits forever.
    pub(super) async fn changed(&mut self) {
        let alive = match self {
            Self::Watched(view) => view.changed().await.is_ok(),
            Self::Read(last) => last.changed().await.is_ok(),
        };
        if !alive {
            pending::<()>().await;
        }
    }

    /// The facts. If something has changed, the caller waits until they are made.
    pub(super) fn facts(&mut self) -> Arc<ClusterFacts> {
        match self {
            Self::Watched(view) => view.facts(),
            Self::Read(last) => Arc::clone(&last.borrow_and_update().facts),
        }
    }

    /// Marks all changes until now as seen.
    pub(super) fn mark_unchanged(&mut self) {
        drop(self.facts());
    }

    /// Waits until the facts have the endpoints of the Services of these names, or the reason why not.
    pub(super) async fn endpoints_of(&mut self, names: &BTreeSet<String>) -> Arc<ClusterFacts> {
        while !self.holds_endpoints_of(names) {
            self.changed().await;
        }
        self.facts()
    }

    fn holds_endpoints_of(&self, names: &BTreeSet<String>) -> bool {
        match self {
            Self::Watched(view) => view.holds_endpoints_of(names),
            Self::Read(last) => last.borrow().facts.holds_endpoints_of(names),
        }
    }

    /// Waits until each kind of object has been read or refused once.
    pub(super) async fn answered(&mut self) {
        while self.is_awaited() {
            self.changed().await;
        }
    }

    fn is_awaited(&self) -> bool {
        match self {
            Self::Watched(view) => view.is_awaited(),
            Self::Read(last) => last.borrow().facts.services.gap().is_some_and(|gap| gap.why == Why::NotYet),
        }
    }

    /// The time since an API server last confirmed the Pods of this node.
    pub(super) fn age_of_pods(&self, now: Instant) -> Option<Duration> {
        match self {
            Self::Watched(view) => view.statuses().get(&Resource::Pods)?.age(now.into()),
            Self::Read(_) => None,
        }
    }

    /// Age and failures of each kind of object.
    pub(super) fn ages(&self, now: Instant) -> Vec<ViewAge> {
        match self {
            Self::Watched(view) => {
                let statuses = view.statuses();
                let of = |kind: Resource| {
                    let status = statuses.get(&kind);
                    let errors = status.map(|status| status.errors.clone().into_iter().collect());
                    let age = status.and_then(|status| status.age(now.into()));
                    ViewAge { resource: kind.name(), age, errors: errors.unwrap_or_default() }
                };
                Resource::ALL.map(of).into()
            }
            Self::Read(last) => last.borrow().ages(now),
        }
    }
}

impl LastReading {
    /// These facts, without ages and failures.
    pub(super) fn of(facts: ClusterFacts) -> Self {
        Self { facts: Arc::new(facts), whole: BTreeMap::new(), errors: BTreeMap::new() }
    }

    fn ages(&self, now: Instant) -> Vec<ViewAge> {
        let of = |kind| {
            let errors = self.errors.iter().filter(|((of, _), _)| *of == kind);
            let age: Option<Duration> = self.whole.get(&kind).map(|whole| now.saturating_duration_since(*whole));
            let errors = errors.map(|((_, code), count)| (code.clone(), *count)).collect();
            ViewAge { resource: kind.name(), age, errors }
        };
        Resource::ALL.map(of).into()
    }
}
