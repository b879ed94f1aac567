//! The data plane is not known: the proxy did not answer, and no configuration names its mode.
//!
//! Then a verdict counts only where every mode of kube-proxy agrees, and Cilium too on a node that has its link. Another data
//! plane is known by its own settings, or not at all.

use super::{cilium, iptables, ipvs, nftables, plane::DataPlane};
use crate::facts::Interfaces;

/// What an unknown data plane may be.
static POSSIBLE: [&DataPlane; 3] = [&iptables::PLANE, &ipvs::PLANE, &nftables::PLANE];

/// What it may be on a node with these links.
pub(super) fn possible(interfaces: &Interfaces) -> Vec<&'static DataPlane> {
    POSSIBLE.into_iter().chain(cilium::has_link(interfaces).then_some(&cilium::PLANE)).collect()
}

/// For evidence, in place of the mode.
pub(super) const WORDS: &str = "unknown: this holds in iptables, ipvs and nftables mode";

/// The same on a node that may have Cilium in kube-proxy's place.
pub(super) const OR_CILIUM: &str = ", and with Cilium in kube-proxy's place";
