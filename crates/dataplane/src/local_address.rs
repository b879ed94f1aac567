//! This node's addresses as destinations of connections.

use std::net::IpAddr;

use portreeve_facts::{Interfaces, Link, Socket};

/// An address of this node, as a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// Whether the address's link is in a VRF. If true, iptables' `--dst-type LOCAL` may not match the address.
    pub vrf: bool,
}

/// This node's addresses on which a listener could answer. Addresses that an ipvs proxy added for Services are left
/// out.
pub fn local_addresses(interfaces: &Interfaces) -> Vec<LocalAddress> {
    let in_vrf = |name: &str| {
        let link = interfaces.links.iter().find(|link| link.name == name);
        link.is_some_and(|link| vrf_of(interfaces, link).is_some())
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

/// The VRF of a link: the link itself, or its master.
pub(super) fn vrf_of<'a>(interfaces: &'a Interfaces, link: &'a Link) -> Option<&'a Link> {
    let master = interfaces.links.iter().find(|it| Some(it.index) == link.master);
    [Some(link), master].into_iter().flatten().find(|it| it.kind.as_deref() == Some("vrf"))
}

/// The address of a socket on a loopback address that no interface has. Every address of 127.0.0.0/8 belongs to the
/// node. `locals` is sorted.
pub fn other_loopback(locals: &[LocalAddress], socket: &Socket) -> Option<LocalAddress> {
    let is_listed = locals.binary_search_by_key(&socket.local, |local| local.ip).is_ok();
    (socket.local.is_loopback() && !is_listed).then_some(LocalAddress { ip: socket.local, vrf: false })
}

/// Whether an address is link-local, so that only clients on the same link can reach it.
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
