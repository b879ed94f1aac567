//! One object of the index: what [`FactsBuilder`] makes of it, without the room for everything else.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde_json::value::RawValue;

use super::selection::Selection;
use crate::{
    allowance::Share,
    answer::ObjectSink,
    facts_builder::{Counts, FactsBuilder},
    memory::{Memory as _, block},
    objects::{Identity, Object},
};
use portreeve_facts::{EndpointSlice, Node, Pod, Service};

/// The facts of one object. It is converted as an object of a file is.
#[derive(Clone, Debug, PartialEq)]
pub enum CachedObject {
    /// Nothing but a Service.
    Service(Arc<Service>),
    /// Nothing but an EndpointSlice.
    EndpointSlice(Arc<EndpointSlice>),
    /// Nothing but a Pod.
    Pod(Arc<Pod>),
    /// Nothing but a Node.
    Node(Arc<Node>),
    /// Something rare: settings, or rejected fields.
    More(Arc<FactsBuilder>),
}

impl CachedObject {
    /// `None` for an object that no rule uses, such as a headless Service.
    pub fn new(mut facts: FactsBuilder) -> Option<Self> {
        // A pod that the kubelet refused is rare.
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

    /// Adds it as an object of a file is added.
    pub fn add_to(&self, facts: &mut FactsBuilder) {
        match self {
            Self::Service(service) => facts.services.push(Arc::clone(service)),
            Self::EndpointSlice(slice) => facts.endpoint_slices.push(Arc::clone(slice)),
            Self::Pod(pod) => facts.pods.push(Arc::clone(pod)),
            Self::Node(node) => facts.nodes.push(Arc::clone(node)),
            Self::More(more) => facts.merge((**more).clone()),
        }
    }

    /// How much memory it takes, in bytes.
    pub fn memory(&self) -> usize {
        match self {
            Self::Service(service) => service.heap(),
            Self::EndpointSlice(slice) => slice.heap(),
            Self::Pod(pod) => pod.heap(),
            Self::Node(node) => node.heap(),
            Self::More(more) => block(size_of::<FactsBuilder>()) + more.memory_since(&Counts::default()),
        }
    }

    /// Whether somebody else holds it too.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Service(service) => Arc::strong_count(service) > 1,
            Self::EndpointSlice(slice) => Arc::strong_count(slice) > 1,
            Self::Pod(pod) => Arc::strong_count(pod) > 1,
            Self::Node(node) => Arc::strong_count(node) > 1,
            Self::More(more) => {
                more.services.first().is_some_and(|it| Arc::strong_count(it) > 1) || Arc::strong_count(more) > 1
            }
        }
    }

    /// Whether it belongs to a selection: an answer may hold more than was selected.
    pub fn is_within(&self, selection: &Selection) -> bool {
        let slice = match self {
            Self::EndpointSlice(slice) => Some(slice),
            Self::More(more) => more.endpoint_slices.first(),
            _ => None,
        };
        slice.is_none_or(|slice| selection.holds_endpoints_of(&slice.service))
    }
}

/// What an entry of an index, or of a batch for it, takes: its nodes are two thirds full.
pub fn memory_of_entry(title: &str, object: Option<&CachedObject>) -> usize {
    const ENTRY: usize = size_of::<(String, CachedObject)>() * 3 / 2;
    ENTRY + block(title.len()) + object.map_or(0, CachedObject::memory)
}

/// Finds the known object of a name, if it is the same.
type Find = dyn Fn(&str, &CachedObject) -> Option<CachedObject> + Send + Sync;

/// What is known of one resource, for whoever reads it again.
#[derive(Clone)]
pub struct KnownObjects(Arc<Find>);

impl KnownObjects {
    /// What this finds.
    pub fn found_by(find: impl Fn(&str, &CachedObject) -> Option<CachedObject> + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }
}

impl fmt::Debug for KnownObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KnownObjects")
    }
}

/// Objects by `namespace/name`, and `None` for one that no rule uses any more.
#[derive(Debug, Default)]
pub struct ObjectBatch {
    pub(crate) objects: BTreeMap<String, Option<CachedObject>>,
    /// What is read as a whole, if it is: what is outside of it is dropped as soon as it is read, as a cluster has far more
    /// EndpointSlices than are needed.
    whole: Option<Selection>,
    /// What is known already: an object that is as it was is not held twice.
    known: Option<KnownObjects>,
    /// The room that is taken until these objects are applied.
    _room: Option<Share>,
}

impl ObjectBatch {
    /// No object yet of all of a selection.
    pub fn within(selection: Selection, known: Option<KnownObjects>) -> Self {
        Self { whole: Some(selection), known, ..Self::default() }
    }

    /// Removes an object that is gone.
    pub fn remove(&mut self, title: &str) {
        self.objects.remove(title);
    }

    /// One object that has no name.
    pub fn of_one(object: CachedObject) -> Self {
        Self { objects: [(String::new(), Some(object))].into(), ..Self::default() }
    }

    /// The same with the room that was taken for it.
    pub fn with_room(self, room: Share) -> Self {
        Self { _room: Some(room), ..self }
    }
}

impl ObjectSink for ObjectBatch {
    fn add<K: Object>(&mut self, place: &str, object: &RawValue) -> usize {
        self.add_object::<K>(place, object).0
    }
}

impl ObjectBatch {
    /// Adds an object. Returns how much memory is kept of it, and its version.
    pub(crate) fn add_object<K: Object>(&mut self, place: &str, object: &RawValue) -> (usize, Option<String>) {
        let mut facts = FactsBuilder::default();
        let Identity { title, version } = facts.add::<K>(place, object);
        let mut object = CachedObject::new(facts);
        if let Some(selection) = &self.whole {
            object = object.filter(|object| object.is_within(selection));
            if object.is_none() {
                self.objects.remove(&title);
                return (0, version);
            }
        }
        let same = object.as_ref().and_then(|object| (self.known.as_ref()?.0)(&title, object));
        let memory = memory_of_entry(&title, object.as_ref().filter(|_| same.is_none()));
        self.objects.insert(title, same.or(object));
        (memory, version)
    }
}
