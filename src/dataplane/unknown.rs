//! The data plane is not known: the proxy did not answer, and no configuration names its mode.
//!
//! Then a verdict counts only where every mode of kube-proxy agrees. Another data plane is known by its own settings, or not
//! at all.

use super::{iptables, ipvs, nftables, plane::DataPlane};

/// What an unknown data plane may be.
pub(super) static POSSIBLE: [&DataPlane; 3] = [&iptables::PLANE, &ipvs::PLANE, &nftables::PLANE];

/// For evidence, in place of the mode.
pub(super) const WORDS: &str = "unknown: this holds in iptables, ipvs and nftables mode";
