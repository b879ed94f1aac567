//! This node's addresses as destinations of connections.

use std::net::IpAddr;

use portreeve_facts::{Interfaces, Socket};

/// An address of this node, as a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// Whether its link is enslaved to a VRF: iptables' `--dst-type LOCAL` possibly does not match the address.
    pub vrf: bool,
}

/// This node's addresses on which a listener could answer: all except the addresses that an ipvs proxy added for Services.
pub fn local_addresses(interfaces: &Interfaces) -> Vec<LocalAddress> {
    let in_vrf = |name: &str| {
        let master = interfaces.links.iter().find(|link| link.name == name).and_then(|link| link.master);
        interfaces.links.iter().any(|link| Some(link.index) == master && link.kind.as_deref() == Some("vrf"))
    };
    let mut addresses: Vec<LocalAddress> = interfaces
        .addresses
        .iter()
        .filter(|address| !address.is_ipvs())
        .map(|address| LocalAddress { ip: address.ip, vrf: in_vrf(&address.link) })
        .collect();
    addresses.sort();
    addresses.dedup_by_key(|address| address.ip);
    addresses
}

/// The address of a socket that is bound to a loopback address which no interface has: all of 127.0.0.0/8 is the node's
/// own.
pub fn other_loopback(locals: &[LocalAddress], socket: &Socket) -> Option<LocalAddress> {
    let is_listed = locals.iter().any(|local| local.ip == socket.local);
    (socket.local.is_loopback() && !is_listed).then_some(LocalAddress { ip: socket.local, vrf: false })
}

/// Whether an address can be reached only on its own link.
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
