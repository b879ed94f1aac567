//! What an incident is: the steps that set it up, and what must be found.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use super::part::Part;
use portreeve_rules::findings::Severity;

/// The node that is looked at, in the manifest and as host name.
pub(super) const NODE: &str = "node-a";
/// Its address (RFC 5737: documentation only).
pub(super) const NODE_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
/// The other node's address. A frame to it leaves the node, and there is no answer.
pub(super) const PEER_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 12);

/// One incident.
pub(super) struct Incident {
    /// The incident's name on the command line.
    pub(super) name: &'static str,
    /// The effect on people, in a few words.
    pub(super) title: &'static str,
    /// All steps of the setup: the name for `--without`, and the setup in words. Without any of these steps there is no incident.
    pub(super) steps: &'static [(&'static str, &'static str)],
    /// The findings that the demo must find: all of them.
    pub(super) expected: &'static [Expected],
    /// Makes the scene from the steps.
    pub(super) scene: fn(&Steps) -> Scene,
}

/// The steps that are set up.
pub(super) struct Steps {
    without: Option<String>,
}

impl Steps {
    /// All of them, or all but one.
    pub(super) fn without(step: Option<String>) -> Self {
        Self { without: step }
    }

    /// Whether the step with this name is set up.
    pub(super) fn has(&self, step: &str) -> bool {
        self.without.as_deref() != Some(step)
    }
}

/// A finding that must be there.
pub(super) struct Expected {
    /// The expected finding's id and its variant.
    pub(super) rule: &'static str,
    /// The expected finding's severity, exactly.
    pub(super) severity: Severity,
    /// Whom it is about, e.g. `Service default/web`.
    pub(super) subject: &'static str,
    /// The port it is about.
    pub(super) port: Option<u16>,
    /// Names of evidence that must be there too, each with the beginning of its value.
    pub(super) evidence: &'static [(&'static str, &'static str)],
}

/// The result of a set of steps.
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
