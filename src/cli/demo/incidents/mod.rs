//! The five incidents: what each sets up, and what must be found.

mod crowded_range;
mod lost_node;
mod squatting_listener;
mod starved_proxy;
mod widened_ephemeral_range;

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use super::part::Part;
use crate::findings::Severity;

/// Every incident, in the order in which they are told.
pub(super) static INCIDENTS: [&Incident; 5] = [
    &starved_proxy::INCIDENT,
    &crowded_range::INCIDENT,
    &squatting_listener::INCIDENT,
    &widened_ephemeral_range::INCIDENT,
    &lost_node::INCIDENT,
];

/// The node that is looked at, in the manifest and as host name.
pub(super) const NODE: &str = "node-a";
/// Its address (RFC 5737: documentation only).
pub(super) const NODE_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);
/// The other node's address. A frame to it leaves the node, and nobody answers.
pub(super) const PEER_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 12);

/// One incident.
pub(super) struct Incident {
    /// Its name on the command line.
    pub(super) name: &'static str,
    /// What happened to people, in a few words.
    pub(super) title: &'static str,
    /// Everything that is set up. Without any one of them it is not the incident any more.
    pub(super) steps: &'static [Step],
    /// What must be found: all of it.
    pub(super) expected: &'static [Expected],
    /// Sets the steps up.
    pub(super) scene: fn(&Steps) -> Scene,
}

/// One thing that is set up.
pub(super) struct Step {
    /// Its name for `--without`.
    pub(super) name: &'static str,
    /// What is set up, for people.
    pub(super) says: &'static str,
}

/// Which steps are set up.
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
    /// Its rule.
    pub(super) rule: &'static str,
    /// Its severity, exactly.
    pub(super) severity: Severity,
    /// Whom it is about, e.g. `Service default/web`.
    pub(super) subject: &'static str,
    /// The port it is about.
    pub(super) port: Option<u16>,
    /// Names of evidence that must be there too, each with the beginning of its value.
    pub(super) evidence: &'static [(&'static str, &'static str)],
}

/// What a set of steps comes to.
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

/// Every name that `--without` takes.
pub(super) fn step_names() -> impl Iterator<Item = &'static str> {
    INCIDENTS.iter().flat_map(|incident| incident.steps).map(|step| step.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_step_has_a_name_of_its_own_and_changes_the_scene() {
        let names: BTreeSet<_> = step_names().collect();
        assert_eq!(names.len(), step_names().count());
        for incident in INCIDENTS {
            let whole = (incident.scene)(&Steps::without(None));
            for step in incident.steps {
                let less = (incident.scene)(&Steps::without(Some(step.name.to_owned())));
                assert_ne!(whole, less, "{} / {}", incident.name, step.name);
            }
        }
    }

    #[test]
    fn every_expected_rule_is_in_the_catalogue_and_can_be_that_severe() {
        for expected in INCIDENTS.iter().flat_map(|incident| incident.expected) {
            let rule = crate::rules::find(expected.rule).unwrap_or_else(|| panic!("no rule {}", expected.rule));
            assert!(expected.severity <= rule.ceiling, "{}", expected.rule);
        }
    }
}
