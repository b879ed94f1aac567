use std::net::Ipv6Addr;

use netlink_packet_core::Emitable;
use nix::libc::{
    AF_INET, AF_INET6, IFA_ADDRESS, IFA_CACHEINFO, IFA_LOCAL, IFLA_AF_SPEC, IFLA_EXT_MASK, IFLA_IFNAME, IFLA_INFO_DATA,
    IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_MASTER, RT_TABLE_MAIN, RTA_CACHEINFO, RTA_ENCAP, RTA_GATEWAY, RTA_MULTIPATH,
    RTA_OIF, RTA_TABLE, RTA_VIA, RTM_GETADDR, RTM_GETLINK, RTM_GETROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE,
    RTN_UNICAST,
};
use proptest::prelude::*;

use super::{
    super::netlink::{
        attribute,
        script::{self, done, message, refused},
    },
    *,
};
use portreeve_facts::Why;

// include/uapi/linux/if_link.h: `IFLA_VXLAN_PORT`, `IFLA_GENEVE_PORT`, `IFLA_BAREUDP_PORT`.
const TUNNELS: [(&str, u16); 3] = [("vxlan", 15), ("geneve", 5), ("bareudp", 1)];
/// include/linux/socket.h
const AF_MCTP: u8 = 45;
/// An attribute that kernels do not have yet.
const LATER: u16 = 999;

fn link_of(attributes: &[Vec<u8>]) -> Link {
    let mut body = vec![0; 16];
    body[4] = 7;
    body[8] = 1;
    body.extend(attributes.concat());
    link(&Message { kind: RTM_NEWLINK, body: &body }).unwrap().unwrap()
}

fn address_of(body: &[u8]) -> Result<Option<Address>, Malformed> {
    address(&Message { kind: RTM_NEWADDR, body }, &BTreeMap::from([(1, "lo".into())]))
}

fn number(constant: i32) -> u8 {
    u8::try_from(constant).unwrap()
}

fn route_header(family: i32, to: u8) -> [u8; 12] {
    [number(family), to, 0, 0, RT_TABLE_MAIN, 3, 0, RTN_UNICAST, 0, 0, 0, 0]
}

fn default_routes_of(to: u8, attributes: &[Vec<u8>]) -> Result<DefaultRoutes, Malformed> {
    let body = [&route_header(AF_INET, to)[..], &attributes.concat()].concat();
    let mut routes = DefaultRoutes::default();
    default_route(&mut routes, &Message { kind: RTM_NEWROUTE, body: &body }).map(|()| routes)
}

fn gateways_of_route(to: u8, attributes: &[Vec<u8>]) -> Result<Vec<IpAddr>, Malformed> {
    default_routes_of(to, attributes).map(|routes| routes.gateways)
}

// Linux 6.18, little endian: `strace -e trace=recvmsg -e read=all ip addr show dev lo`. This is the IPv4 message
// without its nlmsghdr: 127.0.0.1/8 with IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_FLAGS.
const LOOPBACK: [u8; 44] = [
    2, 8, 128, 254, 1, 0, 0, 0, 8, 0, 1, 0, 127, 0, 0, 1, 8, 0, 2, 0, 127, 0, 0, 1, 7, 0, 3, 0, b'l', b'o', 0, 0, 8, 0,
    8, 0, 128, 0, 0, 0, 4, 0, 99, 0,
];

/// A strict kernel refuses requests that set other fields (net/core/rtnetlink.c `rtnl_valid_dump_ifinfo_req`,
/// net/ipv4/devinet.c `inet_valid_dump_ifaddr_req`, net/ipv4/fib_frontend.c `ip_valid_fib_dump_req`).
#[test]
fn requests_set_the_fields_that_a_strict_kernel_allows_and_no_others() {
    let skip_stats = attribute(IFLA_EXT_MASK, &(1u32 << 3).to_ne_bytes());
    assert_eq!(encoded(&every_link()), (RTM_GETLINK, [vec![0; 16], skip_stats].concat()));
    assert_eq!(encoded(&every_address()), (RTM_GETADDR, vec![0; 8]));
    for (family, constant) in [(AddressFamily::Inet, AF_INET), (AddressFamily::Inet6, AF_INET6)] {
        let body = vec![number(constant), 0, 0, 0, RT_TABLE_MAIN, 0, 0, RTN_UNICAST, 0, 0, 0, 0];
        assert_eq!(encoded(&routes_of(family)), (RTM_GETROUTE, body));
    }
}

/// The facts that the reader returns for these four answers: links, addresses, IPv4 routes and IPv6 routes.
fn read_from(answers: [Vec<u8>; 4]) -> Result<Interfaces, Gap> {
    read_over(&mut script::connection(Family::Route, vec![answers.map(Ok).into()]))
}

fn loopback() -> [Vec<u8>; 2] {
    let link = [&[0, 0, 4, 3, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..], &attribute(IFLA_IFNAME, b"lo\0")].concat();
    [
        [message(RTM_NEWLINK, 0, 1, &link), done(1, 0)].concat(),
        [message(RTM_NEWADDR, 0, 2, &LOOPBACK), done(2, 0)].concat(),
    ]
}

#[test]
fn refused_routes_cost_the_gateways_and_no_address() {
    let [links, addresses] = loopback();
    for (errno, why) in [(Errno::EINVAL, Why::Malformed), (Errno::EPERM, Why::NotPermitted)] {
        let seen = read_from([links.clone(), addresses.clone(), refused(3, errno), done(4, 0)]).expect("addresses");
        assert_eq!((seen.addresses.len(), seen.gateways.len(), seen.default_links), (1, 0, None));
        assert_eq!(seen.gateways_gap.map(|gap| (gap.source, gap.why)), Some((Source::Addresses, why)));
    }
    let no_route = refused(3, Errno::ENOENT);
    let seen = read_from([links.clone(), addresses, no_route, refused(4, Errno::ENOENT)]).expect("addresses");
    assert_eq!(seen.gateways_gap, None, "the table does not exist without a route");
    let refused_addresses = read_from([links, refused(2, Errno::EINVAL), done(3, 0), done(4, 0)]);
    assert_eq!(refused_addresses.expect_err("a refusal is never an empty list").why, Why::Malformed);
}

/// Before Linux 4.20 the kernel ignores the table and the kind in a request.
#[test]
fn only_default_routes_of_the_main_table_count() {
    let route = |table: u8, kind: u8, to: u8, gateway: u8| {
        let header = [2, to, 0, 0, table, 3, 0, kind, 0, 0, 0, 0];
        let body = [&header[..], &attribute(RTA_GATEWAY, &[192, 0, 2, gateway])].concat();
        message(RTM_NEWROUTE, 0, 3, &body)
    };
    const RT_TABLE_LOCAL: u8 = 255;
    const RTN_LOCAL: u8 = 2;
    let routes = [
        route(RT_TABLE_LOCAL, RTN_LOCAL, 0, 1),
        route(RT_TABLE_MAIN, RTN_UNICAST, 0, 2),
        route(RT_TABLE_MAIN, RTN_UNICAST, 24, 3),
        route(100, RTN_UNICAST, 0, 4),
        done(3, 0),
    ];
    let [links, addresses] = loopback();
    let seen = read_from([links, addresses, routes.concat(), done(4, 0)]).expect("addresses");
    assert_eq!(seen.gateways, [IpAddr::from([192, 0, 2, 2])]);
}

#[test]
fn an_address_has_the_name_of_its_link() {
    let found = address_of(&LOOPBACK).unwrap().unwrap();
    assert_eq!(found, Address { ip: Ipv4Addr::LOCALHOST.into(), prefix: 8, link: "lo".into() });
    let unnamed = address(&Message { kind: RTM_NEWADDR, body: &LOOPBACK }, &BTreeMap::new()).unwrap().unwrap();
    assert_eq!(&*unnamed.link, "#1");
}

#[test]
fn the_local_end_of_a_point_to_point_link_is_the_node_s_address() {
    let mut body = vec![2, 32, 0, 0, 1, 0, 0, 0];
    body.extend(attribute(IFA_ADDRESS, &[10, 0, 0, 2]));
    body.extend(attribute(IFA_LOCAL, &[10, 0, 0, 1]));
    assert_eq!(address_of(&body).unwrap().unwrap().ip, IpAddr::from([10, 0, 0, 1]));
}

#[test]
fn an_attribute_that_the_crate_cannot_parse_does_not_cost_the_address() {
    let mut body = LOOPBACK.to_vec();
    body.extend(attribute(IFA_CACHEINFO, &[1, 2, 3]));
    body.extend(attribute(LATER, &[1]));
    assert!(AddressMessage::parse(&body).is_err(), "the crate's parser fails, otherwise this reader could be simpler");
    assert_eq!(address_of(&body), address_of(&LOOPBACK));
    let broken = attribute(IFLA_AF_SPEC, &[1, 2, 3, 4, 5]);
    let sound = [attribute(IFLA_IFNAME, b"eth0\0"), attribute(IFLA_MASTER, &9u32.to_ne_bytes())];
    assert!(Vec::<LinkAttribute>::parse_with_param(&broken, AddressFamily::Unspec).is_err());
    assert_eq!(link_of(&[&[broken, attribute(LATER, &[1])], &sound[..]].concat()), link_of(&sound));
}

#[test]
fn an_attribute_that_the_crate_cannot_parse_does_not_cost_the_gateway() {
    let one = attribute(RTA_GATEWAY, &[192, 0, 2, 1]);
    let broken = [attribute(RTA_CACHEINFO, &[1]), attribute(RTA_ENCAP, &[9; 3]), one.clone()];
    let body = [&route_header(AF_INET, 0)[..], &broken.concat()].concat();
    assert!(RouteMessage::parse(&body).is_err(), "the crate's parser fails, otherwise this reader could be simpler");
    assert_eq!(gateways_of_route(0, &broken).unwrap(), [IpAddr::from([192, 0, 2, 1])]);
    let attributes = broken.concat();
    let length = u16::try_from(8 + attributes.len()).unwrap().to_ne_bytes();
    let hop = [&length[..], &[0, 0, 2, 0, 0, 0], &attributes].concat();
    assert_eq!(gateways_of_route(0, &[attribute(RTA_MULTIPATH, &hop)]).unwrap(), [IpAddr::from([192, 0, 2, 1])]);
}

#[test]
fn an_address_of_another_length_is_malformed_and_one_of_another_family_is_left_out() {
    let body = |family: u8| [&[family, 8, 0, 0, 1, 0, 0, 0][..], &attribute(IFA_LOCAL, &[9])].concat();
    assert_eq!(address_of(&body(AF_MCTP)), Ok(None));
    assert!(address_of(&body(number(AF_INET))).is_err());
    assert!(gateways_of_route(0, &[attribute(RTA_GATEWAY, &[192, 0, 2])]).is_err());
}

fn tunnel_of(kind: &str, data: &[Vec<u8>], others: &[Vec<u8>]) -> Link {
    let kind = attribute(IFLA_INFO_KIND, format!("{kind}\0").as_bytes());
    let info = [kind, attribute(IFLA_INFO_DATA, &data.concat())].concat();
    link_of(&[&[attribute(IFLA_IFNAME, b"flannel.1\0"), attribute(IFLA_LINKINFO, &info)], others].concat())
}

#[test]
fn tunnels_have_their_udp_port() {
    for (kind, number) in TUNNELS {
        let link = tunnel_of(kind, &[attribute(number, &8472u16.to_be_bytes())], &[]);
        assert_eq!((link.name.as_str(), link.kind.as_deref()), ("flannel.1", Some(kind)));
        assert_eq!((link.index, link.udp_port, link.up), (7, Some(8472), true));
        let families = if kind == "bareudp" { &IpFamily::BOTH[..] } else { &[IpFamily::V4] };
        assert_eq!(link.tunnel, Some(Tunnel { families: families.to_vec(), ..Tunnel::default() }));
    }
    let wireguard = tunnel_of("wireguard", &[attribute(5, &8472u16.to_be_bytes())], &[]);
    let of_both = Tunnel { families: IpFamily::BOTH.to_vec(), ..Tunnel::default() };
    assert_eq!((wireguard.udp_port, wireguard.tunnel), (None, Some(of_both)), "it has a port, which is not read");
}

/// include/uapi/linux/if_link.h: `IFLA_GENEVE_ID`, `IFLA_GENEVE_COLLECT_METADATA` (a flag), `IFLA_GENEVE_REMOTE6`.
#[test]
fn geneve_has_its_vni_its_family_and_its_external_flag() {
    let port = attribute(5, &6081u16.to_be_bytes());
    let tunnel =
        |more: &[Vec<u8>]| tunnel_of("geneve", &[std::slice::from_ref(&port), more].concat(), &[]).tunnel.unwrap();
    let of_ipv6 = tunnel(&[attribute(1, &7u32.to_ne_bytes()), attribute(7, &[0; 16])]);
    assert_eq!(of_ipv6, Tunnel { id: Some(7), families: vec![IpFamily::V6], ..Tunnel::default() });
    let external = tunnel(&[attribute(1, &0u32.to_ne_bytes()), attribute(6, &[])]);
    assert_eq!(external, Tunnel { external: true, families: IpFamily::BOTH.to_vec(), ..Tunnel::default() });
}

/// include/uapi/linux/if_link.h: `IFLA_VXLAN_ID`, `IFLA_VXLAN_GROUP6`, `IFLA_VXLAN_UDP_ZERO_CSUM6_RX`, `IFLA_VXLAN_GBP`
/// (a flag).
#[test]
fn vxlan_has_each_receive_option_once_and_a_vni_of_another_length_is_malformed() {
    let port = attribute(15, &8472u16.to_be_bytes());
    let tunnel =
        |more: &[Vec<u8>]| tunnel_of("vxlan", &[std::slice::from_ref(&port), more].concat(), &[]).tunnel.unwrap();
    let some =
        tunnel(&[attribute(23, &[]), attribute(1, &7u32.to_ne_bytes()), attribute(23, &[]), attribute(20, &[0])]);
    assert_eq!((some.options, some.families), (vec!["gbp".to_owned()], vec![IpFamily::V4]));
    let of_ipv6 = tunnel(&[attribute(20, &[1]), attribute(16, &[0; 16])]);
    assert_eq!((of_ipv6.options, of_ipv6.families), (vec!["udp6zerocsumrx".to_owned()], vec![IpFamily::V6]));
    assert!(super::tunnel(&InfoKind::Vxlan, &attribute(1, &[1])).is_err());
}

/// The kernel sends `IFLA_LINK_NETNSID` if the port and the link are in different namespaces.
#[test]
fn a_tunnel_whose_port_is_in_another_namespace_has_none_here() {
    const IFLA_LINK_NETNSID: u16 = 37;
    let link = tunnel_of("vxlan", &[attribute(15, &4789u16.to_be_bytes())], &[attribute(IFLA_LINK_NETNSID, &[0; 4])]);
    assert_eq!((link.kind.as_deref(), link.udp_port, link.tunnel), (Some("vxlan"), None, None));
}

#[test]
fn a_dummy_has_no_port_and_a_hostile_name_is_cleaned() {
    let info = attribute(IFLA_INFO_KIND, b"dummy\0");
    let link = link_of(&[
        attribute(IFLA_IFNAME, b"a\x1b[31m\xff\0"),
        attribute(IFLA_MASTER, &9u32.to_ne_bytes()),
        attribute(IFLA_LINKINFO, &info),
    ]);
    assert_eq!(link.name, "a[31m\u{fffd}");
    assert_eq!((link.udp_port, link.master), (None, Some(9)));
}

#[test]
fn gateways_of_one_hop_of_several_hops_and_of_another_family_are_read() {
    let route = |attributes: &[Vec<u8>], to| gateways_of_route(to, attributes).unwrap();
    let one = attribute(RTA_GATEWAY, &[192, 0, 2, 1]);
    assert_eq!(route(std::slice::from_ref(&one), 0), [IpAddr::from([192, 0, 2, 1])]);
    assert_eq!(route(std::slice::from_ref(&one), 24), [] as [IpAddr; 0]);
    assert_eq!(route(&[attribute(RTA_TABLE, &100u32.to_ne_bytes()), one.clone()], 0), [] as [IpAddr; 0]);
    let hop = [&[16, 0, 0, 0, 2, 0, 0, 0], &one[..]].concat();
    assert_eq!(route(&[attribute(RTA_MULTIPATH, &[hop.clone(), hop].concat())], 0).len(), 2);
    let via = RouteVia::Inet6(Ipv6Addr::LOCALHOST);
    let mut bytes = vec![0; via.buffer_len()];
    via.emit(&mut bytes);
    assert_eq!(route(&[attribute(RTA_VIA, &bytes)], 0), [IpAddr::from(Ipv6Addr::LOCALHOST)]);
}

#[test]
fn the_link_of_a_default_route_is_read_and_no_link_of_several_hops() {
    let links = |attributes: &[Vec<u8>], to| default_routes_of(to, attributes).map(|routes| routes.links);
    let over = |link: u32| attribute(RTA_OIF, &link.to_ne_bytes());
    assert_eq!(links(&[over(2)], 0), Ok(vec![2]), "also without a gateway");
    assert_eq!(links(&[over(2)], 24), Ok(vec![]));
    assert_eq!(links(&[over(2), attribute(RTA_TABLE, &100u32.to_ne_bytes())], 0), Ok(vec![]));
    let hop = [&[16, 0, 0, 0, 2, 0, 0, 0], &attribute(RTA_GATEWAY, &[192, 0, 2, 1])[..]].concat();
    assert_eq!(links(&[attribute(RTA_MULTIPATH, &hop)], 0), Ok(vec![]));
    assert!(links(&[attribute(RTA_OIF, &[2])], 0).is_err());
}

#[test]
fn a_message_cut_short_is_malformed() {
    for length in (0..8).chain(12..16) {
        assert!(address_of(&LOOPBACK[..length]).is_err(), "{length}");
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..96), nested in proptest::collection::vec(any::<u8>(), 0..48)) {
        let mut routes = DefaultRoutes::default();
        let route = [route_header(AF_INET, 0).to_vec(), attribute(RTA_MULTIPATH, &nested), attribute(RTA_VIA, &nested)].concat();
        let tunnel = attribute(IFLA_LINKINFO, &[attribute(IFLA_INFO_KIND, b"vxlan\0"), attribute(IFLA_INFO_DATA, &nested)].concat());
        for body in [body, route, [vec![0; 16], tunnel].concat(), [vec![0; 16], attribute(IFLA_LINKINFO, &nested)].concat()] {
            let read = link(&Message { kind: RTM_NEWLINK, body: &body });
            prop_assert!(read.is_err() || body.len() >= 16);
            let read = address_of(&body);
            prop_assert!(read.is_err() || body.len() >= 8);
            let read = default_route(&mut routes, &Message { kind: RTM_NEWROUTE, body: &body });
            prop_assert!(read.is_err() || body.len() >= 12);
        }
    }
}
