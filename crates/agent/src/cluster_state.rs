//! The agent's facts about the cluster, from watches or from files.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch::Receiver;

use crate::metrics::{ViewAge, word};
use portreeve_cluster::{ClusterView, Resource, ResourceStatus};
use portreeve_facts::{ClusterFacts, Gap, Why};

/// The facts about the cluster, shared by all clones. A change is reported to each clone.
#[derive(Clone, Debug)]
pub(super) enum ClusterState {
    /// Facts from watches. The facts are made when a caller requests them.
    Watched(ClusterView),
    /// Facts from files or from no source. The agent reads a changed file again.
    Read(Receiver<LastReading>),
}

#[derive(Clone, Debug)]
pub(super) struct LastReading {
    pub(super) facts: Arc<ClusterFacts>,
    pub(super) statuses: BTreeMap<Resource, ResourceStatus>,
}

impl ClusterState {
    /// Waits for a change since the last call of this function or of [`Self::facts`]. Several changes end one wait. If
    /// the source of changes has ended, the function waits forever.
    pub(super) async fn changed(&mut self) {
        let alive = match self {
            Self::Watched(view) => view.changed().await.is_ok(),
            Self::Read(last) => last.changed().await.is_ok(),
        };
        if !alive {
            pending::<()>().await;
        }
    }

    /// If the cluster has changed, this call makes the new facts and blocks until they are ready.
    pub(super) fn facts(&mut self) -> Arc<ClusterFacts> {
        match self {
            Self::Watched(view) => view.facts(),
            Self::Read(last) => Arc::clone(&last.borrow_and_update().facts),
        }
    }

    pub(super) fn mark_unchanged(&mut self) {
        drop(self.facts());
    }

    /// Waits until the facts contain the endpoints of the Services with these names, or the reason why the endpoints
    /// are missing.
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

    /// The time since an API server confirmed the Pods of this node.
    pub(super) fn age_of_pods(&self, now: Instant) -> Option<Duration> {
        match self {
            Self::Watched(view) => view.statuses().get(&Resource::Pods)?.age(now.into()),
            Self::Read(_) => None,
        }
    }

    pub(super) fn ages(&self, now: Instant) -> Vec<ViewAge> {
        let statuses = match self {
            Self::Watched(view) => view.statuses(),
            Self::Read(last) => last.borrow().statuses.clone(),
        };
        let of = |kind: Resource| {
            let status = statuses.get(&kind).cloned().unwrap_or_default();
            ViewAge { resource: kind.name(), age: status.age(now.into()), errors: status.errors.into_iter().collect() }
        };
        Resource::ALL.map(of).into()
    }
}

impl LastReading {
    pub(super) fn of(facts: ClusterFacts) -> Self {
        Self { facts: Arc::new(facts), statuses: BTreeMap::new() }
    }

    /// Stores new facts. Returns whether any fact is different from the last facts.
    pub(super) fn take(&mut self, facts: ClusterFacts) -> bool {
        for (kind, gap) in kinds(&facts) {
            if let Some(gap) = gap {
                *self.statuses.entry(kind).or_default().errors.entry(word(gap.why)).or_default() += 1;
            }
        }
        let changed = *self.facts != facts;
        self.facts = Arc::new(facts);
        changed
    }

    /// Counts the objects of an unchanged file as read again, except objects that could not be read.
    pub(super) fn confirm(&mut self) {
        for (kind, _) in kinds(&self.facts).into_iter().filter(|(_, gap)| gap.is_none()) {
            self.statuses.entry(kind).or_default().confirmed = Some(Instant::now().into());
        }
    }
}

fn kinds(facts: &ClusterFacts) -> [(Resource, Option<&Gap>); 4] {
    [
        (Resource::Services, facts.services.gap()),
        (Resource::EndpointSlices, facts.endpoint_slices.gap()),
        (Resource::Pods, facts.pods.gap()),
        (Resource::Nodes, facts.nodes.gap()),
    ]
}
