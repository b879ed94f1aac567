//! All known objects of the cluster, and the facts from these objects. The index does no I/O and reads no clock:
//! callers pass updates and the time.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{
    resource::{Resource, ResourceStatus},
    selection::Selection,
    view::KnownObjects,
};
use crate::{
    error::Error,
    facts_builder::FactsBuilder,
    objects::{Identity, Object},
};
use portreeve_facts::{ClusterFacts, EndpointSlice, Gap, Node, Pod, Reading, Service, Source, Why};

/// A change of what is known about a resource.
#[derive(Debug)]
pub enum Update {
    /// The address of the connected server.
    Connected(String),
    /// Every object of a selection was read.
    Replaced(Selection, ObjectBatch),
    /// The name of an object, and its new state. The state is `None` if no rule uses the object, or if the object was
    /// deleted.
    Applied(String, Option<CachedObject>),
    /// The names of the Services whose endpoints are needed from now on.
    EndpointsNeeded(Arc<BTreeSet<String>>),
    /// The server answered, and nothing has changed.
    Confirmed,
    /// The resource could not be read.
    Failed(Error),
}

/// The facts from one object. An object in a file gives the same facts.
#[derive(Clone, Debug, PartialEq)]
pub enum CachedObject {
    /// Only a Service.
    Service(Arc<Service>),
    /// Only an EndpointSlice.
    EndpointSlice(Arc<EndpointSlice>),
    /// Only a Pod.
    Pod(Arc<Pod>),
    /// Only a Node.
    Node(Arc<Node>),
    /// All other facts: settings, Pods that wait for ports, or an object with rejected fields. Few objects give such
    /// facts.
    More(Arc<FactsBuilder>),
}

impl CachedObject {
    /// Decodes an object. `None` if no rule uses the object, for example a headless Service.
    pub(crate) fn read<K: Object>(place: &str, object: &RawValue) -> (Identity, Option<Self>) {
        let mut facts = FactsBuilder::default();
        (facts.add::<K>(place, object), Self::new(facts))
    }

    fn new(mut facts: FactsBuilder) -> Option<Self> {
        // A Pod that the kubelet refused becomes `More`, because such Pods are too rare for a variant.
        if !facts.holds_objects_only() || !facts.waiting_pods.is_empty() {
            return Some(Self::More(Arc::new(facts)));
        }
        let FactsBuilder { services, endpoint_slices, pods, nodes, .. } = &mut facts;
        services
            .pop()
            .map(Self::Service)
            .or_else(|| endpoint_slices.pop().map(Self::EndpointSlice))
            .or_else(|| pods.pop().map(Self::Pod))
            .or_else(|| nodes.pop().map(Self::Node))
    }

    /// Adds the object to the facts.
    pub fn add_to(&self, facts: &mut FactsBuilder) {
        match self {
            Self::Service(service) => facts.services.push(Arc::clone(service)),
            Self::EndpointSlice(slice) => facts.endpoint_slices.push(Arc::clone(slice)),
            Self::Pod(pod) => facts.pods.push(Arc::clone(pod)),
            Self::Node(node) => facts.nodes.push(Arc::clone(node)),
            Self::More(more) => facts.merge((**more).clone()),
        }
    }

    /// Whether the object belongs to a selection. A server may send more objects than were selected.
    pub fn is_within(&self, selection: &Selection) -> bool {
        let slice = match self {
            Self::EndpointSlice(slice) => Some(slice),
            Self::More(more) => more.endpoint_slices.first(),
            _ => None,
        };
        slice.is_none_or(|slice| selection.holds_endpoints_of(&slice.service))
    }
}

/// All objects of a selection, by `namespace/name`.
#[derive(Debug, Default)]
pub struct ObjectBatch {
    pub(crate) objects: BTreeMap<Box<str>, CachedObject>,
    /// Objects outside the selection are dropped when they are read. A cluster may have far more EndpointSlices than
    /// rules need.
    selection: Selection,
    /// The objects that are already known. The batch takes an unchanged object from the known objects, so that memory
    /// contains the object only once.
    known: Option<KnownObjects>,
}

impl ObjectBatch {
    /// An empty batch for a whole selection.
    pub fn within(selection: Selection, known: Option<KnownObjects>) -> Self {
        Self { objects: BTreeMap::new(), selection, known }
    }

    /// A batch of one object. The key of the object is an empty name.
    pub fn of_one(object: CachedObject) -> Self {
        Self { objects: [(Box::default(), object)].into(), ..Self::default() }
    }

    /// Adds an object, or replaces the object with this name.
    pub fn put(&mut self, title: String, object: Option<CachedObject>) {
        match object.filter(|object| object.is_within(&self.selection)) {
            None => drop(self.objects.remove(&*title)),
            Some(object) => {
                let same = self.known.as_ref().and_then(|known| known.same(&title, &object));
                self.objects.insert(title.into(), same.unwrap_or(object));
            }
        }
    }

    pub(crate) fn add<K: Object>(&mut self, place: &str, object: &RawValue) {
        let (Identity { title, .. }, object) = CachedObject::read::<K>(place, object);
        self.put(title, object);
    }
}

/// Objects by resource.
#[derive(Debug)]
pub struct Index {
    origin: String,
    configured_node: Option<String>,
    hostname: String,
    node: Option<String>,
    endpoints_of: Arc<BTreeSet<String>>,
    caches: BTreeMap<Resource, ResourceCache>,
}

#[derive(Debug, Default)]
struct ResourceCache {
    objects: BTreeMap<Box<str>, CachedObject>,
    /// The selection of the last complete read; `None` before the first complete read.
    selection: Option<Selection>,
    status: ResourceStatus,
}

impl Index {
    /// An empty index. `configured_node` is this node's name, if a user or the downward API gave the name.
    pub fn new(configured_node: Option<String>, hostname: String, endpoints_of: Arc<BTreeSet<String>>) -> Self {
        let caches = Resource::ALL.into_iter().map(|resource| (resource, ResourceCache::default())).collect();
        let node = configured_node.clone();
        Self { origin: "the API server".to_owned(), configured_node, hostname, node, endpoints_of, caches }
    }

    /// Limits the index to these resources. Services, Pods and Nodes are always included. The Nodes give this node's
    /// name, and the Pods are selected by this name.
    #[must_use]
    pub fn only(mut self, resources: &[Resource]) -> Self {
        self.caches.retain(|resource, _| Resource::OF_GUARD.contains(resource) || resources.contains(resource));
        self
    }

    /// Whether the index includes this resource.
    pub fn reads(&self, resource: Resource) -> bool {
        self.caches.contains_key(&resource)
    }

    /// The known object with this name, if it is equal to `object`.
    pub fn same(&self, resource: Resource, title: &str, object: &CachedObject) -> Option<CachedObject> {
        self.caches[&resource].objects.get(title).filter(|known| *known == object).cloned()
    }

    /// Applies an update that was true at the time `at`. The cost depends on the size of the update, not of the index.
    /// Returns true if facts may have changed.
    pub fn apply(&mut self, resource: Resource, update: Update, at: Instant) -> bool {
        let changed = self.apply_to_cache(resource, update, at);
        if changed && resource == Resource::Nodes && self.configured_node.is_none() {
            self.node = self.node_of_hostname();
        }
        changed
    }

    fn apply_to_cache(&mut self, resource: Resource, update: Update, at: Instant) -> bool {
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
                let differs = failure.as_ref() != Some(&gap);
                *failure = Some(gap);
                differs && !self.is_whole(resource)
            }
            Update::EndpointsNeeded(names) => {
                let changed = self.endpoints_of != names;
                self.endpoints_of = names;
                changed
            }
            Update::Confirmed => cache.confirm(at),
            Update::Replaced(selection, objects) => {
                let same_selection = cache.selection.replace(selection.clone()).is_some_and(|was| was == selection);
                let changed = cache.replace(objects);
                cache.confirm(at);
                changed || !same_selection
            }
            Update::Applied(title, object) => {
                cache.confirm(at);
                cache.put(title, object)
            }
        }
    }

    /// The facts, in the same form as facts from files or from single LISTs.
    pub fn facts(&self) -> ClusterFacts {
        let mut all = FactsBuilder::default();
        let node = self.node.clone();
        for (resource, cache) in &self.caches {
            let source = resource.source();
            if *resource == Resource::Pods && node.is_none() && self.caches[&Resource::Nodes].selection.is_some() {
                let detail = format!("no Node has the name {}; set the name of this node with --node", self.hostname);
                all.mark_missing(Gap::new(source, Why::NotRequested, detail));
                continue;
            }
            if cache.selection.is_some() && !self.is_whole(*resource) {
                let absent = || Gap::new(source, Why::NotYet, format!("{} are being read", resource.name()));
                all.mark_missing(cache.status.failure.clone().unwrap_or_else(absent));
            }
            cache.objects.values().for_each(|object| object.add_to(&mut all));
        }
        let never_read = Resource::ALL.into_iter().filter_map(|resource| self.never_read(resource));
        never_read.for_each(|gap| all.mark_missing(gap));
        let mut facts = all.finish(self.origin.clone(), true, node);
        let slices = self.caches.get(&Resource::EndpointSlices);
        if let Some(Selection::EndpointsOf(names)) = slices.and_then(|slices| slices.selection.as_ref()) {
            facts.endpoints_of = Some(Arc::clone(names));
        }
        // If the settings were not read, the range may differ from the default. So the range is unknown.
        if let Some(Gap { why, detail, .. }) = self.never_read(Resource::Settings) {
            facts.node_port_range = Reading::Gap(Gap::new(Source::NodePortRange, why, detail));
        }
        facts
    }

    /// The reason why a resource was never read. `None` if the resource was read.
    fn never_read(&self, resource: Resource) -> Option<Gap> {
        match (self.caches.get(&resource), resource) {
            (Some(cache), _) => cache.selection.is_none().then(|| {
                let yet = || Gap::new(resource.source(), Why::NotYet, format!("{} were not read yet", resource.name()));
                cache.status.failure.clone().unwrap_or_else(yet)
            }),
            // A guard has no right to read settings. So the proxy's settings are unknown, not absent.
            (None, Resource::Settings) => {
                let detail = "the settings of the cluster are not known: a guard does not read them";
                Some(Gap::new(resource.source(), Why::NotPermitted, detail))
            }
            (None, _) => {
                let detail = format!("{} are not read by this program", resource.name());
                Some(Gap::new(resource.source(), Why::NotRequested, detail))
            }
        }
    }

    /// How fresh each resource is.
    pub fn statuses(&self) -> BTreeMap<Resource, ResourceStatus> {
        self.caches.iter().map(|(resource, cache)| (*resource, cache.status.clone())).collect()
    }

    /// The present failure of a resource. A success removes the failure.
    pub fn failure(&self, resource: Resource) -> Option<&Gap> {
        self.caches.get(&resource)?.status.failure.as_ref()
    }

    /// The selection of a resource that must be read. `None` if the selection is not known yet: to select Pods, the
    /// index needs this node's name.
    pub fn needed(&self, resource: Resource) -> Option<Selection> {
        match resource {
            Resource::Services => Some(Selection::Served),
            Resource::WaitingPods | Resource::Nodes | Resource::Settings => Some(Selection::All),
            Resource::Pods => self.node.clone().map(Selection::Node),
            Resource::EndpointSlices => Some(Selection::EndpointsOf(Arc::clone(&self.endpoints_of))),
        }
    }

    fn is_whole(&self, resource: Resource) -> bool {
        let covers = |selection: &Selection| self.needed(resource).is_none_or(|needed| selection.covers(&needed));
        self.caches[&resource].selection.as_ref().is_some_and(covers)
    }

    /// Whether the first answer about some resource is still missing. If this node's Node does not exist, Pods do not
    /// count.
    pub fn is_awaited(&self) -> bool {
        self.caches.iter().any(|(resource, cache)| {
            let unread = match (&cache.selection, self.needed(*resource)) {
                (None, None) => self.caches[&Resource::Nodes].selection.is_none(),
                _ => !self.is_whole(*resource),
            };
            unread && cache.status.failure.is_none()
        })
    }

    /// Whether a read of these Services' endpoints succeeded or failed. This check costs less than [`Self::facts`].
    pub fn holds_endpoints_of(&self, names: &BTreeSet<String>) -> bool {
        let Some(slices) = self.caches.get(&Resource::EndpointSlices) else { return true };
        match &slices.selection {
            Some(selection) if self.is_whole(Resource::EndpointSlices) => {
                names.iter().all(|name| selection.holds_endpoints_of(name))
            }
            _ => slices.status.failure.is_some() || names.is_empty(),
        }
    }

    /// This node's name, if it comes from the configuration or the downward API.
    pub fn configured_node(&self) -> Option<&str> {
        self.configured_node.as_deref()
    }

    fn node_of_hostname(&self) -> Option<String> {
        let mut nodes = FactsBuilder::default();
        self.caches[&Resource::Nodes].objects.values().for_each(|object| object.add_to(&mut nodes));
        nodes.node_name(None, &self.hostname)
    }
}

impl ResourceCache {
    /// Notes that the state is still true at the time `at`. Returns false, because the facts do not change.
    fn confirm(&mut self, at: Instant) -> bool {
        self.status.confirmed = self.status.confirmed.max(Some(at));
        self.status.failure = None;
        false
    }

    /// Replaces all objects. Returns true if any object differs. An unchanged object keeps its allocation.
    fn replace(&mut self, new: ObjectBatch) -> bool {
        let mut before = mem::take(&mut self.objects);
        let mut changed = false;
        // `collect` builds a `BTreeMap` with full tree nodes. Single inserts in order would leave the tree nodes half
        // empty.
        let kept = new.objects.into_iter().map(|(title, object)| {
            let known = before.remove(&title).filter(|known| *known == object);
            changed |= known.is_none();
            (title, known.unwrap_or(object))
        });
        self.objects = kept.collect();
        changed || !before.is_empty()
    }

    /// Adds, replaces or removes an object. Returns true if the state changed.
    fn put(&mut self, title: String, object: Option<CachedObject>) -> bool {
        let within =
            |object: &CachedObject| self.selection.as_ref().is_none_or(|selection| object.is_within(selection));
        let object = object.filter(within);
        if self.objects.get(&*title) == object.as_ref() {
            return false;
        }
        match object {
            None => drop(self.objects.remove(&*title)),
            Some(object) => drop(self.objects.insert(title.into(), object)),
        }
        true
    }
}

#[cfg(test)]
mod tests;
