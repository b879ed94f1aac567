//! The Nodes by their addresses.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use portreeve_facts::{Address, Node, NodeAddressKind, Snapshot};

/// The Nodes that have an address, with its type there.
pub(super) type NodesByAddress<'a> = HashMap<IpAddr, Vec<(&'a Node, NodeAddressKind)>>;

/// Every Node by each of its addresses.
pub(super) fn nodes_by_address(nodes: &[Arc<Node>]) -> NodesByAddress<'_> {
    let mut by_address = NodesByAddress::new();
    for node in nodes {
        for address in &node.addresses {
            by_address.entry(address.ip).or_default().push((node, address.kind));
        }
    }
    for owners in by_address.values_mut() {
        owners.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    }
    by_address
}

/// Whether a link of this node has an address, other than the one where an ipvs proxy keeps those of Services.
pub(super) fn is_on_link(snapshot: &Snapshot, ip: IpAddr) -> bool {
    on_links(snapshot, ip).any(|it| !it.is_ipvs())
}

/// Whether an address that no Node's status names stands beside the node's own ones: it has a prefix of its own length.
pub(super) fn stands_alone(snapshot: &Snapshot, ip: IpAddr) -> bool {
    on_links(snapshot, ip).all(Address::is_alone)
}

fn on_links(snapshot: &Snapshot, ip: IpAddr) -> impl Iterator<Item = &Address> {
    let addresses = snapshot.kernel.interfaces.seen().into_iter().flat_map(|it| &it.addresses);
    addresses.filter(move |it| it.ip == ip)
}

/// Kubernetes' word for an address of this type.
pub(super) fn kind_in_words(kind: NodeAddressKind) -> &'static str {
    match kind {
        NodeAddressKind::InternalIp => "InternalIP",
        NodeAddressKind::ExternalIp => "ExternalIP",
        NodeAddressKind::Hostname => "Hostname address",
    }
}
