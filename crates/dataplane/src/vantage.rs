//! The vantage points from which clients reach an address, and the vantage points that a listener on this address
//! serves.

use std::net::IpAddr;

use super::{
    devices::has_default_route,
    local_address::{LocalAddress, is_link_local, vrf_of},
};
use portreeve_facts::{Family, Gap, Interfaces, Link, Socket, Source, Vantage, Why};

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

/// Whether a listener answers clients at `from` that connect to an address, if no proxy interferes.
///
/// A socket that is bound to a device receives packets that arrive on this device. The socket also receives the node's
/// own connections to the device's addresses (`orig_oif` in Linux' net/ipv4/route.c, ip_route_output_key_hash_rcu). A
/// VRF is the device of all packets that arrive on its links.
///
/// # Errors
/// Returns a `Gap` if the answer depends on the client's VRF, or on the device on which the packets arrive.
pub(super) fn answers(
    socket: &Socket,
    (from, to): (Vantage, LocalAddress),
    interfaces: &Interfaces,
) -> Result<bool, Gap> {
    let listens = socket.local.is_unspecified() || socket.local == to.ip;
    if !listens || socket.serves(Family::of(to.ip)) != Some(true) || !vantage_points(to.ip).contains(&from) {
        return Ok(false);
    }
    if socket.device == 0 {
        return if to.vrf { Err(depends_on_vrf(to.ip)) } else { Ok(true) };
    }
    let Some(device) = interfaces.links.iter().find(|it| it.index == socket.device) else {
        return Err(depends_on_device(to.ip));
    };
    let names = interfaces.addresses.iter().filter(|it| it.ip == to.ip).map(|it| &*it.link);
    let links: Vec<&Link> = names.filter_map(|name| interfaces.links.iter().find(|it| it.name == name)).collect();
    let has_it = links.iter().any(|it| it.index == device.index);
    match (vrf_of(interfaces, device), to.vrf) {
        (None, false) => {}
        (Some(vrf), true) if links.iter().any(|it| vrf_of(interfaces, it) == Some(vrf)) => {
            let arrives = from == Vantage::Remote && (has_it || device == vrf);
            return if arrives { Ok(true) } else { Err(depends_on_vrf(to.ip)) };
        }
        _ => return Ok(false),
    }
    match (device.name.as_str(), to.ip.is_loopback(), from) {
        ("lo", true, _) => Ok(true),
        ("lo", false, _) => Ok(has_it && from == Vantage::Node),
        (_, true, _) => Ok(false),
        (_, false, Vantage::Node) => Ok(has_it),
        (_, false, Vantage::Remote) if has_it => Ok(true),
        (_, false, Vantage::Remote) => arrive_on(device, &links, interfaces).ok_or_else(|| depends_on_device(to.ip)),
        (_, false, Vantage::Loopback) => Ok(false),
        (_, false, Vantage::Pods) if has_no_pods(device, interfaces) => Ok(false),
        (_, false, Vantage::Pods) => Err(depends_on_device(to.ip)),
    }
}

/// Whether this device certainly receives no packets of this node's pods. A veth with the default route leads to other
/// machines. A bridge is uncertain, because pods may be on the bridge.
fn has_no_pods(device: &Link, interfaces: &Interfaces) -> bool {
    match device.kind.as_deref() {
        None | Some("bond" | "team" | "vlan" | "dummy") => true,
        Some(kind) => kind == "veth" && has_default_route(interfaces, device) == Some(true),
    }
}

/// Whether packets of remote clients to an address of `links` arrive on this device. If no link of `links` leads to
/// clients, packets of remote clients arrive over the default route.
fn arrive_on(device: &Link, links: &[&Link], interfaces: &Interfaces) -> Option<bool> {
    let is_default = |link: &Link| has_default_route(interfaces, link) == Some(true);
    let has_clients = |link: &&Link| match link.kind.as_deref() {
        _ if is_default(link) => Some(true),
        None => Some(link.name != "lo"),
        Some("bond" | "team" | "vlan") => Some(true),
        Some("dummy" | "veth") => Some(false),
        Some(_) => None,
    };
    let have_clients: Vec<Option<bool>> = links.iter().map(has_clients).collect();
    let is_only_way = is_default(device) && !interfaces.links.iter().any(|it| it != device && is_default(it));
    match (have_clients.contains(&Some(true)), have_clients.contains(&None)) {
        // Remote clients reach the address through its own link. But virtual machines may be behind a bridge, and reach
        // each address of the node through the bridge.
        (true, _) => has_clients(&device).map(|_| false),
        (false, true) => None,
        (false, false) => is_only_way.then_some(true),
    }
}

fn depends_on_vrf(ip: IpAddr) -> Gap {
    let detail = format!(
        "{ip} is in a VRF: whether the socket answers depends on the client's VRF and on the sysctl l3mdev_accept, which Portreeve does not read"
    );
    Gap::new(Source::Sysctls, Why::Ambiguous, detail)
}

fn depends_on_device(ip: IpAddr) -> Gap {
    let detail = format!(
        "the socket is bound to a device: whether it answers at {ip} depends on the device on which packets arrive"
    );
    Gap::new(Source::Addresses, Why::Ambiguous, detail)
}

#[cfg(test)]
mod tests {
    use super::{super::local_address::local_addresses, *};
    use portreeve_facts::{
        Snapshot,
        healthy::{PRIMARY, interfaces_of, ip},
    };

    /// The clients that get an answer at `address` from a socket on 0.0.0.0 that is bound to the device `name`.
    fn bound(world: &Snapshot, name: &str, address: &str, vrf: bool) -> Vec<(Vantage, Result<bool, Source>)> {
        let world = world.clone().listens("0.0.0.0:30080");
        let interfaces = world.kernel.interfaces.seen().expect("interfaces");
        let device = interfaces.links.iter().find(|it| it.name == name).map_or(0, |it| it.index);
        let socket = world.kernel.listeners.seen().expect("listeners").last().expect("one").clone();
        let (socket, to) = (Socket { device, ..socket }, LocalAddress { ip: ip(address), vrf });
        let all = Vantage::ALL.map(|from| (from, answers(&socket, (from, to), interfaces).map_err(|gap| gap.source)));
        all.into_iter().filter(|(_, answers)| *answers != Ok(false)).collect()
    }

    fn on(world: &Snapshot, name: &str, address: &str) -> Vec<(Vantage, Result<bool, Source>)> {
        bound(world, name, address, false)
    }

    const REMOTE: (Vantage, Result<bool, Source>) = (Vantage::Remote, Ok(true));
    const NODE: (Vantage, Result<bool, Source>) = (Vantage::Node, Ok(true));
    const NOT_KNOWN: (Vantage, Result<bool, Source>) = (Vantage::Remote, Err(Source::Addresses));

    fn of_kind(mut world: Snapshot, name: &str, kind: Option<&str>) -> Snapshot {
        let link = interfaces_of(&mut world).links.iter_mut().find(|it| it.name == name).expect("a link");
        link.kind = kind.map(str::to_owned);
        world
    }

    #[test]
    fn a_socket_of_a_device_receives_from_that_device_and_its_own_node() {
        let world = Snapshot::healthy();
        assert_eq!(on(&world, "none", PRIMARY[0]), [REMOTE, NODE, (Vantage::Pods, Ok(true))]);
        assert_eq!(on(&world, "eth0", PRIMARY[0]), [REMOTE, NODE]);
        assert_eq!(on(&world, "eth0", "127.0.0.1"), []);
        assert_eq!(on(&world, "eth0", PRIMARY[1]), [], "it is of the other family");
        assert_eq!(on(&world, "lo", "127.0.0.1"), [(Vantage::Loopback, Ok(true))]);
        assert_eq!(on(&world, "lo", PRIMARY[0]), [], "the node's own packets to this address arrive on eth0");
        assert_eq!(on(&world.address("lo", "10.77.0.1"), "lo", "10.77.0.1"), [NODE]);
    }

    #[test]
    fn whether_a_socket_on_a_bridge_or_a_veth_answers_pods_is_not_known() {
        let pods = (Vantage::Pods, Err(Source::Addresses));
        for kind in ["bridge", "veth", "openvswitch"] {
            let world = of_kind(Snapshot::healthy().address("cni0", "10.244.0.1"), "cni0", Some(kind));
            assert_eq!(on(&world, "cni0", "10.244.0.1"), [REMOTE, NODE, pods], "{kind}");
            let machines = (kind != "veth").then_some(NOT_KNOWN);
            let expected: Vec<_> = machines.into_iter().chain([pods]).collect();
            assert_eq!(on(&world, "cni0", PRIMARY[0]), expected, "{kind}: a virtual machine is a client");
        }
        let uplink = of_kind(Snapshot::healthy(), "eth0", Some("veth"));
        assert_eq!(on(&uplink, "eth0", PRIMARY[0]), [REMOTE, NODE], "the node is a container");
        assert_eq!(on(&of_kind(uplink, "eth0", Some("bridge")), "eth0", PRIMARY[0]), [REMOTE, NODE, pods]);
    }

    #[test]
    fn remote_clients_reach_an_address_over_its_own_link_or_over_the_default_route() {
        let world = Snapshot::healthy().address("other0", "198.51.100.1");
        assert_eq!(on(&world, "other0", "198.51.100.1"), [REMOTE, NODE]);
        assert_eq!(on(&world, "other0", PRIMARY[0]), [], "packets to this address arrive on eth0");
        assert_eq!(on(&world, "eth0", "198.51.100.1"), [REMOTE], "no client is on a dummy link");
        for kind in [None, Some("vlan")] {
            assert_eq!(on(&of_kind(world.clone(), "other0", kind), "eth0", "198.51.100.1"), [], "{kind:?}");
        }
        let bridge = of_kind(world.clone(), "other0", Some("bridge"));
        assert_eq!(on(&bridge, "eth0", "198.51.100.1"), [NOT_KNOWN], "it may have virtual machines, or only pods");
        let mut two = world.address("eth1", "203.0.113.1");
        assert_eq!(on(&two, "eth1", "198.51.100.1"), [NOT_KNOWN], "a router may know the address behind eth1");
        interfaces_of(&mut two).default_links = Some(vec![2, 4]);
        assert_eq!(on(&two, "eth0", "198.51.100.1"), [NOT_KNOWN], "there are two default routes");
    }

    #[test]
    fn a_vrf_has_the_packets_of_its_links_and_of_no_others() {
        let mut world = Snapshot::healthy().address("blue", "203.0.113.9").address("eth1", "198.51.100.1");
        world = of_kind(world.address("red", "203.0.113.8"), "red", Some("vrf"));
        let links = &mut interfaces_of(&mut world).links;
        let blue = links.iter_mut().find(|it| it.name == "blue").expect("a link");
        blue.kind = Some("vrf".to_owned());
        let index = blue.index;
        links.iter_mut().find(|it| it.name == "eth1").expect("a link").master = Some(index);
        let [remote, node, pods] =
            [Vantage::Remote, Vantage::Node, Vantage::Pods].map(|from| (from, Err(Source::Sysctls)));
        assert_eq!(bound(&world, "none", "198.51.100.1", true), [remote, node, pods]);
        for device in ["blue", "eth1"] {
            assert_eq!(bound(&world, device, "198.51.100.1", true), [REMOTE, node, pods], "{device}");
            assert_eq!(on(&world, device, PRIMARY[0]), [], "{device}");
            assert_eq!(bound(&world, device, "203.0.113.8", true), [], "{device}: the address is in another VRF");
        }
        assert_eq!(bound(&world, "eth0", "198.51.100.1", true), []);
        let locals = local_addresses(world.kernel.interfaces.seen().expect("interfaces"));
        let in_vrf: Vec<_> = locals.iter().filter(|it| it.vrf).map(|it| it.ip).collect();
        assert_eq!(in_vrf, [ip("198.51.100.1"), ip("203.0.113.8"), ip("203.0.113.9")]);
    }
}
