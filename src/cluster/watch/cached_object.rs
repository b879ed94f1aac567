//! One object of the index: what [`FactsBuilder`] makes of it, without the room for everything else.

use std::{collections::BTreeMap, sync::Arc};

use super::selection::Selection;
use crate::{
    cluster::{facts_builder::FactsBuilder, object_sink::ObjectSink, slim_object::SlimObject},
    facts::{EndpointSlice, Node, Pod, Service},
};

/// The facts of one object. It is converted as an object of a file is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CachedObject {
    /// Nothing but a Service.
    Service(Arc<Service>),
    /// Nothing but an EndpointSlice.
    EndpointSlice(Arc<EndpointSlice>),
    /// Nothing but a Pod.
    Pod(Arc<Pod>),
    /// Nothing but a Node.
    Node(Arc<Node>),
    /// Something rare: settings, or rejected fields.
    More(Box<FactsBuilder>),
}

impl CachedObject {
    /// `None` for an object that no rule uses, such as a headless Service.
    pub(super) fn new(mut facts: FactsBuilder) -> Option<Self> {
        if !facts.holds_objects_only() {
            return Some(Self::More(Box::new(facts)));
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
    pub(super) fn add_to(&self, facts: &mut FactsBuilder) {
        match self {
            Self::Service(service) => facts.services.push(Arc::clone(service)),
            Self::EndpointSlice(slice) => facts.endpoint_slices.push(Arc::clone(slice)),
            Self::Pod(pod) => facts.pods.push(Arc::clone(pod)),
            Self::Node(node) => facts.nodes.push(Arc::clone(node)),
            Self::More(more) => facts.merge((**more).clone()),
        }
    }

    /// Whether it belongs to a selection: an answer may hold more than was selected.
    pub(super) fn is_within(&self, selection: &Selection) -> bool {
        let slice = match self {
            Self::EndpointSlice(slice) => Some(slice),
            Self::More(more) => more.endpoint_slices.first(),
            _ => None,
        };
        slice.is_none_or(|slice| selection.holds_endpoints_of(&slice.service))
    }
}

/// Objects by `namespace/name`, those that no rule uses as `None`.
#[derive(Debug, Default)]
pub(super) struct ObjectBatch {
    pub(super) objects: BTreeMap<String, Option<CachedObject>>,
    /// Objects that are outside of it are dropped as soon as they are read: a cluster has far more EndpointSlices than
    /// are needed.
    selection: Selection,
}

impl ObjectBatch {
    /// No object yet.
    pub(super) fn within(selection: Selection) -> Self {
        Self { objects: BTreeMap::new(), selection }
    }

    /// Removes an object that is gone.
    pub(super) fn remove(&mut self, title: &str) {
        self.objects.remove(title);
    }

    /// One object that has no name.
    pub(super) fn of_one(object: CachedObject) -> Self {
        Self { objects: [(String::new(), Some(object))].into(), selection: Selection::All }
    }
}

impl ObjectSink for ObjectBatch {
    fn add(&mut self, place: &str, object: SlimObject) -> usize {
        let title = object.title();
        let mut facts = FactsBuilder::default();
        facts.add(place, object);
        let memory = title.len() + facts.memory_since([0; 4]);
        let object = CachedObject::new(facts);
        if object.as_ref().is_some_and(|object| !object.is_within(&self.selection)) {
            return 0;
        }
        self.objects.insert(title, object);
        memory
    }
}
