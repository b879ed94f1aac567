//! The resources that are kept up to date, and how fresh the knowledge of each is.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use portreeve_facts::{Gap, Source};

/// What is read from the API server, each with a [`ResourceStatus`] of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Services that a proxy serves.
    Services,
    /// EndpointSlices of the Services whose endpoints are needed.
    EndpointSlices,
    /// Pods of this node.
    Pods,
    /// Pods without a Node, for want of free ports: polled, not watched.
    WaitingPods,
    /// Nodes: polled, not watched.
    Nodes,
    /// ConfigMaps, platform objects, `/flagz`: polled, not watched.
    Settings,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Self; 6] =
        [Self::Services, Self::EndpointSlices, Self::Pods, Self::WaitingPods, Self::Nodes, Self::Settings];

    /// Its name in metrics and logs, e.g. `endpointslices`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::Pods => "pods",
            Self::WaitingPods => "waitingpods",
            Self::Nodes => "nodes",
            Self::Settings => "settings",
        }
    }

    /// The source that a gap about it names.
    pub fn source(self) -> Source {
        match self {
            Self::Services => Source::Services,
            Self::EndpointSlices => Source::EndpointSlices,
            Self::Pods => Source::Pods,
            Self::WaitingPods => Source::WaitingPods,
            Self::Nodes => Source::Nodes,
            Self::Settings => Source::ConfigMaps,
        }
    }
}

/// How fresh the knowledge of one resource is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceStatus {
    /// When the server last confirmed what is known; `None` until the resource was read as a whole.
    pub confirmed: Option<Instant>,
    /// What has failed since then; `None` while all is well.
    pub failure: Option<Gap>,
    /// Failures so far by code: a status like `410`, or `timed-out`, `unreachable`, `malformed`, `too-much`,
    /// `credentials`.
    pub errors: BTreeMap<String, u64>,
}

impl ResourceStatus {
    /// How old the knowledge is; `None` until there is any.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.confirmed.map(|confirmed| now.saturating_duration_since(confirmed))
    }
}
