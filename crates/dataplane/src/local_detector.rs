//! The local detector of kube-proxy: whether it distinguishes this node's pods from outsiders.

use ipnet::IpNet;

use portreeve_facts::{Family, Gap, ProxyConfig, Snapshot};

/// Why there may be one or none.
const UNKNOWN: &str = "kube-proxy tells pods by the Node's podCIDRs, and this node's own are not known";

/// Whether there is a detector, IPv4 then IPv6.
type Detector = [bool; 2];

/// A detector in each family, or in none: no verdict on an address depends on that of the other family.
const EITHER: [Detector; 2] = [[false; 2], [true; 2]];

/// In which families there may be a local detector: `ClusterCIDR`, the default, and `NodeCIDR` need a CIDR of the family,
/// the other modes need nothing (kubernetes cmd/kube-proxy/app/server_linux.go `getLocalDetectors`). Where it may be
/// either, the gap says which input would show it; a configuration that was not read is no gap of its own here.
pub(super) fn local_detectors(snapshot: &Snapshot, config: Option<&ProxyConfig>) -> (Vec<Detector>, Option<Gap>) {
    let of = |families: &[Family]| Family::BOTH.map(|family| families.contains(&family));
    let Some(config) = config else { return (EITHER.to_vec(), None) };
    match config.detect_local_mode.as_deref() {
        None | Some("" | "ClusterCIDR") => {
            let cidrs = config.cluster_cidr.iter().flat_map(|cidrs| cidrs.split(','));
            let cidrs = cidrs.filter_map(|cidr| cidr.trim().parse::<IpNet>().ok());
            (vec![of(&cidrs.map(|cidr| Family::of(cidr.addr())).collect::<Vec<_>>())], None)
        }
        // kube-proxy does not start before its Node has a CIDR: where none is known, it was not read.
        Some("NodeCIDR") => match snapshot.own_node().map_or(&[][..], |node| &node.pod_families) {
            [] => (EITHER.to_vec(), Some(snapshot.own_node_gap(UNKNOWN))),
            families => (vec![of(families)], None),
        },
        Some(_) => (vec![[true; 2]], None),
    }
}
