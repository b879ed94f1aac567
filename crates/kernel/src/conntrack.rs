//! Flows that this node masquerades, over ctnetlink (include/uapi/linux/netfilter/nfnetlink_conntrack.h). Needs
//! CAP_NET_ADMIN.
//!
//! Measured on Linux 6.18 with 50,000 flows: reading all flows took 53 ms, the masqueraded half 33 ms, and the 1,000
//! flows without an answer 9 ms. A kernel before Linux 5.15 cannot select flows by status, and sends all flows.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use nix::libc::{IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP};

use super::{
    known::ScanCounter,
    netlink::{Family, Malformed, Message, Request, attribute, attributes, bytes_at, connection},
    privileges::require_net_admin,
    root::{Root, read_text, read_value},
};
use portreeve_facts::{
    Gap, Interfaces, Masquerade, MasqueradePool, MasqueradedFlow, NodeQuery, PortRange, PortSet, Protocol, Reading,
    Source, Why,
};

/// The counts of flows, kept between scans. The kernel's table has 262,144 buckets, so reading even an empty table
/// takes 10 to 30 ms.
#[derive(Debug, Default)]
pub struct FlowCounts {
    scans: ScanCounter,
    flows: Option<BTreeMap<Protocol, u64>>,
    pools: Option<Vec<MasqueradePool>>,
}

const UNANSWERED: usize = 64;
/// `POOL`: a pool of source ports with fewer flows is dropped. `POOLS`: the largest number of pools. `SENDERS`: the
/// largest number of clients of one pool.
const POOL: u32 = 64;
const POOLS: usize = 16;
const SENDERS: usize = 8;
const DESTINATIONS: usize = 8192;
/// With this number of flows to one destination, half of the source ports may be in use. The kernel chooses from
/// 1024-65535 (net/netfilter/nf_nat_core.c `nf_nat_l4proto_unique_tuple`).
const PRESSED: u64 = 32_256;
/// Flows of a larger table are not counted. A slow count would make scans rare, because scans have a fixed share of a
/// core.
const COUNTED: u64 = 25_000;

// include/uapi/linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h. libc has few of these numbers, and has them only
// on Linux.
/// `NFNL_SUBSYS_CTNETLINK << 8`. The low byte is the type of the message.
const CT_NEW: u16 = 0x0100;
const CT_GET: u16 = 0x0101;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_STATUS_MASK: u16 = 26;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;

/// `IPS_SEEN_REPLY` and `IPS_SRC_NAT`. `IPS_SRC_NAT` means that the kernel changed the source of the flow.
const SEEN_REPLY: u32 = 1 << 1;
const SRC_NAT: u32 = 1 << 4;
/// `TCP_CONNTRACK_SYN_SENT`.
const SYN_SENT: u8 = 1;

/// Reads the flows whose source was translated to one of the node's `own` addresses. If IPVS may take the answers to
/// flows (`taken`), the function lists the flows without an answer on `wanted.client_ports`. The function counts the
/// flows on `wanted.masquerade_ports`. If ports are scarce (`pressed`), the function also counts pools of source ports.
/// `counted` has the counts of earlier scans, because not every scan counts.
///
/// # Errors
/// `NotPermitted` without the capability. `NotSupported` if the kernel does not track flows. The function then sends no
/// request, because a request would load the module. `NotRequested` if no caller needs a count or a list.
pub(crate) fn read(
    root: &Root,
    wanted: &NodeQuery,
    own: &Interfaces,
    (taken, pressed): (bool, bool),
    counted: &mut FlowCounts,
) -> Result<(Masquerade, Reading<Vec<MasqueradePool>>), Gap> {
    if !pressed {
        // When ports become scarce again, the next scan counts the pools.
        counted.pools = None;
    }
    let tracked = flows(root)?;
    require_net_admin(Source::Conntrack, "flows")?;
    let uncounted = uncounted(tracked, &wanted.masquerade_ports);
    if let Some(gap) = uncounted.clone().filter(|_| !taken && !pressed) {
        return Err(gap);
    }
    let is_due = counted.scans.advance();
    let counts = uncounted.is_none() && (is_due || counted.flows.is_none());
    let pools = pressed && (is_due || counted.pools.is_none());
    let found = match (counts || pools, taken) {
        (true, _) => find(wanted, own, SRC_NAT, pools)?,
        (false, true) => find(wanted, own, SRC_NAT | SEEN_REPLY, false)?,
        (false, false) => Found::default(),
    };
    let Found { flows, unanswered, beyond, pools: found } = found;
    if counts {
        counted.flows = Some(flows);
    }
    if pools {
        counted.pools = Some(found.busiest());
    }
    let flows = match uncounted {
        Some(gap) => Reading::Gap(gap),
        None => Reading::Seen(counted.flows.clone().unwrap_or_default()),
    };
    let pools = match &counted.pools {
        Some(pools) => Reading::Seen(pools.clone()),
        None => Masquerade::pools_not_requested(),
    };
    Ok((Masquerade { flows, unanswered, beyond }, pools))
}

/// Whether source ports for masqueraded connections may be nearly used up. There are two signs. First, the kernel
/// dropped packets because two flows had equal ports (`insert_failed`). Second, the kernel tracks many flows. Any
/// process may read the two numbers.
pub(crate) fn may_lack_ports(root: &Root) -> bool {
    let failed = || {
        let table = read_text(Source::Conntrack, &root.net("stat/nf_conntrack"), 64 << 10).ok()?;
        let mut lines = table.lines().map(str::split_whitespace);
        let column = lines.next()?.position(|name| name == "insert_failed")?;
        let of = |mut line: std::str::SplitWhitespace<'_>| u64::from_str_radix(line.nth(column)?, 16).ok();
        Some(lines.filter_map(of).any(|failed| failed > 0))
    };
    flows(root).is_ok_and(|flows| flows >= PRESSED || flows >= POOL.into() && failed() == Some(true))
}

/// Finds flows whose status has `SRC_NAT`, and no other bit of `mask`.
fn find(wanted: &NodeQuery, own: &Interfaces, mask: u32, pools: bool) -> Result<Found, Gap> {
    // `struct nfgenmsg`: all families, version 0.
    let number = |kind, number: u32| attribute(kind, &number.to_be_bytes());
    let body = [&[0; 4], &number(CTA_STATUS, SRC_NAT)[..], &number(CTA_STATUS_MASK, mask)].concat();
    let request = Request { source: Source::Conntrack, what: "flows", kind: CT_GET, body: &body, absent: None };
    let own: HashSet<IpAddr> = own.addresses.iter().map(|address| address.ip).collect();
    connection(Family::Netfilter).dump(&request, Found::default, |found, message| {
        let of_node = masqueraded(message)?.filter(|(flow, _)| own.contains(&flow.translated.0));
        if let Some((flow, awaits_answer)) = of_node {
            if pools {
                found.pools.take(&flow);
            }
            found.take(flow, awaits_answer, wanted);
        }
        Ok(())
    })
}

/// The number of flows that the kernel tracks in the network namespace of the calling thread.
fn flows(root: &Root) -> Result<u64, Gap> {
    read_value(Source::Conntrack, &root.file("proc/sys/net/netfilter/nf_conntrack_count"), 64, "a number")
}

fn uncounted(flows: u64, wanted: &PortSet) -> Option<Gap> {
    let why = if wanted.is_empty() {
        "only the agent counts flows".to_owned()
    } else if flows > COUNTED {
        format!("{flows} flows are too many: counting the masqueraded flows in each scan would take too long")
    } else {
        return None;
    };
    Some(Gap::new(Source::Conntrack, Why::NotRequested, why))
}

#[derive(Default)]
struct Found {
    flows: BTreeMap<Protocol, u64>,
    unanswered: Vec<MasqueradedFlow>,
    beyond: u64,
    pools: Pools,
}

/// The source ports in use. Each combination of protocol, address of the node and destination has its own source ports.
#[derive(Default)]
pub struct Pools {
    of: HashMap<(Protocol, IpAddr, (IpAddr, u16)), Pool>,
    /// The largest possible number of flows of a dropped pool.
    left_out: u32,
}

/// The source ports in use for one protocol, one address of the node, and one destination.
struct Pool {
    used: u32,
    moved: u32,
    ports: PortRange,
    senders: Vec<(IpAddr, u32)>,
}

impl Pools {
    /// Adds one flow. If there are too many destinations, the destinations with the fewest flows are dropped.
    pub fn take(&mut self, flow: &MasqueradedFlow) {
        let key = (flow.protocol, flow.translated.0, flow.server);
        while self.of.len() >= DESTINATIONS && !self.of.contains_key(&key) {
            self.left_out += 1;
            let most = self.left_out;
            self.of.retain(|_, pool| pool.used > most);
        }
        let port = flow.translated.1;
        let none = || Pool { used: 0, moved: 0, ports: PortRange { first: port, last: port }, senders: Vec::new() };
        let pool = self.of.entry(key).or_insert_with(none);
        pool.used += 1;
        pool.moved += u32::from(port != flow.source.1);
        pool.ports = PortRange { first: pool.ports.first.min(port), last: pool.ports.last.max(port) };
        match pool.senders.iter().position(|(sender, _)| *sender == flow.source.0) {
            Some(index) => pool.senders[index].1 += 1,
            None if pool.senders.len() < SENDERS => pool.senders.push((flow.source.0, 1)),
            None => {}
        }
    }

    /// The pools with the most ports in use.
    pub fn busiest(self) -> Vec<MasqueradePool> {
        let pools = self.of.into_iter().filter(|(_, pool)| pool.used >= POOL);
        let mut pools: Vec<_> = pools
            .map(|((protocol, translated, server), Pool { used, moved, ports, mut senders })| {
                senders.sort_by_key(|(sender, flows)| (Reverse(*flows), *sender));
                MasqueradePool { protocol, translated, server, used, ports, moved, senders }
            })
            .collect();
        pools.sort_by_key(|pool| (Reverse(pool.used), pool.protocol, pool.translated, pool.server));
        pools.truncate(POOLS);
        pools
    }
}

impl Found {
    fn take(&mut self, flow: MasqueradedFlow, awaits_answer: bool, wanted: &NodeQuery) {
        let port = flow.translated.1;
        if wanted.masquerade_ports.contains(port) {
            *self.flows.entry(flow.protocol).or_default() += 1;
        }
        if !awaits_answer || !wanted.client_ports.contains(port) {
            return;
        }
        if self.unanswered.len() < UNANSWERED {
            self.unanswered.push(flow);
        } else {
            self.beyond += 1;
        }
    }
}

/// The flow in a message, and whether the kernel waits for its first answer. `None` if the source was not translated,
/// or if no Service can have the protocol.
pub fn masqueraded(message: &Message<'_>) -> Result<Option<(MasqueradedFlow, bool)>, Malformed> {
    if message.kind != CT_NEW {
        return Ok(None);
    }
    let (mut sent, mut answered, mut status, mut state) = (None, None, 0, None);
    for attribute in attributes(message.body.get(4..).unwrap_or_default()) {
        match attribute? {
            (CTA_TUPLE_ORIG, payload) => sent = Tuple::parse(payload)?,
            (CTA_TUPLE_REPLY, payload) => answered = Tuple::parse(payload)?,
            (CTA_STATUS, payload) => status = u32::from_be_bytes(bytes_at(payload, 0)?),
            (CTA_PROTOINFO, payload) => state = tcp_state(payload)?,
            _ => {}
        }
    }
    let (Some(sent), Some(answered)) = (sent, answered) else { return Ok(None) };
    if status & SRC_NAT == 0 {
        return Ok(None);
    }
    // If the kernel began to track a TCP connection in its middle, the kernel does not wait for a first answer.
    let awaits_answer = status & SEEN_REPLY == 0 && (sent.protocol != Protocol::Tcp || state == Some(SYN_SENT));
    let flow =
        MasqueradedFlow { protocol: sent.protocol, source: sent.from, translated: answered.to, server: answered.from };
    Ok(Some((flow, awaits_answer)))
}

/// One direction of a flow (`CTA_TUPLE_*`).
struct Tuple {
    protocol: Protocol,
    from: (IpAddr, u16),
    to: (IpAddr, u16),
}

impl Tuple {
    /// One direction of a flow, from its attributes. `None` if no Service can have the protocol.
    fn parse(tuple: &[u8]) -> Result<Option<Self>, Malformed> {
        let (mut from, mut to, mut protocol, mut ports) = (None, None, None, [None; 2]);
        for attribute in attributes(tuple) {
            match attribute? {
                (CTA_TUPLE_IP, addresses) => {
                    for attribute in attributes(addresses) {
                        match attribute? {
                            (CTA_IP_V4_SRC, payload) => from = Some(Ipv4Addr::from(bytes_at::<4>(payload, 0)?).into()),
                            (CTA_IP_V4_DST, payload) => to = Some(Ipv4Addr::from(bytes_at::<4>(payload, 0)?).into()),
                            (CTA_IP_V6_SRC, payload) => from = Some(Ipv6Addr::from(bytes_at::<16>(payload, 0)?).into()),
                            (CTA_IP_V6_DST, payload) => to = Some(Ipv6Addr::from(bytes_at::<16>(payload, 0)?).into()),
                            _ => {}
                        }
                    }
                }
                (CTA_TUPLE_PROTO, inner) => {
                    for attribute in attributes(inner) {
                        match attribute? {
                            (CTA_PROTO_NUM, payload) => protocol = self::protocol(bytes_at::<1>(payload, 0)?),
                            (CTA_PROTO_SRC_PORT, payload) => ports[0] = Some(u16::from_be_bytes(bytes_at(payload, 0)?)),
                            (CTA_PROTO_DST_PORT, payload) => ports[1] = Some(u16::from_be_bytes(bytes_at(payload, 0)?)),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        let (Some(from), Some(to), Some(protocol), [Some(source), Some(destination)]) = (from, to, protocol, ports)
        else {
            return Ok(None);
        };
        Ok(Some(Self { protocol, from: (from, source), to: (to, destination) }))
    }
}

/// The protocol with this number. `None` if no Service can have the protocol.
pub(crate) fn protocol([number]: [u8; 1]) -> Option<Protocol> {
    match i32::from(number) {
        IPPROTO_TCP => Some(Protocol::Tcp),
        IPPROTO_UDP => Some(Protocol::Udp),
        IPPROTO_SCTP => Some(Protocol::Sctp),
        _ => None,
    }
}

fn tcp_state(info: &[u8]) -> Result<Option<u8>, Malformed> {
    for attribute in attributes(info) {
        let (CTA_PROTOINFO_TCP, inner) = attribute? else { continue };
        for attribute in attributes(inner) {
            if let (CTA_PROTOINFO_TCP_STATE, payload) = attribute? {
                let [state] = bytes_at(payload, 0)?;
                return Ok(Some(state));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pools_are_kept_only_while_ports_lack() {
        let root = Root::at("/nonexistent".into());
        let mut counted = FlowCounts { pools: Some(Vec::new()), ..FlowCounts::default() };
        for (pressed, kept) in [(true, true), (false, false)] {
            let read = read(&root, &NodeQuery::default(), &Interfaces::default(), (false, pressed), &mut counted);
            assert!(read.is_err(), "there is no table");
            assert_eq!(counted.pools.is_some(), kept);
        }
    }

    #[test]
    fn ports_may_lack_if_the_kernel_tracks_many_flows_or_dropped_a_packet_of_some() {
        let tree = tempfile::tempdir().unwrap();
        let write = |path: &str, text: String| {
            let path = tree.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let may_lack = |flows: u64, failed: &str| {
            write("proc/sys/net/netfilter/nf_conntrack_count", format!("{flows}\n"));
            let lines = format!("entries insert_failed drop\n00000001 00000000 0000000f\n00000001 {failed} 00000000\n");
            write("proc/net/stat/nf_conntrack", lines);
            may_lack_ports(&Root::at(tree.path().into()))
        };
        let (none, some) = ("00000000", "0000000a");
        assert_eq!([PRESSED - 1, PRESSED].map(|flows| may_lack(flows, none)), [false, true]);
        assert_eq!([u64::from(POOL) - 1, POOL.into()].map(|flows| may_lack(flows, some)), [false, true]);
        assert!(!may_lack_ports(&Root::at("/nonexistent".into())));
    }

    fn body(protocol: u8, status: u32, state: Option<u8>, port: u16) -> Vec<u8> {
        let tuple = |kind: u16, from: [u8; 4], to: [u8; 4], ports: [u16; 2]| {
            let addresses = [attribute(1, &from), attribute(2, &to)].concat();
            let [source, destination] = ports.map(u16::to_be_bytes);
            let inner = [attribute(1, &[protocol]), attribute(2, &source), attribute(3, &destination)].concat();
            attribute(0x8000 | kind, &[attribute(0x8001, &addresses), attribute(0x8002, &inner)].concat())
        };
        let (pod, server) = ([10, 244, 0, 5], [198, 51, 100, 1]);
        let mut body = vec![2, 0, 0, 0];
        body.extend(tuple(CTA_TUPLE_ORIG, pod, server, [1024, 443]));
        body.extend(tuple(CTA_TUPLE_REPLY, server, [192, 0, 2, 1], [443, port]));
        body.extend(attribute(CTA_STATUS, &status.to_be_bytes()));
        body.extend(state.into_iter().flat_map(|state| attribute(0x8004, &attribute(0x8001, &attribute(1, &[state])))));
        body
    }

    fn flow(pod: u8, to: u16, port: u16) -> MasqueradedFlow {
        MasqueradedFlow {
            protocol: Protocol::Tcp,
            source: ([10, 244, 0, pod].into(), 1024),
            translated: ([192, 0, 2, 1].into(), port),
            server: ([198, 51, 100, 1].into(), to),
        }
    }

    #[test]
    fn only_pools_with_many_flows_are_kept_busiest_first_with_their_senders() {
        let mut pools = Pools::default();
        (0..64).for_each(|n| pools.take(&flow(5, 443, 40000 + n)));
        (0..63).for_each(|n| pools.take(&flow(5, 80, 40000 + n)));
        (0..70).for_each(|n| pools.take(&flow(u8::try_from(n % 10).expect("few"), 8080, 1024 + n)));
        let pools = pools.busiest();
        assert_eq!(
            pools.iter().map(|pool| (pool.server.1, pool.used, pool.moved)).collect::<Vec<_>>(),
            [(8080, 70, 69), (443, 64, 64)]
        );
        assert_eq!(pools[1].ports, PortRange { first: 40000, last: 40063 });
        assert_eq!(pools[1].senders, [([10, 244, 0, 5].into(), 64)]);
        assert_eq!(pools[0].senders.len(), SENDERS);
    }

    #[test]
    fn busy_destinations_are_kept_if_there_are_too_many() {
        let mut pools = Pools::default();
        for port in 0..20_000 {
            pools.take(&flow(5, port, 40000));
            if port % 200 == 0 {
                pools.take(&flow(6, 65000, 40000 + port / 200));
                pools.take(&flow(6, 65000, 50000 + port / 200));
            }
        }
        assert!(pools.of.len() <= DESTINATIONS);
        let busiest = pools.busiest();
        assert_eq!(busiest.iter().map(|pool| (pool.server.1, pool.used)).collect::<Vec<_>>(), [(65000, 200)]);
    }

    fn parsed(body: &[u8]) -> Option<(MasqueradedFlow, bool)> {
        masqueraded(&Message { kind: CT_NEW, body }).expect("sound")
    }

    // Linux 6.18, little endian: the answer to a dump, without its nlmsghdr. The flow was made by `conntrack -I -p tcp
    // -s 10.244.55.101 -d 198.51.100.51 --sport 14874 --dport 443 -t 600 --state SYN_SENT --src-nat 192.0.2.1:14874`.
    const UNANSWERED_FLOW: &str = "02000003340001801400018008000100\
        0af4376508000200c63364331c0002800500010006000000060002003a1a00000600030001bb00003400028014000180\
        08000100c633643308000200c00002011c00028005000100060000000600020001bb0000060003003a1a000008000300\
        00000198080008000000000008000c00c6ddf58908000b0000000001080007000000024f300004802c00018005000100\
        0100000005000200000000000500030000000000060004000a000000060005000a0000001c0018800800010000000000\
        08000200000000000800030000000000";

    #[test]
    fn a_message_of_a_real_kernel_is_read() {
        let body: Vec<u8> = (0..UNANSWERED_FLOW.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&UNANSWERED_FLOW[at..at + 2], 16).unwrap())
            .collect();
        let place = |text: &str| {
            let place: std::net::SocketAddr = text.parse().unwrap();
            (place.ip(), place.port())
        };
        let flow = MasqueradedFlow {
            protocol: Protocol::Tcp,
            source: place("10.244.55.101:14874"),
            translated: place("192.0.2.1:14874"),
            server: place("198.51.100.51:443"),
        };
        assert_eq!(parsed(&body), Some((flow, true)));
        for length in 0..body.len() {
            // The two tuples and the status are enough for a flow. The parser does not need the later attributes.
            let cut = masqueraded(&Message { kind: CT_NEW, body: &body[..length] });
            assert!(length >= 116 || matches!(cut, Ok(None) | Err(_)), "{length} bytes: {cut:?}");
        }
    }

    #[test]
    fn a_flow_awaits_an_answer_only_if_it_never_had_one() {
        let awaits_answer = |protocol, status, state| parsed(&body(protocol, status, state, 30080)).map(|(_, it)| it);
        assert_eq!(awaits_answer(6, SRC_NAT, Some(SYN_SENT)), Some(true));
        assert_eq!(awaits_answer(6, SRC_NAT, Some(3)), Some(false), "the connection is older than its tracking");
        assert_eq!(awaits_answer(6, SRC_NAT | SEEN_REPLY, Some(3)), Some(false));
        assert_eq!(awaits_answer(17, SRC_NAT, None), Some(true));
        assert_eq!(awaits_answer(132, SRC_NAT | SEEN_REPLY, None), Some(false));
    }

    #[test]
    fn a_flow_without_translation_or_without_ports_does_not_count() {
        assert_eq!(parsed(&body(6, SEEN_REPLY, Some(3), 30080)), None);
        assert_eq!(parsed(&body(1, SRC_NAT, None, 30080)), None);
    }

    #[test]
    fn flows_are_counted_on_some_ports_and_listed_on_others_up_to_a_limit() {
        let wanted = NodeQuery {
            masquerade_ports: "30000-32767".parse().unwrap(),
            client_ports: "30080".parse().unwrap(),
            ..NodeQuery::default()
        };
        let mut found = Found::default();
        for port in [30080, 30081, 1024] {
            let (flow, _) = parsed(&body(6, SRC_NAT, Some(SYN_SENT), port)).unwrap();
            found.take(flow.clone(), false, &wanted);
            for _ in 0..UNANSWERED + 3 {
                found.take(flow.clone(), true, &wanted);
            }
        }
        assert_eq!(found.flows, [(Protocol::Tcp, 2 * (UNANSWERED as u64 + 4))].into());
        assert_eq!((found.unanswered.len(), found.beyond), (UNANSWERED, 3));
        assert!(found.unanswered.iter().all(|flow| flow.translated.1 == 30080));
    }

    #[test]
    fn flows_are_not_counted_if_not_requested_or_too_many() {
        let range: PortSet = "30000-32767".parse().unwrap();
        assert_eq!(uncounted(COUNTED, &range), None);
        assert!(uncounted(COUNTED + 1, &range).is_some_and(|gap| gap.detail.starts_with("25001 flows")));
        assert!(uncounted(1, &PortSet::default()).is_some_and(|gap| gap.why == Why::NotRequested));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let nested = [attribute(CTA_TUPLE_ORIG, &attribute(CTA_TUPLE_IP, &bytes)),
                attribute(CTA_TUPLE_REPLY, &bytes), attribute(CTA_PROTOINFO, &bytes)].concat();
            for body in [bytes, [vec![0; 4], nested].concat()] {
                let read = masqueraded(&Message { kind: CT_NEW, body: &body });
                prop_assert!(!matches!(read, Ok(Some(_))), "no status shows a translation");
            }
        }
    }
}
