//! The list of data planes.

use super::{cilium, iptables, ipvs, nftables, plane::DataPlane};

/// Every data plane.
pub(super) static DATA_PLANES: [&DataPlane; 4] = [&iptables::PLANE, &ipvs::PLANE, &nftables::PLANE, &cilium::PLANE];
