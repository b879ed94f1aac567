//! The Nodes by their addresses.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use crate::facts::{Node, NodeAddressKind};

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

/// Kubernetes' word for an address of this type.
pub(super) fn kind_in_words(kind: NodeAddressKind) -> &'static str {
    match kind {
        NodeAddressKind::InternalIp => "InternalIP",
        NodeAddressKind::ExternalIp => "ExternalIP",
        NodeAddressKind::Hostname => "Hostname address",
    }
}
