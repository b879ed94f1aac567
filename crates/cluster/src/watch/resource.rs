//! The resources that a watch keeps up to date, and the freshness of each resource.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use portreeve_facts::{Gap, Source};

/// A resource that is read from the API server. Each resource has its own [`ResourceStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Services that a proxy serves.
    Services,
    /// EndpointSlices of the Services whose endpoints are needed.
    EndpointSlices,
    /// Pods of this node.
    Pods,
    /// Pods without a Node, because no Node has free ports. These Pods are polled, not watched.
    WaitingPods,
    /// Nodes. They are polled, not watched.
    Nodes,
    /// ConfigMaps, objects of platforms, and `/flagz`. Settings are polled, not watched.
    Settings,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Self; 6] =
        [Self::Services, Self::EndpointSlices, Self::Pods, Self::WaitingPods, Self::Nodes, Self::Settings];

    /// The resources that show which ports of a node are needed. Without the bind hook, a guard reads only these
    /// resources, because its role permits no other resources.
    pub const OF_GUARD: [Self; 3] = [Self::Services, Self::Pods, Self::Nodes];

    /// The resource's name in metrics and logs, for example `endpointslices`.
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

    /// The source in a `Gap` about the resource.
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

/// How fresh one resource is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceStatus {
    /// The time at which the server last confirmed the known state. `None` until the first complete read.
    pub confirmed: Option<Instant>,
    /// The failure since the last success. `None` if the last request succeeded.
    pub failure: Option<Gap>,
    /// The number of failures for each code. A code is an HTTP status such as `410`, or one of `timed-out`,
    /// `unreachable`, `malformed`, `too-much`, `credentials`.
    pub errors: BTreeMap<String, u64>,
}

impl ResourceStatus {
    /// The age of the known state. `None` before the first complete read.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.confirmed.map(|confirmed| now.saturating_duration_since(confirmed))
    }
}
