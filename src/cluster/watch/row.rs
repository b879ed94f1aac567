//! One object of an index: what [`Gathered`] makes of it, without the room for everything else.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    super::{gathered::Gathered, requests::Collect, wire::Object},
    scope::Scope,
};
use crate::facts::{EndpointSlice, Node, Pod, Service};

/// What one object comes to. It went through the same door as an object of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Row {
    /// Nothing but a Service.
    Service(Arc<Service>),
    /// Nothing but an EndpointSlice.
    EndpointSlice(Arc<EndpointSlice>),
    /// Nothing but a Pod.
    Pod(Arc<Pod>),
    /// Nothing but a Node.
    Node(Arc<Node>),
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
            Self::Service(service) => gathered.services.push(Arc::clone(service)),
            Self::EndpointSlice(slice) => gathered.endpoint_slices.push(Arc::clone(slice)),
            Self::Pod(pod) => gathered.pods.push(Arc::clone(pod)),
            Self::Node(node) => gathered.nodes.push(Arc::clone(node)),
            Self::More(more) => gathered.absorb((**more).clone()),
        }
    }

    /// The EndpointSlice, if it is one.
    pub(super) fn endpoint_slice(&self) -> Option<&EndpointSlice> {
        match self {
            Self::EndpointSlice(slice) => Some(slice),
            Self::More(more) => more.endpoint_slices.first().map(Arc::as_ref),
            _ => None,
        }
    }
}

/// Objects by `namespace/name`, those that no rule uses as `None`.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) rows: BTreeMap<String, Option<Row>>,
    /// What is outside of it is not taken over from another page: a cluster has far more EndpointSlices than matter.
    scope: Scope,
}

impl Rows {
    /// Nothing yet.
    pub(super) fn within(scope: Scope) -> Self {
        Self { rows: BTreeMap::new(), scope }
    }

    /// One that has no name.
    pub(super) fn nameless(row: Row) -> Self {
        Self { rows: [(String::new(), Some(row))].into(), scope: Scope::All }
    }
}

impl Collect for Rows {
    fn accept(&mut self, place: &str, object: Object) {
        let title = object.title();
        let mut gathered = Gathered::default();
        gathered.accept(place, object);
        self.rows.insert(title, Row::new(gathered));
    }

    fn absorb(&mut self, other: Self) {
        let Self { rows, scope } = self;
        rows.extend(other.rows.into_iter().filter(|(_, row)| row.as_ref().is_none_or(|row| scope.holds(row))));
    }
}
