//! Socket tables over `NETLINK_SOCK_DIAG` (include/uapi/linux/inet_diag.h). This reader works without privileges. The
//! kernel filters the sockets, and answers in binary form.

use std::{cmp::Reverse, net::IpAddr};

use crate::{
    netlink::{Malformed, Request, SockDiagConnection, attribute, attributes, bytes_at},
    record::{Record, SocketRequest},
};
use portreeve_facts::{Family, Gap, PortRange, PortSet, Protocol, State};

/// A request for the TCP sockets of the two families. UDP and SCTP need one request for each family.
const TCPDIAG_GETSOCK: u16 = 18;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_REQ_BYTECODE: u16 = 1;
const INET_DIAG_SKV6ONLY: u16 = 11;
const INET_DIAG_LOCALS: u16 = 12;
const INET_DIAG_CGROUP_ID: u16 = 21;
const INET_DIAG_BC_JMP: u8 = 1;
const INET_DIAG_BC_S_GE: u8 = 2;
const INET_DIAG_BC_S_LE: u8 = 3;
const INET_DIAG_BC_D_GE: u8 = 4;
const INET_DIAG_BC_D_LE: u8 = 5;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// The sizes of parts of a filter program, in bytes: a test, a jump, and a range. A range has two tests and a jump.
const TEST: usize = 8;
const JUMP: usize = 4;
const RANGE: usize = 2 * TEST + JUMP;
const RANGES: usize = 8;
/// `sizeof(struct inet_diag_msg)`.
const MESSAGE: usize = 72;
/// `sizeof(struct sockaddr_storage)`.
const STORAGE: usize = 128;
/// The value of `idiag_timer` during a retransmission.
const TIMER_RETRANSMIT: u8 = 1;

/// Adds every requested socket to `collected`, in the network namespace of the calling thread. If a table changes
/// during the walk, `each` may get a socket twice.
///
/// # Errors
/// The errors of a dump of a connection, in `netlink/connection.rs`. `NotSupported` if the kernel has no diag module
/// for the protocol.
pub fn walk<T: Clone>(
    connection: &mut SockDiagConnection,
    request: &SocketRequest<'_>,
    families: &[Family],
    mut collected: T,
    mut each: impl FnMut(&mut T, &Record),
) -> Result<T, Gap> {
    for (kind, body) in requests(request, families) {
        let dump = Request {
            source: request.source,
            what: match request.protocol {
                Protocol::Tcp => "TCP sockets over sock_diag",
                Protocol::Udp => "UDP sockets over sock_diag",
                Protocol::Sctp => "SCTP sockets over sock_diag",
            },
            kind,
            body: &body,
            absent: None,
        };
        // Each attempt starts with a copy of `collected`. So a torn dump does not lose the sockets of earlier dumps.
        collected = connection.dump(
            &dump,
            || collected.clone(),
            |collected, message| {
                if let Some(record) = parse(request.protocol, message.body)?
                    && request.wants(&record)
                {
                    each(collected, &record);
                    for local in other_locals(&record, message.body)? {
                        each(collected, &Record { local, ..record });
                    }
                }
                Ok(())
            },
        )?;
    }
    Ok(collected)
}

/// The requests of a walk. TCP needs one request for the two families. Other protocols need one request for each
/// requested family.
fn requests(request: &SocketRequest<'_>, families: &[Family]) -> Vec<(u16, Vec<u8>)> {
    let of = |ports: Option<&PortSet>, tests| {
        ports.map(hull).filter(|ranges| !ranges.is_empty()).map(|ranges| bytecode(&ranges, tests))
    };
    // One filter program is enough: a request has either local ports or ports of peers.
    let filter = of(request.ports, (INET_DIAG_BC_S_GE, INET_DIAG_BC_S_LE))
        .or_else(|| of(request.peers, (INET_DIAG_BC_D_GE, INET_DIAG_BC_D_LE)));
    let id = [0; 48];
    // The states of SCTP associations have other numbers. For SCTP, the kernel reads only LISTEN from the requested
    // states.
    let states = request.states.0.to_ne_bytes();
    let finish = |mut body: Vec<u8>| {
        body.extend(filter.iter().flatten());
        body
    };
    match request.protocol {
        // struct inet_diag_req
        Protocol::Tcp => vec![(TCPDIAG_GETSOCK, finish([&[0; 4][..], &id, &states, &[0; 4]].concat()))],
        // struct inet_diag_req_v2
        Protocol::Udp | Protocol::Sctp => {
            let number = if request.protocol == Protocol::Udp { 17 } else { 132 };
            let number_of = |family: &Family| if *family == Family::V4 { AF_INET } else { AF_INET6 };
            let body = |family| finish([&[number_of(family), number, 0, 0][..], &states, &id].concat());
            families.iter().map(|family| (SOCK_DIAG_BY_FAMILY, body(family))).collect()
        }
    }
}

/// At most [`RANGES`] ranges that contain all of `ports`. Between the ranges are the longest runs of ports that are not
/// in `ports`. The kernel compares each socket with a few ranges, and drops most sockets on other ports. To send and
/// parse these sockets would take longer.
fn hull(ports: &PortSet) -> Vec<PortRange> {
    let ranges = ports.ranges();
    let gap = |at: &usize| ranges[*at].first - ranges[at - 1].last;
    let mut gaps: Vec<usize> = (1..ranges.len()).collect();
    gaps.sort_unstable_by_key(|at| Reverse(gap(at)));
    gaps.truncate(RANGES - 1);
    gaps.extend([0, ranges.len()]);
    gaps.sort_unstable();
    let runs = gaps.windows(2).map(|ends| &ranges[ends[0]..ends[1]]);
    runs.filter_map(|run| Some(PortRange { first: run.first()?.first, last: run.last()?.last })).collect()
}

/// The attribute with a filter program for ascending ranges of ports (net/ipv4/inet_diag.c `inet_diag_bc_run`). The two
/// tests, *at least* and *at most*, are for local ports or for ports of peers. A test has two words. The first word has
/// the operation and its jumps. The jump field of the second word is the port. A socket matches if the program reaches
/// its end, and does not match if the program jumps beyond its end. `inet_diag_bc_audit` requires that the `yes` jumps
/// pass through the start of every range. So each range, except the last, ends with a separate jump to the end of the
/// program.
fn bytecode(ranges: &[PortRange], (at_least, at_most): (u8, u8)) -> Vec<u8> {
    let length = ranges.len() * RANGE - JUMP;
    let mut program = Vec::with_capacity(length);
    let operation = |code: u8, yes: usize, no: usize| {
        let [low, high] = u16::try_from(no).unwrap_or(u16::MAX).to_ne_bytes();
        [code, u8::try_from(yes).unwrap_or(u8::MAX), low, high]
    };
    let port = |number: u16| operation(0, 0, number.into());
    for (index, range) in ranges.iter().enumerate() {
        let left = length - index * RANGE;
        let is_last = index + 1 == ranges.len();
        // The ranges ascend. So a port below this range is in none of the later ranges.
        program.extend([operation(at_least, TEST, left + 4), port(range.first)].concat());
        let next = if is_last { left - TEST + 4 } else { TEST + JUMP };
        program.extend([operation(at_most, TEST, next), port(range.last)].concat());
        if !is_last {
            program.extend(operation(INET_DIAG_BC_JMP, JUMP, left - 2 * TEST));
        }
    }
    attribute(INET_DIAG_REQ_BYTECODE, &program)
}

/// Parses `struct inet_diag_msg` and its attributes. `None` for a family or a state that [`Record`] does not have.
pub fn parse(protocol: Protocol, body: &[u8]) -> Result<Option<Record>, Malformed> {
    let [family, state, timer, retransmits] = bytes_at(body, 0)?;
    let family = match family {
        AF_INET => Family::V4,
        AF_INET6 => Family::V6,
        _ => return Ok(None),
    };
    let remote_port = u16::from_be_bytes(bytes_at(body, 6)?);
    let state = if protocol == Protocol::Sctp { sctp_state(state, remote_port) } else { State::from_number(state) };
    let Some(state) = state else { return Ok(None) };
    let local = (address(family, body, 8)?, u16::from_be_bytes(bytes_at(body, 4)?));
    let remote = (address(family, body, 24)?, remote_port);
    let mut record = Record {
        inode: u64::from(u32::from_ne_bytes(bytes_at(body, 68)?)),
        uid: u32::from_ne_bytes(bytes_at(body, 64)?),
        device: u32::from_ne_bytes(bytes_at(body, 40)?),
        retransmits: if timer == TIMER_RETRANSMIT { retransmits } else { 0 },
        ..Record::of(protocol, state, local, remote)
    };
    for attribute in attributes(body.get(MESSAGE..).unwrap_or_default()) {
        match attribute? {
            // The fixed part of the message has the address at which the last association of a listener arrived. The
            // attribute `INET_DIAG_LOCALS` has the listener's own addresses.
            (INET_DIAG_LOCALS, payload) if !payload.is_empty() => {
                record.local = sockaddr(payload)?.unwrap_or(record.local);
            }
            (INET_DIAG_SKV6ONLY, payload) => record.v6only = Some(bytes_at::<1>(payload, 0)? != [0]),
            (INET_DIAG_CGROUP_ID, payload) => record.cgroup = Some(u64::from_ne_bytes(bytes_at(payload, 0)?)),
            _ => {}
        }
    }
    Ok(Some(record))
}

/// The second and later addresses of an SCTP listener. A program can bind one listener to several addresses
/// (`sctp_bindx`).
pub fn other_locals(record: &Record, body: &[u8]) -> Result<Vec<IpAddr>, Malformed> {
    let mut others = Vec::new();
    if (record.protocol, record.state) != (Protocol::Sctp, State::Listen) {
        return Ok(others);
    }
    for attribute in attributes(body.get(MESSAGE..).unwrap_or_default()) {
        if let (INET_DIAG_LOCALS, payload) = attribute? {
            for address in payload.chunks(STORAGE).skip(1) {
                others.extend(sockaddr(address)?);
            }
        }
    }
    Ok(others)
}

/// The first address in a list of `struct sockaddr_storage`. `None` if the family is neither IPv4 nor IPv6.
fn sockaddr(bytes: &[u8]) -> Result<Option<IpAddr>, Malformed> {
    let family = u16::from_ne_bytes(bytes_at(bytes, 0)?);
    Ok(match u8::try_from(family) {
        Ok(AF_INET) => Some(address(Family::V4, bytes, 4)?),
        Ok(AF_INET6) => Some(address(Family::V6, bytes, 8)?),
        _ => None,
    })
}

fn address(family: Family, body: &[u8], offset: usize) -> Result<IpAddr, Malformed> {
    Ok(match family {
        Family::V4 => bytes_at::<4>(body, offset)?.into(),
        Family::V6 => bytes_at::<16>(body, offset)?.into(),
    })
}

/// The state of an SCTP socket. An endpoint has no peer, and its state is a TCP state. The state of an association is
/// an SCTP state (include/net/sctp/constants.h).
pub fn sctp_state(number: u8, remote_port: u16) -> Option<State> {
    match number {
        _ if remote_port == 0 => State::from_number(number),
        0 => Some(State::Close),
        1 | 2 => Some(State::SynSent),
        3 => Some(State::Established),
        4..=7 => Some(State::Closing),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::States;
    use portreeve_facts::{PortSet, Source};

    /// `[::]:30080` in LISTEN, v6only off, cgroup 1. This function builds a `struct inet_diag_msg` by hand.
    fn listening() -> Vec<u8> {
        let mut bytes = vec![AF_INET6, 10, 0, 0, 0x75, 0x80, 0, 0];
        bytes.resize(64, 0);
        bytes.extend(1000u32.to_ne_bytes());
        bytes.extend(4711u32.to_ne_bytes());
        bytes.extend([5, 0, 8, 0, 0, 0, 0, 0]);
        bytes.extend([5, 0, 11, 0, 0, 0, 0, 0]);
        bytes.extend([12, 0, 21, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    }

    #[test]
    fn a_listener_has_its_v6only_uid_inode_and_cgroup() {
        let record = parse(Protocol::Tcp, &listening()).expect("sound").expect("ours");
        assert_eq!((record.local.to_string(), record.local_port), ("::".to_owned(), 30080));
        assert_eq!((record.v6only, record.uid, record.inode, record.cgroup), (Some(false), 1000, 4711, Some(1)));
    }

    #[test]
    fn retransmits_count_only_while_retransmitting() {
        let mut bytes = listening();
        bytes[1] = State::SynSent as u8;
        for (timer, retransmits) in [(1, 3), (2, 0), (4, 0)] {
            bytes[2..4].copy_from_slice(&[timer, 3]);
            assert_eq!(parse(Protocol::Tcp, &bytes).expect("sound").expect("ours").retransmits, retransmits);
        }
    }

    #[test]
    fn a_message_without_its_tail_is_malformed() {
        for length in 0..MESSAGE {
            assert!(parse(Protocol::Tcp, &listening()[..length]).is_err(), "{length} bytes");
        }
        let mut cut = listening();
        cut.truncate(MESSAGE + 12);
        assert!(parse(Protocol::Tcp, &cut).is_err());
    }

    #[test]
    fn an_sctp_association_is_not_its_endpoint() {
        let mut bytes = listening();
        assert_eq!(parse(Protocol::Sctp, &bytes).expect("sound").expect("ours").state, State::Listen);
        bytes[1] = 3;
        bytes[6] = 1;
        assert_eq!(parse(Protocol::Sctp, &bytes).expect("sound").expect("ours").state, State::Established);
    }

    #[test]
    fn an_sctp_listener_has_its_bound_address_and_not_the_address_of_its_last_association() {
        let mut bytes = listening();
        bytes[0] = AF_INET;
        bytes[8..12].copy_from_slice(&[192, 0, 2, 1]);
        let mut bound = vec![132, 0, 12, 0, AF_INET, 0, 0x75, 0x80];
        bound.resize(132, 0);
        bytes.extend(bound);
        assert_eq!(parse(Protocol::Sctp, &bytes).expect("sound").expect("ours").local.to_string(), "0.0.0.0");
    }

    #[test]
    fn an_sctp_listener_has_each_address_to_which_it_is_bound() {
        let mut bytes = listening();
        bytes.extend([4, 1, 12, 0]);
        for (family, at, address) in [(AF_INET, 4, [192, 0, 2, 1]), (AF_INET6, 8, [0x20, 0x01, 0x0d, 0xb8])] {
            let mut storage = [0; STORAGE];
            storage[0] = family;
            storage[at..at + 4].copy_from_slice(&address);
            bytes.extend(storage);
        }
        let record = parse(Protocol::Sctp, &bytes).expect("sound").expect("ours");
        let others = |record: &Record| other_locals(record, &bytes).expect("sound");
        assert_eq!(record.local.to_string(), "192.0.2.1");
        assert_eq!(others(&record).iter().map(IpAddr::to_string).collect::<Vec<_>>(), ["2001:db8::"]);
        assert!(others(&Record { state: State::Established, ..record }).is_empty(), "one association is one record");
        bytes.truncate(bytes.len() - 1);
        assert!(other_locals(&record, &bytes).is_err());
    }

    /// Evaluates a filter program as the kernel does (`inet_diag_bc_run`).
    fn admits(program: &[u8], port: u16) -> bool {
        let word = |at: usize| u16::from_ne_bytes([program[at + 2], program[at + 3]]);
        let (mut at, mut left) = (0, i64::try_from(program.len()).unwrap());
        while left > 0 {
            let yes = match program[at] {
                INET_DIAG_BC_S_GE => port >= word(at + 4),
                INET_DIAG_BC_S_LE => port <= word(at + 4),
                code => {
                    assert_eq!(code, INET_DIAG_BC_JMP);
                    false
                }
            };
            let step = if yes { usize::from(program[at + 1]) } else { usize::from(word(at)) };
            (at, left) = (at + step, left - i64::try_from(step).unwrap());
        }
        left == 0
    }

    #[test]
    fn the_filter_passes_the_ports_and_otherwise_only_ports_in_the_narrowest_spaces() {
        let program = |ports: &str| {
            bytecode(&hull(&ports.parse().expect("ports")), (INET_DIAG_BC_S_GE, INET_DIAG_BC_S_LE))[4..].to_vec()
        };
        let some = program("80,6443,30000-30010,32767-60999");
        for (port, admitted) in [
            (79, false),
            (80, true),
            (81, false),
            (6443, true),
            (7000, false),
            (29999, false),
            (30005, true),
            (30011, false),
            (32766, false),
            (32767, true),
            (60999, true),
            (61000, false),
            (65535, false),
        ] {
            assert_eq!(admits(&some, port), admitted, "{port}");
        }
        let many: Vec<String> = (0..100u16).map(|number| (20000 + 10 * number).to_string()).collect();
        let many = program(&format!("443,{},65535", many.join(",")));
        assert_eq!(many.len(), RANGES * RANGE - JUMP);
        assert!(!admits(&many, 444) && admits(&many, 20000) && admits(&many, 20990) && !admits(&many, 40000));
    }

    #[test]
    fn one_walk_serves_both_families_of_tcp() {
        let ports: PortSet = "30000-30010".parse().expect("ports");
        let request = |protocol| SocketRequest::new(Source::Clients, protocol, States::WITH_PEER, Some(&ports));
        let tcp = requests(&request(Protocol::Tcp), &Family::BOTH);
        assert_eq!(tcp.iter().map(|(_, body)| body.len()).collect::<Vec<_>>(), [60 + 20]);
        let udp = requests(&request(Protocol::Udp), &Family::BOTH);
        assert_eq!(udp.iter().map(|(_, body)| (body[0], body.len())).collect::<Vec<_>>(), [(2, 76), (10, 76)]);
    }

    #[test]
    fn a_walk_by_ports_of_peers_has_their_tests() {
        let ports: PortSet = "8443".parse().expect("ports");
        let request = |ports, peers| {
            let (source, protocol) = (Source::Clients, Protocol::Tcp);
            requests(&SocketRequest { source, protocol, states: States::WITH_PEER, ports, peers }, &Family::BOTH)
                .remove(0)
                .1
        };
        let [local, peers] =
            [request(Some(&ports), None), request(None, Some(&ports))].map(|body| body[60 + 4..].to_vec());
        assert_eq!((local[0], local[8]), (INET_DIAG_BC_S_GE, INET_DIAG_BC_S_LE));
        assert_eq!((peers[0], peers[8]), (INET_DIAG_BC_D_GE, INET_DIAG_BC_D_LE));
        assert_eq!(local.len(), peers.len());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let short = bytes.len() < MESSAGE && bytes.first().is_some_and(|family| [AF_INET, AF_INET6].contains(family));
            let ours = parse(Protocol::Tcp, &bytes);
            prop_assert!(!short || !matches!(ours, Ok(Some(_))));
        }
    }
}
