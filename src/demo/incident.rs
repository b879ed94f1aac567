//! The parts of an incident: the steps of its setup, and the expected findings.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use super::part::Part;
use portreeve_rules::findings::Severity;

/// The node that the observer scans, in the manifest and as host name.
pub(super) const NODE: &str = "node-a";
/// The node's address (RFC 5737: documentation only).
pub(super) const NODE_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
/// The other node's address. A frame to this address leaves the node, and gets no answer.
pub(super) const PEER_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 12);

/// One incident.
pub(super) struct Incident {
    /// The incident's name on the command line.
    pub(super) name: &'static str,
    /// The effect on clients, in a few words.
    pub(super) title: &'static str,
    /// All steps of the setup: the name for `--without`, and the step in words. If one step is left out, there is no
    /// incident.
    pub(super) steps: &'static [(&'static str, &'static str)],
    /// The findings of the incident. The demo must find all of them.
    pub(super) expected: &'static [Expected],
    /// Makes the scene from the steps.
    pub(super) scene: fn(&Steps) -> Scene,
}

/// The steps that the demo sets up.
pub(super) struct Steps {
    without: Option<String>,
}

impl Steps {
    /// All steps, or all steps except one.
    pub(super) fn without(step: Option<String>) -> Self {
        Self { without: step }
    }

    /// Whether the demo sets up the step with this name.
    pub(super) fn has(&self, step: &str) -> bool {
        self.without.as_deref() != Some(step)
    }
}

/// An expected finding.
pub(super) struct Expected {
    /// The expected finding's id and its variant.
    pub(super) rule: &'static str,
    /// The expected finding's severity.
    pub(super) severity: Severity,
    /// The expected finding's subject, e.g. `Service default/web`.
    pub(super) subject: &'static str,
    /// The expected finding's port.
    pub(super) port: Option<u16>,
    /// Names of evidence that the finding must have, each with the beginning of its value.
    pub(super) evidence: &'static [(&'static str, &'static str)],
}

/// The state of a node that a set of steps makes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Scene {
    /// The cluster's objects, as an API server lists them.
    pub(super) objects: Vec<Value>,
    /// Settings below `/proc/sys/net/ipv4`.
    pub(super) sysctls: Vec<(&'static str, &'static str)>,
    /// Addresses on a device named kube-ipvs0.
    pub(super) ipvs_addresses: Vec<IpAddr>,
    /// The processes.
    pub(super) parts: Vec<Part>,
}
