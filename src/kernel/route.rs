//! Links, addresses and default gateways over rtnetlink (include/uapi/linux/rtnetlink.h, if_link.h, if_addr.h).
//!
//! Attributes are picked by number and all others passed over: an attribute that a later kernel adds or changes
//! cannot cost us the addresses of the node.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use super::netlink::{Malformed, Message, NETLINK_ROUTE, Request, attributes, bytes_at, line};
use crate::facts::{Address, Gap, Interfaces, Link, Source, Why, text};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;

const IFLA_EXT_MASK: u16 = 29;
/// `RTEXT_FILTER_SKIP_STATS`: counters cost the kernel most of a link's dump, and nobody here reads them.
const SKIP_STATS: u32 = 1 << 3;
const IFF_UP: u32 = 1;
const RT_TABLE_MAIN: u8 = 254;
const RTN_UNICAST: u8 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// The longest name of a link or a kind, in bytes (include/uapi/linux/if.h `IFNAMSIZ`).
const NAME: usize = 15;

/// Kinds of links that listen on a UDP port in the kernel, and the attribute of their data that tells it, in network
/// byte order. WireGuard tells its port over a netlink family of its own, and to CAP_NET_ADMIN only.
const TUNNELS: [(&str, u16); 3] = [("vxlan", 15), ("geneve", 5), ("bareudp", 1)];

/// Reads every link and address, and the gateways of the main table's default routes.
///
/// # Errors
/// The gap of the first dump that failed.
pub(super) fn read() -> Result<Interfaces, Gap> {
    let mut line = line(NETLINK_ROUTE, true);
    let every_link =
        [&[0; 16], &8u16.to_ne_bytes()[..], &IFLA_EXT_MASK.to_ne_bytes(), &SKIP_STATS.to_ne_bytes()].concat();
    let links = line.dump(&request("links", RTM_GETLINK, &every_link), Vec::new, |links, message| {
        links.extend(link(message)?);
        Ok(())
    })?;
    let names: BTreeMap<u32, Arc<str>> = links.iter().map(|link| (link.index, link.name.as_str().into())).collect();
    let addresses = line.dump(&request("addresses", RTM_GETADDR, &[0; 8]), Vec::new, |addresses, message| {
        addresses.extend(address(message, &names)?);
        Ok(())
    })?;
    let mut gateways = Vec::new();
    for family in [AF_INET, AF_INET6] {
        // Every address is a route of the table `local`, which is not walked this way.
        let body = [family, 0, 0, 0, RT_TABLE_MAIN, 0, 0, RTN_UNICAST, 0, 0, 0, 0];
        match line.dump(&request("routes", RTM_GETROUTE, &body), Vec::new, gateways_of) {
            Ok(told) => gateways.extend(told),
            // There is no such table as long as there is no route.
            Err(gap) if gap.why == Why::NotSupported => {}
            Err(gap) => return Err(gap),
        }
    }
    // A kernel without IPv6 answers its request with the routes it has.
    gateways.sort_unstable();
    gateways.dedup();
    Ok(Interfaces { links, addresses, gateways })
}

fn request<'a>(what: &'static str, kind: u16, body: &'a [u8]) -> Request<'a> {
    Request { source: Source::Addresses, what, kind, body }
}

/// `struct ifinfomsg` and its attributes.
fn link(message: &Message<'_>) -> Result<Option<Link>, Malformed> {
    if message.kind != RTM_NEWLINK {
        return Ok(None);
    }
    let index = u32::from_ne_bytes(bytes_at(message.body, 4)?);
    let flags = u32::from_ne_bytes(bytes_at(message.body, 8)?);
    let mut link =
        Link { index, name: String::new(), kind: None, udp_port: None, master: None, up: flags & IFF_UP != 0 };
    for attribute in attributes(message.body.get(16..).unwrap_or_default()) {
        match attribute? {
            (3, payload) => link.name = name(payload, NAME),
            (10, payload) => link.master = Some(u32::from_ne_bytes(bytes_at(payload, 0)?)),
            (18, payload) => (link.kind, link.udp_port) = kind(payload)?,
            _ => {}
        }
    }
    Ok(Some(link))
}

/// `IFLA_LINKINFO`: the kind, and the UDP port where the kind has one.
fn kind(info: &[u8]) -> Result<(Option<String>, Option<u16>), Malformed> {
    let (mut kind, mut data) = (None, &[][..]);
    for attribute in attributes(info) {
        match attribute? {
            (1, payload) => kind = Some(name(payload, NAME)),
            (2, payload) => data = payload,
            _ => {}
        }
    }
    let tunnel = TUNNELS.into_iter().find(|(name, _)| kind.as_deref() == Some(name));
    let mut port = None;
    if let Some((_, number)) = tunnel {
        for attribute in attributes(data) {
            if let (found, payload) = attribute?
                && found == number
            {
                port = Some(u16::from_be_bytes(bytes_at(payload, 0)?));
            }
        }
    }
    Ok((kind, port))
}

/// `struct ifaddrmsg` and its attributes.
fn address(message: &Message<'_>, names: &BTreeMap<u32, Arc<str>>) -> Result<Option<Address>, Malformed> {
    if message.kind != RTM_NEWADDR {
        return Ok(None);
    }
    let [family, prefix] = bytes_at(message.body, 0)?;
    let index = u32::from_ne_bytes(bytes_at(message.body, 4)?);
    let (mut local, mut either) = (None, None);
    for attribute in attributes(message.body.get(8..).unwrap_or_default()) {
        match attribute? {
            (1, payload) => either = ip(family, payload)?,
            (2, payload) => local = ip(family, payload)?,
            _ => {}
        }
    }
    // IFA_ADDRESS is the peer where there is one; IFA_LOCAL then is ours.
    Ok(local.or(either).map(|ip| Address {
        ip,
        prefix,
        // A link that came after the links were listed.
        link: names.get(&index).map_or_else(|| format!("#{index}").into(), Arc::clone),
    }))
}

/// The gateways of one route, if it is a default route of the main table.
fn gateways_of(gateways: &mut Vec<IpAddr>, message: &Message<'_>) -> Result<(), Malformed> {
    // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
    let [family, to, _, _, table, _, _, kind] = bytes_at(message.body, 0)?;
    if message.kind != RTM_NEWROUTE || to != 0 || kind != RTN_UNICAST {
        return Ok(());
    }
    let attributes = || attributes(message.body.get(12..).unwrap_or_default());
    let mut number = u32::from(table);
    for attribute in attributes() {
        if let (15, payload) = attribute? {
            number = u32::from_ne_bytes(bytes_at(payload, 0)?);
        }
    }
    if number != u32::from(RT_TABLE_MAIN) {
        return Ok(());
    }
    for attribute in attributes() {
        match attribute? {
            (9, hops) => multipath(gateways, family, hops)?,
            hop => gateways.extend(gateway(family, hop)?),
        }
    }
    Ok(())
}

/// `RTA_MULTIPATH`: a `struct rtnexthop` of eight bytes before the attributes of each hop.
fn multipath(gateways: &mut Vec<IpAddr>, family: u8, mut hops: &[u8]) -> Result<(), Malformed> {
    while !hops.is_empty() {
        let length = usize::from(u16::from_ne_bytes(bytes_at(hops, 0)?));
        let hop = hops.get(8..length).ok_or(Malformed("a next hop within its route"))?;
        for attribute in attributes(hop) {
            gateways.extend(gateway(family, attribute?)?);
        }
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(())
}

/// `RTA_GATEWAY`, or `RTA_VIA` where the gateway is of another family than the route.
fn gateway(family: u8, (kind, payload): (u16, &[u8])) -> Result<Option<IpAddr>, Malformed> {
    match kind {
        5 => ip(family, payload),
        18 => {
            let family = u16::from_ne_bytes(bytes_at(payload, 0)?);
            ip(u8::try_from(family).unwrap_or(0), payload.get(2..).unwrap_or_default())
        }
        _ => Ok(None),
    }
}

fn ip(family: u8, payload: &[u8]) -> Result<Option<IpAddr>, Malformed> {
    Ok(match family {
        AF_INET => Some(Ipv4Addr::from(bytes_at::<4>(payload, 0)?).into()),
        AF_INET6 => Some(Ipv6Addr::from(bytes_at::<16>(payload, 0)?).into()),
        _ => None,
    })
}

/// A zero-terminated name, cleaned: whoever may make links may name one with escape codes.
pub(super) fn name(payload: &[u8], limit: usize) -> String {
    let bytes = payload.split(|byte| *byte == 0).next().unwrap_or_default();
    text::clean(&String::from_utf8_lossy(bytes), limit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::netlink::attribute, *};

    fn link_of(attributes: &[Vec<u8>]) -> Link {
        let mut body = vec![0; 16];
        body[4] = 7;
        body[8] = 1;
        body.extend(attributes.concat());
        link(&Message { kind: RTM_NEWLINK, body: &body }).unwrap().unwrap()
    }

    // Linux 6.18, little endian: `strace -e trace=recvmsg -e read=all ip addr show dev lo`, the IPv4 message
    // behind its nlmsghdr: 127.0.0.1/8 with IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_FLAGS.
    const LOOPBACK: [u8; 44] = [
        2, 8, 128, 254, 1, 0, 0, 0, 8, 0, 1, 0, 127, 0, 0, 1, 8, 0, 2, 0, 127, 0, 0, 1, 7, 0, 3, 0, b'l', b'o', 0, 0,
        8, 0, 8, 0, 128, 0, 0, 0, 4, 0, 99, 0,
    ];

    #[test]
    fn an_address_bears_the_name_of_its_link() {
        let names = BTreeMap::from([(1, "lo".into())]);
        let found = address(&Message { kind: RTM_NEWADDR, body: &LOOPBACK }, &names).unwrap().unwrap();
        assert_eq!(found, Address { ip: Ipv4Addr::LOCALHOST.into(), prefix: 8, link: "lo".into() });
        let unnamed = address(&Message { kind: RTM_NEWADDR, body: &LOOPBACK }, &BTreeMap::new()).unwrap().unwrap();
        assert_eq!(&*unnamed.link, "#1");
    }

    #[test]
    fn the_local_end_of_a_point_to_point_link_is_the_node_s_address() {
        let mut body = vec![2, 32, 0, 0, 1, 0, 0, 0];
        body.extend(attribute(1, &[10, 0, 0, 2]));
        body.extend(attribute(2, &[10, 0, 0, 1]));
        let found = address(&Message { kind: RTM_NEWADDR, body: &body }, &BTreeMap::new()).unwrap().unwrap();
        assert_eq!(found.ip, IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn tunnels_tell_their_udp_port() {
        for (kind, number) in TUNNELS {
            let data = attribute(number, &8472u16.to_be_bytes());
            let info = [attribute(1, format!("{kind}\0").as_bytes()), attribute(2, &data)].concat();
            let link = link_of(&[attribute(3, b"flannel.1\0"), attribute(18, &info)]);
            assert_eq!((link.name.as_str(), link.kind.as_deref()), ("flannel.1", Some(kind)));
            assert_eq!((link.index, link.udp_port, link.up), (7, Some(8472), true));
        }
    }

    #[test]
    fn a_dummy_has_no_port_and_a_hostile_name_is_cleaned() {
        let info = attribute(1, b"dummy\0");
        let link =
            link_of(&[attribute(3, b"a\x1b[31m\xff\0"), attribute(10, &9u32.to_ne_bytes()), attribute(18, &info)]);
        assert_eq!(link.name, "a[31m\u{fffd}");
        assert_eq!((link.udp_port, link.master), (None, Some(9)));
    }

    #[test]
    fn gateways_of_one_hop_of_many_and_of_another_family_are_read() {
        let route = |attributes: &[Vec<u8>], to: u8| {
            let mut gateways = Vec::new();
            let body = [&[AF_INET, to, 0, 0, 254, 3, 0, RTN_UNICAST, 0, 0, 0, 0], &attributes.concat()[..]].concat();
            gateways_of(&mut gateways, &Message { kind: RTM_NEWROUTE, body: &body }).unwrap();
            gateways
        };
        let one = attribute(5, &[192, 0, 2, 1]);
        assert_eq!(route(std::slice::from_ref(&one), 0), [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(route(std::slice::from_ref(&one), 24), [] as [IpAddr; 0]);
        assert_eq!(route(&[attribute(15, &100u32.to_ne_bytes()), one.clone()], 0), [] as [IpAddr; 0]);
        let hop = [&[16, 0, 0, 0, 2, 0, 0, 0], &one[..]].concat();
        assert_eq!(route(&[attribute(9, &[hop.clone(), hop].concat())], 0).len(), 2);
        let via = [&u16::from(AF_INET6).to_ne_bytes()[..], &Ipv6Addr::LOCALHOST.octets()].concat();
        assert_eq!(route(&[attribute(18, &via)], 0), [IpAddr::from(Ipv6Addr::LOCALHOST)]);
    }

    #[test]
    fn a_message_cut_short_is_malformed() {
        for length in (0..8).chain(12..16) {
            let cut = Message { kind: RTM_NEWADDR, body: &LOOPBACK[..length] };
            assert!(address(&cut, &BTreeMap::new()).is_err(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..96), nested in proptest::collection::vec(any::<u8>(), 0..48)) {
            let mut gateways = Vec::new();
            for body in [body, [vec![AF_INET, 0, 0, 0, 254, 0, 0, RTN_UNICAST, 0, 0, 0, 0], attribute(9, &nested), attribute(18, &nested)].concat()] {
                let read = link(&Message { kind: RTM_NEWLINK, body: &body });
                prop_assert!(read.is_err() || body.len() >= 12);
                let read = address(&Message { kind: RTM_NEWADDR, body: &body }, &BTreeMap::new());
                prop_assert!(read.is_err() || body.len() >= 8);
                let read = gateways_of(&mut gateways, &Message { kind: RTM_NEWROUTE, body: &body });
                prop_assert!(read.is_err() || body.len() >= 8);
            }
        }
    }
}
