//! Everything that is known, and what follows from it. Pure: updates and the time go in, facts and selections come out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    cached_object::CachedObject,
    resource::{Resource, ResourceStatus},
    selection::Selection,
    update::Update,
};
use crate::{
    cluster::facts_builder::FactsBuilder,
    facts::{ClusterFacts, Gap, Reading, Source, Why},
};

/// Objects by resource.
#[derive(Debug)]
pub(super) struct Index {
    origin: String,
    configured_node: Option<String>,
    hostname: String,
    /// The names of the Services whose endpoints are needed.
    endpoints_of: Arc<BTreeSet<String>>,
    caches: BTreeMap<Resource, ResourceCache>,
}

/// The objects of one resource.
#[derive(Debug, Default)]
struct ResourceCache {
    objects: BTreeMap<String, CachedObject>,
    /// What was read as a whole; `None` until anything was.
    selection: Option<Selection>,
    status: ResourceStatus,
}

impl Index {
    /// An empty index. `configured_node` is this node's name where it is known from outside the cluster.
    pub(super) fn new(configured_node: Option<String>, hostname: String, endpoints_of: Arc<BTreeSet<String>>) -> Self {
        let caches = Resource::ALL.into_iter().map(|resource| (resource, ResourceCache::default())).collect();
        Self { origin: "the API server".to_owned(), configured_node, hostname, endpoints_of, caches }
    }

    /// Applies an update that came at `at`. True if facts may have changed.
    pub(super) fn apply(&mut self, resource: Resource, update: Update, at: Instant) -> bool {
        let Some(cache) = self.caches.get_mut(&resource) else { return false };
        match update {
            Update::Connected(origin) => {
                let changed = self.origin != origin;
                self.origin = origin;
                changed
            }
            Update::Failed(error) => {
                let ResourceStatus { errors, failure, .. } = &mut cache.status;
                *errors.entry(error.code()).or_default() += 1;
                let gap = error.gap(resource.source());
                let changed = cache.selection.is_none() && failure.as_ref() != Some(&gap);
                *failure = Some(gap);
                changed
            }
            Update::EndpointsNeeded(names) => {
                let changed = self.endpoints_of != names;
                self.endpoints_of = names;
                changed
            }
            Update::Confirmed => cache.confirm(at),
            Update::Replaced(selection, objects) => {
                let objects =
                    objects.objects.into_iter().filter_map(|(title, object)| Some((title, object?))).collect();
                let changed = cache.selection.as_ref() != Some(&selection) || cache.objects != objects;
                (cache.selection, cache.objects) = (Some(selection), objects);
                cache.confirm(at);
                changed
            }
            Update::Applied(objects) => {
                cache.confirm(at);
                objects.objects.into_iter().fold(false, |changed, (title, object)| cache.put(title, object) || changed)
            }
            Update::Deleted(title) => {
                cache.confirm(at);
                cache.put(title, None)
            }
        }
    }

    /// The facts, built as those of files and of single LISTs are.
    pub(super) fn facts(&self) -> ClusterFacts {
        let mut all = FactsBuilder::default();
        let node = self.node();
        for (resource, cache) in &self.caches {
            let source = resource.source();
            match (resource, &node) {
                (Resource::Pods, None) if self.caches[&Resource::Nodes].selection.is_some() => {
                    let detail = format!("no Node is called {}; say which one this is with --node", self.hostname);
                    all.mark_missing(Gap::new(source, Why::NotAsked, detail));
                    continue;
                }
                _ => {}
            }
            let needed = self.needed(*resource);
            match (&cache.selection, &needed) {
                (Some(selection), Some(needed)) if !selection.covers(needed) => {
                    let absent = || Gap::new(source, Why::NotYet, format!("{} are being read", resource.name()));
                    all.mark_missing(cache.status.failure.clone().unwrap_or_else(absent));
                }
                (None, _) => all.mark_missing(cache.absence(*resource)),
                _ => {}
            }
            cache.objects.values().for_each(|object| object.add_to(&mut all));
        }
        let settings = &self.caches[&Resource::Settings];
        let mut facts = all.finish(self.origin.clone(), true, node);
        if let Some(Selection::EndpointsOf(names)) = &self.caches[&Resource::EndpointSlices].selection {
            facts.endpoints_of = Some(Arc::clone(names));
        }
        if settings.selection.is_none() {
            // Nothing was read yet, so the default range must not be assumed.
            let Gap { why, detail, .. } = settings.absence(Resource::Settings);
            facts.node_port_range = Reading::Gap(Gap::new(Source::NodePortRange, why, detail));
        }
        facts
    }

    /// How fresh the knowledge of each resource is.
    pub(super) fn statuses(&self) -> BTreeMap<Resource, ResourceStatus> {
        self.caches.iter().map(|(resource, cache)| (*resource, cache.status.clone())).collect()
    }

    /// The failure of a resource, while it lasts.
    pub(super) fn failure(&self, resource: Resource) -> Option<&Gap> {
        self.caches[&resource].status.failure.as_ref()
    }

    /// What has to be read of a resource; `None` where that is not known yet, as for Pods before the own Node is.
    pub(super) fn needed(&self, resource: Resource) -> Option<Selection> {
        match resource {
            Resource::Services => Some(Selection::Served),
            Resource::Nodes | Resource::Settings => Some(Selection::All),
            Resource::Pods => self.node().map(Selection::Node),
            Resource::EndpointSlices => Some(Selection::EndpointsOf(Arc::clone(&self.endpoints_of))),
        }
    }

    /// Whether the needed EndpointSlices are known, or cannot be read now.
    pub(super) fn is_settled(&self) -> bool {
        let slices = &self.caches[&Resource::EndpointSlices];
        let covered = |needed| slices.selection.as_ref().is_some_and(|selection| selection.covers(&needed));
        slices.status.failure.is_some() || self.needed(Resource::EndpointSlices).is_none_or(covered)
    }

    /// This node's name, where it is configured or comes from the downward API.
    pub(super) fn configured_node(&self) -> Option<&str> {
        self.configured_node.as_deref()
    }

    fn node(&self) -> Option<String> {
        if self.configured_node.is_some() {
            return self.configured_node.clone();
        }
        let mut nodes = FactsBuilder::default();
        self.caches[&Resource::Nodes].objects.values().for_each(|object| object.add_to(&mut nodes));
        nodes.node_name(None, &self.hostname)
    }
}

impl ResourceCache {
    /// The server has confirmed what is known. False: no fact changes by that.
    fn confirm(&mut self, at: Instant) -> bool {
        self.status.confirmed = Some(at);
        self.status.failure = None;
        false
    }

    /// Stores an object as it is now, or removes it. True if it was different before.
    fn put(&mut self, title: String, object: Option<CachedObject>) -> bool {
        let within =
            |object: &CachedObject| self.selection.as_ref().is_none_or(|selection| object.is_within(selection));
        let Some(object) = object.filter(within) else { return self.objects.remove(&title).is_some() };
        let same = self.objects.get(&title) == Some(&object);
        if !same {
            self.objects.insert(title, object);
        }
        !same
    }

    /// The gap of a resource that was never read as a whole.
    fn absence(&self, resource: Resource) -> Gap {
        let yet = || Gap::new(resource.source(), Why::NotYet, format!("{} were not read yet", resource.name()));
        self.status.failure.clone().unwrap_or_else(yet)
    }
}

#[cfg(test)]
mod tests;
