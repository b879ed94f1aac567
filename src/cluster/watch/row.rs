//! One object of an index: what [`Gathered`] makes of it, without the room for everything else.

use std::collections::BTreeMap;

use super::super::{gathered::Gathered, requests::Collect, wire::Object};
use crate::facts::{EndpointSlice, Node, Pod, Service};

/// What one object comes to. It went through the same door as an object of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Row {
    /// Nothing but a Service.
    Service(Service),
    /// Nothing but an EndpointSlice.
    EndpointSlice(EndpointSlice),
    /// Nothing but a Pod.
    Pod(Pod),
    /// Nothing but a Node.
    Node(Node),
    /// Something rare: settings, or complaints.
    More(Box<Gathered>),
}

impl Row {
    /// `None` for an object that no rule uses, such as a headless Service.
    pub(super) fn new(mut gathered: Gathered) -> Option<Self> {
        if !gathered.is_plain() {
            return Some(Self::More(Box::new(gathered)));
        }
        let Gathered { services, endpoint_slices, pods, nodes, .. } = &mut gathered;
        services
            .pop()
            .map(Self::Service)
            .or_else(|| endpoint_slices.pop().map(Self::EndpointSlice))
            .or_else(|| pods.pop().map(Self::Pod))
            .or_else(|| nodes.pop().map(Self::Node))
    }

    /// Puts it where objects of files go.
    pub(super) fn add_to(&self, gathered: &mut Gathered) {
        match self {
            Self::Service(service) => gathered.services.push(service.clone()),
            Self::EndpointSlice(slice) => gathered.endpoint_slices.push(slice.clone()),
            Self::Pod(pod) => gathered.pods.push(pod.clone()),
            Self::Node(node) => gathered.nodes.push(node.clone()),
            Self::More(more) => gathered.absorb((**more).clone()),
        }
    }

    /// The Service, if it is one.
    pub(super) fn service(&self) -> Option<&Service> {
        match self {
            Self::Service(service) => Some(service),
            Self::More(more) => more.services.first(),
            _ => None,
        }
    }

    /// The EndpointSlice, if it is one.
    pub(super) fn endpoint_slice(&self) -> Option<&EndpointSlice> {
        match self {
            Self::EndpointSlice(slice) => Some(slice),
            Self::More(more) => more.endpoint_slices.first(),
            _ => None,
        }
    }
}

/// Objects by `namespace/name`, those that no rule uses as `None`.
#[derive(Debug, Default)]
pub(super) struct Rows(pub(super) BTreeMap<String, Option<Row>>);

impl Collect for Rows {
    fn accept(&mut self, place: &str, object: Object) {
        let title = object.title();
        let mut gathered = Gathered::default();
        gathered.accept(place, object);
        self.0.insert(title, Row::new(gathered));
    }

    fn absorb(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}
