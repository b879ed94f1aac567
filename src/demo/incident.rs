//! The parts of an incident: the steps of its setup, and the expected findings.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use super::part::Part;
use portreeve_rules::findings::Severity;

/// The name of the scanned node, in the manifest and as host name.
pub(super) const NODE: &str = "node-a";
/// The node's address (RFC 5737: documentation only).
pub(super) const NODE_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
/// The address of the other node. A packet to this address leaves the scanned node, and gets no answer.
pub(super) const PEER_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 12);

pub(super) struct Incident {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// All steps of the setup, each with its name for `--without` and its text. If a step is left out, the incident
    /// does not occur.
    pub(super) steps: &'static [(&'static str, &'static str)],
    pub(super) expected: &'static [Expected],
    pub(super) scene: fn(&Steps) -> Scene,
}

pub(super) struct Steps {
    pub(super) without: Option<String>,
}

impl Steps {
    pub(super) fn has(&self, step: &str) -> bool {
        self.without.as_deref() != Some(step)
    }
}

pub(super) struct Expected {
    /// The id and variant of the finding.
    pub(super) rule: &'static str,
    pub(super) severity: Severity,
    /// The expected finding's subject, e.g. `Service default/web`.
    pub(super) subject: &'static str,
    pub(super) port: Option<u16>,
    /// The names of values that the finding must have, each with the first characters of its value.
    pub(super) evidence: &'static [(&'static str, &'static str)],
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Scene {
    pub(super) objects: Vec<Value>,
    /// Settings below `/proc/sys/net/ipv4`.
    pub(super) sysctls: Vec<(&'static str, &'static str)>,
    pub(super) ipvs_addresses: Vec<IpAddr>,
    pub(super) parts: Vec<Part>,
}
