//! The result of new connections, in words.

use std::collections::BTreeSet;

use crate::findings::Vantage;
use portreeve_dataplane::Outcome;

/// The result of a connection: one word, and a short text. An outcome is `None` if another claim may take the
/// connection. `is_gate` is true if a feature gate may refuse NodePorts on loopback in nftables mode.
pub(super) fn outcome(
    outcomes: impl Iterator<Item = Option<Outcome>>,
    external_local: bool,
    is_gate: bool,
) -> (&'static str, &'static str) {
    let outcomes: BTreeSet<Option<Outcome>> = outcomes.collect();
    match [Outcome::Pod, Outcome::Refused, Outcome::TimedOut].map(|it| outcomes.contains(&Some(it))) {
        _ if outcomes.contains(&None) => ("several", "are refused or go elsewhere"),
        [true, false, false] => ("pod", "go to the Service's pods instead"),
        [false, true, false] if is_gate => {
            ("refused", "to loopback are refused, since kube-proxy refuses NodePorts on loopback")
        }
        [false, true, false] => ("refused", "are refused, since the Service has no endpoints"),
        [false, false, true] if external_local => {
            ("timed-out", "time out, since the Service has no endpoint on this node")
        }
        [false, false, true] => ("timed-out", "time out, since nothing that leaves loopback here reaches a pod"),
        [true, false, true] => ("timed-out-or-pod", "time out or go to the Service's pods instead"),
        [false, false, false] => ("nowhere", "lead nowhere"),
        _ => ("several", "are refused or go elsewhere"),
    }
}

pub(super) fn from(vantage: Vantage) -> &'static str {
    match vantage {
        Vantage::Remote => "from elsewhere",
        Vantage::Node => "from this node",
        Vantage::Loopback => "from loopback",
        Vantage::Pods => "from its pods",
    }
}
