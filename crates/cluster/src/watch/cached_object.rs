//! One object of the index: the result of [`FactsBuilder`] for it, in the smallest form.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde_json::value::RawValue;

use super::selection::Selection;
use crate::{
    answer::ObjectSink,
    facts_builder::FactsBuilder,
    objects::{Identity, Object},
};
use portreeve_facts::{EndpointSlice, Node, Pod, Service};

/// The facts of one object. It is converted like an object of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum CachedObject {
    /// A Service alone.
    Service(Arc<Service>),
    /// An EndpointSlice alone.
    EndpointSlice(Arc<EndpointSlice>),
    /// A Pod alone.
    Pod(Arc<Pod>),
    /// A Node alone.
    Node(Arc<Node>),
    /// A rare case: settings, or rejected fields.
    More(Arc<FactsBuilder>),
}

impl CachedObject {
    /// Reads one object from `place`. `None` for an object that no rule uses, such as a headless Service.
    pub(crate) fn read<K: Object>(place: &str, object: &RawValue) -> (Identity, Option<Self>) {
        let mut facts = FactsBuilder::default();
        (facts.add::<K>(place, object), Self::new(facts))
    }

    fn new(mut facts: FactsBuilder) -> Option<Self> {
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

    /// Adds the object like an object of a file.
    pub fn add_to(&self, facts: &mut FactsBuilder) {
        match self {
            Self::Service(service) => facts.services.push(Arc::clone(service)),
            Self::EndpointSlice(slice) => facts.endpoint_slices.push(Arc::clone(slice)),
            Self::Pod(pod) => facts.pods.push(Arc::clone(pod)),
            Self::Node(node) => facts.nodes.push(Arc::clone(node)),
            Self::More(more) => facts.merge((**more).clone()),
        }
    }

    /// Whether the object belongs to a selection: an answer may contain more objects.
    pub fn is_within(&self, selection: &Selection) -> bool {
        let slice = match self {
            Self::EndpointSlice(slice) => Some(slice),
            Self::More(more) => more.endpoint_slices.first(),
            _ => None,
        };
        slice.is_none_or(|slice| selection.holds_endpoints_of(&slice.service))
    }
}

/// Returns the known object with a name, if it is equal.
type Find = dyn Fn(&str, &CachedObject) -> Option<CachedObject> + Send + Sync;

/// The known objects of one resource, for its next complete read.
#[derive(Clone)]
pub struct KnownObjects(Arc<Find>);

impl KnownObjects {
    /// Returns the known object with this title, if it is equal.
    pub fn found_by(find: impl Fn(&str, &CachedObject) -> Option<CachedObject> + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }
}

impl fmt::Debug for KnownObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KnownObjects")
    }
}

/// Everything of a selection, by `namespace/name`.
#[derive(Debug, Default)]
pub struct ObjectBatch {
    pub(crate) objects: BTreeMap<Box<str>, CachedObject>,
    /// Objects outside the selection are dropped as soon as they are read: a cluster has far more EndpointSlices than
    /// are needed.
    selection: Selection,
    /// The known objects: an unchanged object is not kept twice.
    known: Option<KnownObjects>,
}

impl ObjectBatch {
    /// An empty batch for a whole selection.
    pub fn within(selection: Selection, known: Option<KnownObjects>) -> Self {
        Self { objects: BTreeMap::new(), selection, known }
    }

    /// One object that has no name.
    pub fn of_one(object: CachedObject) -> Self {
        Self { objects: [(Box::default(), object)].into(), ..Self::default() }
    }

    /// Adds an object, or its new state.
    pub fn put(&mut self, title: String, object: Option<CachedObject>) {
        match object.filter(|object| object.is_within(&self.selection)) {
            None => drop(self.objects.remove(&*title)),
            Some(object) => {
                let same = self.known.as_ref().and_then(|known| (known.0)(&title, &object));
                self.objects.insert(title.into(), same.unwrap_or(object));
            }
        }
    }
}

impl ObjectSink for ObjectBatch {
    fn add<K: Object>(&mut self, place: &str, object: &RawValue) {
        let (Identity { title, .. }, object) = CachedObject::read::<K>(place, object);
        self.put(title, object);
    }
}
