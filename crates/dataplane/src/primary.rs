//! The primary address of this node: what `primary` in `nodePortAddresses` stands for.

use std::net::IpAddr;

use super::local_address::{is_link_local, local_addresses};
use portreeve_facts::{Family, Gap, Interfaces, NodeAddressKind, ProxyConfig, Snapshot};

/// Why it may be any.
const UNKNOWN: &str = "this node's own Node object was not found, so its primary address is not known";

/// The most addresses that are tried as the primary one. Where there are more, none is too: then each address may be served.
const MOST_PRIMARIES: usize = 16;

/// A primary address of each family, IPv4 then IPv6.
type Primary = [Option<IpAddr>; 2];

/// The primary address of each family: `bindAddress` where it names one, else the Node's first InternalIP, then
/// ExternalIP (kubernetes cmd/kube-proxy/app/server.go). Without the Node's object it can be any address of the node; then
/// the gap says which input would show it.
pub(super) fn primaries(
    snapshot: &Snapshot,
    interfaces: &Interfaces,
    config: &ProxyConfig,
) -> (Vec<Primary>, Option<Gap>) {
    let bound = config.bind_address.filter(|ip| !ip.is_unspecified());
    let known = |family: Family| -> Option<IpAddr> {
        let of_kind = |kind| {
            let node = snapshot.own_node()?;
            node.addresses.iter().find(|it| it.kind == kind && Family::of(it.ip) == family).map(|it| it.ip)
        };
        bound
            .filter(|ip| Family::of(*ip) == family)
            .or_else(|| of_kind(NodeAddressKind::InternalIp))
            .or_else(|| of_kind(NodeAddressKind::ExternalIp))
    };
    if snapshot.own_node().is_some() {
        return (vec![Family::BOTH.map(known)], None);
    }
    let possible = Family::BOTH.map(|family| match known(family) {
        Some(ip) => vec![ip],
        None => local_addresses(interfaces)
            .into_iter()
            .map(|address| address.ip)
            .filter(|ip| Family::of(*ip) == family && !ip.is_loopback() && !is_link_local(*ip))
            .collect::<Vec<_>>(),
    });
    let most = possible.iter().map(Vec::len).max().unwrap_or(0).clamp(1, MOST_PRIMARIES);
    let are_cut = possible.iter().any(|addresses| addresses.len() > MOST_PRIMARIES);
    let turn = |turn| Family::BOTH.map(|family| possible[family.index()].iter().cycle().nth(turn).copied());
    (
        (0..most).map(turn).chain(are_cut.then_some([None, None])).collect(),
        (most > 1).then(|| snapshot.own_node_gap(UNKNOWN)),
    )
}
