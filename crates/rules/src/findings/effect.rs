//! The change that a step of a remedy makes, as data. A test applies the change to a snapshot, and judges the snapshot
//! again.

use std::net::IpAddr;

use portreeve_facts::{Mode, PortRange, PortSet};

/// A Service, by namespace and name.
pub type ServiceRef = (String, String);
/// A pod, by namespace and name.
pub type PodRef = (String, String);

/// The state after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// `net.ipv4.ip_local_reserved_ports` has exactly these ports.
    Reserve(PortSet),
    /// The kernel chooses ports from this range.
    ChooseFrom(PortRange),
    /// A pod has these reserved ports and this range in its own network. `None` means that the range does not change.
    ChooseInPod(PodRef, Option<PortRange>, PortSet),
    /// A Service uses the second nodePort instead of the first, in all entries with this `port`.
    MoveService(ServiceRef, u16, [u16; 2]),
    /// A Service no longer has this external IP.
    Release(ServiceRef, IpAddr),
    /// Whether only nodes with a pod of the Service answer. If true, the API server allocates a healthCheckNodePort.
    AnswerWithPodsOnly(ServiceRef, bool),
    /// A link no longer has this address.
    DeleteAddress(IpAddr, String),
    /// A chain no longer has the rule with this handle.
    DeleteRule(String, u64),
    /// kube-proxy has removed all its rules of this mode, or of all modes.
    CleanUp(Option<Mode>),
}
