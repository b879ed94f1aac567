//! An incident: the steps that set it up, and the findings that must be found.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use super::part::Part;
use portreeve_rules::findings::Severity;

/// The node that is scanned, in the manifest and as host name.
pub(super) const NODE: &str = "node-a";
/// The address of this node (RFC 5737: documentation only).
pub(super) const NODE_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
/// The other node's address. A frame to it leaves the node, and there is no answer.
pub(super) const PEER_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 12);

/// One incident.
pub(super) struct Incident {
    /// The incident's name on the command line.
    pub(super) name: &'static str,
    /// The effect on people, in a few words.
    pub(super) title: &'static str,
    /// All steps of the setup. Without any of these steps there is no incident.
    pub(super) steps: &'static [Step],
    /// The findings that the demo must find: all of them.
    pub(super) expected: &'static [Expected],
    /// Makes the scene from the steps.
    pub(super) scene: fn(&Steps) -> Scene,
}

/// A step of the setup.
pub(super) struct Step {
    /// The step's name for `--without`.
    pub(super) name: &'static str,
    /// The setup in words, for people.
    pub(super) description: &'static str,
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

    /// Whether a step is set up.
    pub(super) fn has(&self, step: &Step) -> bool {
        self.without.as_deref() != Some(step.name)
    }
}

/// A finding that must be there.
pub(super) struct Expected {
    /// The expected finding's id and its variant.
    pub(super) rule: &'static str,
    /// The expected finding's severity, exactly.
    pub(super) severity: Severity,
    /// The subject of the finding, e.g. `Service default/web`.
    pub(super) subject: &'static str,
    /// The port of the finding.
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
