//! What a step changes, as data, so that a test can apply it to a snapshot and judge again.

use std::net::IpAddr;

use portreeve_facts::{Mode, PortRange, PortSet};

/// A Service, by namespace and name.
pub type ServiceRef = (String, String);
/// A pod, by namespace and name.
pub type PodRef = (String, String);

/// What is otherwise once a step was followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// `net.ipv4.ip_local_reserved_ports` holds these ports and no others.
    Reserve(PortSet),
    /// The kernel chooses ports from this range.
    ChooseFrom(PortRange),
    /// In its own network, a pod has this range, or the one that it has now, and these reserved ports.
    ChooseInPod(PodRef, Option<PortRange>, PortSet),
    /// The entries of this `port` of a Service that have the first nodePort have the second one.
    MoveService(ServiceRef, u16, [u16; 2]),
    /// A Service has no such external IP any more.
    Release(ServiceRef, IpAddr),
    /// Only nodes with a pod of a Service answer for it, or all do. Where it becomes the former, the API server chooses a
    /// healthCheckNodePort.
    AnswerWithPodsOnly(ServiceRef, bool),
    /// A link has no such address any more.
    DeleteAddress(IpAddr, String),
    /// A chain has no rule of this handle any more.
    DeleteRule(String, u64),
    /// Nothing is left of what kube-proxy programs in this mode, or in any.
    CleanUp(Option<Mode>),
}
