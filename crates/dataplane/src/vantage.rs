//! The vantage points from which clients reach an address, and the vantage points that a listener on this address
//! serves.

use std::net::IpAddr;

use super::local_address::is_link_local;
use portreeve_facts::{Family, Interfaces, Socket, Vantage};

/// The vantage points from which an address of this node can be reached.
pub fn vantage_points(address: IpAddr) -> &'static [Vantage] {
    if address.is_loopback() {
        &[Vantage::Loopback]
    } else if is_link_local(address) {
        &[Vantage::Remote, Vantage::Node]
    } else {
        &[Vantage::Remote, Vantage::Node, Vantage::Pods]
    }
}

/// Whether a socket gets connections at every address of this node, not only at one device's addresses.
pub fn is_everywhere(socket: &Socket) -> bool {
    socket.local.is_unspecified() && socket.device == 0
}

/// The vantage points to which a listener answers on an address, if no proxy interferes. Empty if the socket does not
/// listen on the address.
///
/// A socket that is bound to a device receives packets that arrive on this device. The socket also receives the node's
/// own connections to the device's addresses (`orig_oif` in Linux' net/ipv4/route.c, ip_route_output_key_hash_rcu).
pub fn answering_vantage_points(socket: &Socket, address: IpAddr, interfaces: &Interfaces) -> &'static [Vantage] {
    let listens = socket.local.is_unspecified() || socket.local == address;
    if !listens || socket.serves(Family::of(address)) != Some(true) {
        return &[];
    }
    if socket.device == 0 {
        return vantage_points(address);
    }
    let device = interfaces.links.iter().find(|it| it.index == socket.device).map(|it| it.name.as_str());
    let has_it = interfaces.addresses.iter().any(|it| it.ip == address && Some(&*it.link) == device);
    match (address.is_loopback(), device, has_it) {
        (true, Some("lo"), _) => &[Vantage::Loopback],
        (true, ..) => &[],
        (false, Some("lo"), _) => &[Vantage::Node],
        (false, _, true) => &[Vantage::Remote, Vantage::Node],
        (false, _, false) => &[Vantage::Remote],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        Snapshot,
        healthy::{PRIMARY, ip},
    };

    #[test]
    fn a_socket_of_a_device_receives_from_that_device_and_its_own_node() {
        let world = Snapshot::healthy().listens("0.0.0.0:30080");
        let interfaces = world.kernel.interfaces.seen().expect("interfaces").clone();
        let socket = world.kernel.listeners.seen().expect("listeners").last().expect("one").clone();
        assert_eq!(answering_vantage_points(&socket, ip(PRIMARY[0]), &interfaces), vantage_points(ip(PRIMARY[0])));
        let link = &interfaces.addresses.iter().find(|it| it.ip == ip(PRIMARY[0])).expect("an address").link;
        let device = interfaces.links.iter().find(|it| *it.name == **link).expect("a link").index;
        let bound = Socket { device, ..socket };
        assert_eq!(answering_vantage_points(&bound, ip(PRIMARY[0]), &interfaces), [Vantage::Remote, Vantage::Node]);
        assert_eq!(answering_vantage_points(&bound, ip("127.0.0.1"), &interfaces), []);
        assert_eq!(answering_vantage_points(&bound, ip(PRIMARY[1]), &interfaces), [], "it is of the other family");
    }

    #[test]
    fn loopback_and_other_devices_are_distinct() {
        let world = Snapshot::healthy().listens("0.0.0.0:30080").address("other0", "198.51.100.1");
        let interfaces = world.kernel.interfaces.seen().expect("interfaces").clone();
        let socket = world.kernel.listeners.seen().expect("listeners").last().expect("one").clone();
        let device = |name: &str| interfaces.links.iter().find(|it| it.name == name).expect("a link").index;
        let on = |name: &str, address: &str| {
            answering_vantage_points(&Socket { device: device(name), ..socket.clone() }, ip(address), &interfaces)
        };
        assert_eq!(on("other0", "198.51.100.1"), [Vantage::Remote, Vantage::Node]);
        assert_eq!(on("other0", PRIMARY[0]), [Vantage::Remote], "the node asks another device of its own");
        assert_eq!(on("lo", "127.0.0.1"), [Vantage::Loopback]);
        assert_eq!(on("lo", PRIMARY[0]), [Vantage::Node]);
    }
}
