//! Links, addresses and default gateways over rtnetlink (rtnetlink(7)).
//!
//! The crate `netlink-packet-route` has the messages and their attributes. The crate's parsers of `LinkMessage`,
//! `AddressMessage` and `RouteMessage` fail on a whole message if one attribute has an unexpected form. So a change in
//! a later kernel could make the addresses of the node unread. This reader uses only the parsers of single attributes,
//! for the attributes that Portreeve needs.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use netlink_packet_core::{
    NLA_ALIGNTO, NetlinkSerializable, Nla, NlaBuffer, NlasIterator, Parseable, ParseableParametrized, parse_u16_be,
    parse_u32,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeader, AddressMessage, AddressMessageBuffer},
    link::{
        InfoBareUdp, InfoData, InfoGeneve, InfoKind, InfoVxlan, LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader,
        LinkInfo, LinkMessage, LinkMessageBuffer,
    },
    route::{
        RouteAddress, RouteAttribute, RouteHeader, RouteLwEnCapType, RouteMessage, RouteMessageBuffer,
        RouteNextHopBuffer, RouteType, RouteVia,
    },
};
use nix::errno::Errno;

use super::netlink::{Connection, Family, Malformed, Message, Request, Transport, bytes_at, connection, name};
use portreeve_facts::{Address, Family as IpFamily, Gap, Interfaces, Link, Source, Tunnel};

/// The longest name of a link or a kind, in bytes (include/uapi/linux/if.h `IFNAMSIZ`).
const NAME: usize = 15;

/// A placeholder: the code uses only the kind of the attribute, not this address.
const UNSPECIFIED: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The default routes of the main table.
#[derive(Clone, Debug, Default)]
pub struct DefaultRoutes {
    /// The gateways.
    pub gateways: Vec<IpAddr>,
    /// The indexes of the links.
    pub links: Vec<u32>,
}

/// Reads every link and address, and the default routes of the main table.
///
/// # Errors
/// The `Gap` of the links or of the addresses: an address without its link is of no use. If the routes cannot be read,
/// only the gateways are unread.
pub fn read() -> Result<Interfaces, Gap> {
    read_over(&mut connection(Family::Route))
}

fn read_over<S: Transport, O: FnMut() -> io::Result<S>>(connection: &mut Connection<S, O>) -> Result<Interfaces, Gap> {
    let (kind, body) = encoded(&every_link());
    let links = connection.dump(&request("links", kind, &body), Vec::new, |links, message| {
        links.extend(link(message)?);
        Ok(())
    })?;
    let names: BTreeMap<u32, Arc<str>> = links.iter().map(|link| (link.index, link.name.as_str().into())).collect();
    let (kind, body) = encoded(&every_address());
    let addresses = connection.dump(&request("addresses", kind, &body), Vec::new, |addresses, message| {
        addresses.extend(address(message, &names)?);
        Ok(())
    })?;
    let (gateways, default_links, gateways_gap) = match default_routes(connection) {
        Ok(routes) => (routes.gateways, Some(routes.links), None),
        Err(gap) => (Vec::new(), None, Some(gap)),
    };
    Ok(Interfaces { links, addresses, gateways, gateways_gap, default_links })
}

fn default_routes<S, O>(connection: &mut Connection<S, O>) -> Result<DefaultRoutes, Gap>
where
    S: Transport,
    O: FnMut() -> io::Result<S>,
{
    let mut routes = DefaultRoutes::default();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let (kind, body) = encoded(&routes_of(family));
        // If there is no route, the kernel has no table, and answers ENOENT.
        let request = Request { absent: Some(Errno::ENOENT), ..request("routes", kind, &body) };
        routes = connection.dump(&request, || routes.clone(), default_route)?;
    }
    // A kernel without IPv6 answers the request for IPv6 routes with the IPv4 routes, so duplicates are removed.
    routes.gateways.sort_unstable();
    routes.gateways.dedup();
    routes.links.sort_unstable();
    routes.links.dedup();
    Ok(routes)
}

/// The request leaves out counters, which Portreeve does not use: they would take most of the kernel's time for a link.
fn every_link() -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])];
    RouteNetlinkMessage::GetLink(message)
}

fn every_address() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetAddress(AddressMessage::default())
}

/// The request for the unicast routes of the main table. With this request, the kernel skips the table `local`, which
/// has a route for every address. A kernel before Linux 4.20 sends the routes of all tables.
fn routes_of(family: AddressFamily) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.kind = RouteType::Unicast;
    RouteNetlinkMessage::GetRoute(message)
}

/// `nlmsg_type`, and all bytes after the `nlmsghdr`.
fn encoded(message: &RouteNetlinkMessage) -> (u16, Vec<u8>) {
    let mut body = vec![0; message.buffer_len()];
    message.serialize(&mut body);
    (message.message_type(), body)
}

fn request<'a>(what: &'static str, kind: u16, body: &'a [u8]) -> Request<'a> {
    Request { source: Source::Addresses, what, kind, body, absent: None }
}

/// The link in a message. `None` if the message is about another object.
pub fn link(message: &Message<'_>) -> Result<Option<Link>, Malformed> {
    if message.kind != RouteNetlinkMessage::NewLink(LinkMessage::default()).message_type() {
        return Ok(None);
    }
    let header = LinkHeader::parse(message.body).map_err(|_| Malformed("a link with its header"))?;
    let mut link = Link { index: header.index, up: header.flags.contains(LinkFlags::Up), ..Link::default() };
    let (mut tunnel, mut is_of_another) = (None, false);
    for attribute in attributes_behind::<LinkMessageBuffer>(message.body) {
        let attribute = attribute?;
        // Names are parsed as bytes. On a name that is not UTF-8, the crate's `IfName` would fail, and then the whole
        // dump would fail.
        if is(&attribute, &LinkAttribute::IfName(String::new())) {
            link.name = name(attribute.value(), NAME);
        } else if is(&attribute, &LinkAttribute::LinkInfo(Vec::new())) {
            (link.kind, tunnel) = kind(attribute.value())?;
        } else if is(&attribute, &LinkAttribute::LinkNetNsId(0)) {
            is_of_another = true;
        } else if is(&attribute, &LinkAttribute::Controller(0)) {
            link.master = Some(parse_u32(attribute.value()).map_err(|_| Malformed("the index of a link's master"))?);
        }
    }
    // A tunnel has its port in the network namespace in which it was made, even after its link moves to another
    // namespace.
    if let Some((port, opened)) = tunnel.filter(|_| !is_of_another) {
        (link.udp_port, link.tunnel) = (port, Some(opened));
    }
    Ok(Some(link))
}

/// The UDP port of a tunnel, and how the kernel opens the port. The port of WireGuard is `None`, because it is not
/// read.
type Opened = (Option<u16>, Tunnel);

/// `IFLA_LINKINFO`: the kind of the link, and its UDP port if the kernel listens for links of this kind. WireGuard
/// reports its port over another netlink family, only with CAP_NET_ADMIN, and together with its private key.
fn kind(info: &[u8]) -> Result<(Option<String>, Option<Opened>), Malformed> {
    let (mut kind, mut data) = (None, None);
    for attribute in attributes(info) {
        let attribute = attribute?;
        if is(&attribute, &LinkInfo::Kind(InfoKind::Dummy)) {
            kind = Some(name(attribute.value(), NAME));
        } else if is(&attribute, &LinkInfo::Data(InfoData::Other(Vec::new()))) {
            data = Some(attribute);
        }
    }
    let data = data.as_ref().map_or(&[][..], NlaBuffer::value);
    let tunnel = kind.as_deref().map(InfoKind::from).map(|kind| tunnel(&kind, data)).transpose()?;
    Ok((kind, tunnel.flatten()))
}

fn tunnel(kind: &InfoKind, data: &[u8]) -> Result<Option<Opened>, Malformed> {
    const ANY: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
    let [its_port, its_id, external, ipv6_remote, ipv6_local] = match kind {
        InfoKind::Vxlan => {
            use InfoVxlan::{CollectMetadata, Group6, Id, Local6, Port};
            [Port(0), Id(0), CollectMetadata(false), Group6(ANY), Local6(ANY)].map(|it| Some(it.kind()))
        }
        InfoKind::Geneve => {
            use InfoGeneve::{CollectMetadata, Id, Local6, Port, Remote6};
            [Port(0), Id(0), CollectMetadata, Remote6(ANY), Local6(ANY)].map(|it| Some(it.kind()))
        }
        InfoKind::BareUdp => [Some(InfoBareUdp::Port(0).kind()), None, None, None, None],
        // WireGuard opens a socket of each family (drivers/net/wireguard/socket.c `wg_socket_init`).
        InfoKind::Wireguard => {
            return Ok(Some((None, Tunnel { families: IpFamily::BOTH.to_vec(), ..Tunnel::default() })));
        }
        _ => return Ok(None),
    };
    let (mut port, mut tunnel, mut families) = (None, Tunnel::default(), &[IpFamily::V4][..]);
    for attribute in attributes(data) {
        let attribute = attribute?;
        // A flag is either present or absent. Other attributes are always present, with the value 0 or 1.
        let (number, is_set) = (Some(attribute.kind()), attribute.value().first() != Some(&0));
        if number == its_port {
            port = Some(parse_u16_be(attribute.value()).map_err(|_| Malformed("the port of a tunnel"))?);
        } else if number == its_id {
            tunnel.id = Some(parse_u32(attribute.value()).map_err(|_| Malformed("the VNI of a tunnel"))?);
        } else if number == external {
            tunnel.external = is_set;
        } else if number == ipv6_remote || number == ipv6_local {
            families = &[IpFamily::V6];
        } else if *kind == InfoKind::Vxlan && is_set {
            tunnel.options.extend(receiving(&attribute).map(str::to_owned));
        }
    }
    tunnel.options.sort();
    tunnel.options.dedup();
    tunnel.id = tunnel.id.filter(|_| !tunnel.external);
    // An external VXLAN or Geneve device opens a socket of each family (vxlan_sock_add, geneve_open). bareudp opens one
    // socket for the two families (bareudp_create_sock).
    let both = tunnel.external || *kind == InfoKind::BareUdp;
    tunnel.families = if both { IpFamily::BOTH.to_vec() } else { families.to_vec() };
    Ok(port.map(|port| (Some(port), tunnel)))
}

/// The name of an option in ip-link(8). VXLAN devices can share a socket only if the option is equal on all these
/// devices. The option `external` must also be equal, and has its own field in `Tunnel`.
fn receiving(attribute: &NlaBuffer<&[u8]>) -> Option<&'static str> {
    let options = [
        (InfoVxlan::Gbp, "gbp"),
        (InfoVxlan::Gpe, "gpe"),
        (InfoVxlan::RemCsumNoPartial, "remcsum-nopartial"),
        (InfoVxlan::RemCsumRX(false), "remcsumrx"),
        (InfoVxlan::UDPZeroCsumRX(false), "udp6zerocsumrx"),
        (InfoVxlan::Vnifilter(false), "vnifilter"),
    ];
    options.into_iter().find(|(option, _)| is(attribute, option)).map(|(_, name)| name)
}

/// The address in a message. `None` if the message is about another object.
pub fn address(message: &Message<'_>, names: &BTreeMap<u32, Arc<str>>) -> Result<Option<Address>, Malformed> {
    if message.kind != RouteNetlinkMessage::NewAddress(AddressMessage::default()).message_type() {
        return Ok(None);
    }
    let header = AddressHeader::parse(message.body).map_err(|_| Malformed("an address with its header"))?;
    // The dump also has other families. For example, an address of MCTP has one byte.
    if !matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6) {
        return Ok(None);
    }
    let [own, peer] = [AddressAttribute::Local, AddressAttribute::Address].map(|example| example(UNSPECIFIED));
    let (mut local, mut either) = (None, None);
    for attribute in attributes_behind::<AddressMessageBuffer>(message.body) {
        let attribute = attribute?;
        if is(&attribute, &own) || is(&attribute, &peer) {
            match AddressAttribute::parse(&attribute) {
                Ok(AddressAttribute::Local(ip)) => local = Some(ip),
                Ok(AddressAttribute::Address(ip)) => either = Some(ip),
                _ => return Err(Malformed("an address of four or sixteen bytes")),
            }
        }
    }
    // If the address has a peer, IFA_ADDRESS is the peer's address, and IFA_LOCAL is the node's own address.
    Ok(local.or(either).map(|ip| Address {
        ip,
        prefix: header.prefix_len,
        // A link that appeared after the dump of links has no known name.
        link: names.get(&header.index).map_or_else(|| format!("#{}", header.index).into(), Arc::clone),
    }))
}

/// Adds the facts of a route, if it is a default route of the main table.
pub fn default_route(routes: &mut DefaultRoutes, message: &Message<'_>) -> Result<(), Malformed> {
    let header = RouteHeader::parse(message.body).map_err(|_| Malformed("a route with its header"))?;
    let is_default = header.destination_prefix_length == 0 && header.kind == RouteType::Unicast;
    if message.kind != RouteNetlinkMessage::NewRoute(RouteMessage::default()).message_type() || !is_default {
        return Ok(());
    }
    let mut table = u32::from(header.table);
    let mut found = DefaultRoutes::default();
    for attribute in attributes_behind::<RouteMessageBuffer>(message.body) {
        let attribute = attribute?;
        if is(&attribute, &RouteAttribute::Table(0)) {
            table = parse_u32(attribute.value()).map_err(|_| Malformed("the number of a routing table"))?;
        } else if is(&attribute, &RouteAttribute::MultiPath(Vec::new())) {
            multipath(&mut found.gateways, header.address_family, attribute.value())?;
        } else if is(&attribute, &RouteAttribute::Oif(0)) {
            found.links.push(parse_u32(attribute.value()).map_err(|_| Malformed("the index of a route's link"))?);
        } else {
            found.gateways.extend(gateway(header.address_family, &attribute)?);
        }
    }
    if table == u32::from(RouteHeader::RT_TABLE_MAIN) {
        routes.gateways.extend(found.gateways);
        routes.links.extend(found.links);
    }
    Ok(())
}

/// `RTA_MULTIPATH`: each hop is a `struct rtnexthop` with attributes. The crate's parser would fail on all hops if it
/// cannot parse one attribute.
fn multipath(gateways: &mut Vec<IpAddr>, family: AddressFamily, mut hops: &[u8]) -> Result<(), Malformed> {
    while !hops.is_empty() {
        let length = usize::from(u16::from_ne_bytes(bytes_at(hops, 0)?));
        let hop = hops.get(size_of::<RouteNextHopBuffer>()..length).ok_or(Malformed("a next hop within its route"))?;
        for attribute in attributes(hop) {
            gateways.extend(gateway(family, &attribute?)?);
        }
        hops = hops.get(length.next_multiple_of(NLA_ALIGNTO)..).unwrap_or_default();
    }
    Ok(())
}

/// `RTA_GATEWAY`, or `RTA_VIA` if the gateway's address and the route are of different families.
fn gateway(family: AddressFamily, attribute: &NlaBuffer<&[u8]>) -> Result<Option<IpAddr>, Malformed> {
    let here = RouteAttribute::Gateway(UNSPECIFIED.into());
    if !is(attribute, &here) && !is(attribute, &RouteAttribute::Via(UNSPECIFIED.into())) {
        return Ok(None);
    }
    match RouteAttribute::parse_with_param(attribute, (family, RouteType::Unicast, RouteLwEnCapType::None)) {
        Ok(RouteAttribute::Gateway(RouteAddress::Inet(ip)) | RouteAttribute::Via(RouteVia::Inet(ip))) => {
            Ok(Some(ip.into()))
        }
        Ok(RouteAttribute::Gateway(RouteAddress::Inet6(ip)) | RouteAttribute::Via(RouteVia::Inet6(ip))) => {
            Ok(Some(ip.into()))
        }
        Ok(_) => Ok(None),
        Err(_) => Err(Malformed("the address of a gateway")),
    }
}

fn attributes_behind<Header>(message: &[u8]) -> impl Iterator<Item = Result<NlaBuffer<&[u8]>, Malformed>> {
    attributes(message.get(size_of::<Header>()..).unwrap_or_default())
}

fn attributes(bytes: &[u8]) -> impl Iterator<Item = Result<NlaBuffer<&[u8]>, Malformed>> {
    NlasIterator::new(bytes).map(|attribute| attribute.map_err(|_| Malformed("an attribute within its message")))
}

fn is(attribute: &NlaBuffer<&[u8]>, example: &impl Nla) -> bool {
    attribute.kind() == example.kind()
}

#[cfg(test)]
mod tests;
