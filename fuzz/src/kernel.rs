//! Checks that the parsers of the node's data keep their promises for any bytes from a kernel or a proxy.

use std::{collections::VecDeque, io, path::Path};

use hyper::StatusCode;

use portreeve_facts::{Family, PortRange, PortSet, Protocol, Source, text};
use portreeve_kernel::{
    cgroup, conntrack, health,
    http::Answer,
    ip_vs, netfilter,
    netlink::{self, Connection, Message, Request, Transport},
    proc_net, proc_sctp, process, proxy, resolv, route, sock_diag, sockstat,
};

const LONGEST: usize = 64 << 10;

fn shown(text: &str) {
    assert!(text.len() <= LONGEST && !text.chars().any(text::is_invisible), "{text:?}");
}

/// The pieces of an input. The byte before each piece is the length of the piece.
fn pieces(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first()?;
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = rest;
        Some(piece)
    })
}

struct Script<'a>(VecDeque<&'a [u8]>, u32);

impl Transport for Script<'_> {
    fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.1 = u32::from_ne_bytes(request[8..12].try_into().expect("four bytes"));
        Ok(())
    }

    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let datagram = self.0.pop_front().ok_or_else(|| io::Error::from_raw_os_error(11))?;
        buffer.clear();
        buffer.extend_from_slice(datagram);
        if let Some(sequence) = buffer.get_mut(8..12) {
            sequence.copy_from_slice(&self.1.to_ne_bytes());
        }
        Ok(datagram.len())
    }

    fn family(&self) -> netlink::Family {
        netlink::Family::SockDiag
    }

    fn explains(&self) -> bool {
        true
    }
}

/// Reads a dump, which may be torn (changed during the read), cut, endless, or out of sequence.
pub fn netlink_dump(bytes: &[u8]) {
    let request = Request { source: Source::Listeners, what: "sockets", kind: 20, body: &[], absent: None };
    let mut connection = Connection::over(|| Ok(Script(pieces(bytes).collect(), 0)));
    let dumped = connection.dump(
        &request,
        || 0_usize,
        |seen, message| {
            *seen += message.body.len();
            Ok(())
        },
    );
    match dumped {
        Ok(seen) => assert!(seen <= bytes.len()),
        Err(gap) => shown(&gap.detail),
    }
}

pub fn sock_diag_message(bytes: &[u8]) {
    for protocol in Protocol::ALL {
        if let Ok(Some(record)) = sock_diag::parse(protocol, bytes) {
            assert_eq!(record.protocol, protocol);
            let _ = sock_diag::other_locals(&record, bytes);
        }
    }
}

/// Reads messages about links, addresses and routes.
pub fn route_message(bytes: &[u8]) {
    let names = [(1, "eth0".into())].into();
    for kind in [16, 20, 24] {
        let message = Message { kind, body: bytes };
        if let Ok(Some(link)) = route::link(&message) {
            shown(&link.name);
            assert!(link.tunnel.is_none_or(|tunnel| tunnel.options.len() <= 6), "each option once");
        }
        drop(route::address(&message, &names));
        let mut routes = route::DefaultRoutes::default();
        if route::default_route(&mut routes, &message).is_ok() {
            assert!(routes.gateways.len() + routes.links.len() <= bytes.len());
        }
    }
}

/// Reads messages of conntrack and of nf_tables.
pub fn netfilter_message(bytes: &[u8]) {
    for kind in [0x100, 0xa00, 0xa03, 0xa06] {
        let message = Message { kind, body: bytes };
        drop(conntrack::masqueraded(&message));
        for name in [netfilter::table(&message), netfilter::chain(&message)].into_iter().flatten().flatten() {
            shown(&name);
        }
        if let Ok(rule) = netfilter::rule::rule(&message) {
            rule.names().for_each(shown);
        }
    }
}

pub fn proc_net_file(bytes: &[u8]) {
    for family in Family::BOTH {
        let each =
            |record: &_| assert!(matches!(record, portreeve_kernel::record::Record { protocol: Protocol::Tcp, .. }));
        if let Err((_, detail)) = proc_net::read(bytes, Protocol::Tcp, family, each) {
            shown(&detail);
        }
    }
    for line in String::from_utf8_lossy(bytes).lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let endpoints = proc_sctp::endpoint(&fields).into_iter().flatten();
        for record in endpoints.chain(proc_sctp::association(&fields).into_iter().flatten()) {
            assert_eq!(record.protocol, Protocol::Sctp);
        }
    }
}

pub fn proc_file(bytes: &[u8]) {
    let (path, text) = (Path::new("/proc/file"), String::from_utf8_lossy(bytes));
    let mut sums = sockstat::Sums::default();
    if let Err(gap) = sums.add(path, bytes).and_then(|()| sums.finish(path)) {
        shown(&gap.detail);
    }
    if let Some(cgroup) = cgroup::cgroup_of_process(&text) {
        shown(&cgroup.path);
        cgroup
            .pod
            .iter()
            .flat_map(|pod| [Some(&pod.pod_uid), pod.container.as_ref()])
            .flatten()
            .for_each(|it| shown(it));
    }
    assert!(cgroup::cgroup2_mounts(&text).count() <= bytes.len());
    let inode = process::socket_inode(&text);
    if let Some(inode) = inode {
        assert_eq!(process::socket_inode(&format!("socket:[{inode}]")), Some(inode));
    }
    let _: (Option<u64>, Option<u64>) = (process::started(&text), process::open_files_limit(&text));
    let _: bool = process::is_outside(&text);
    assert!(process::arguments(bytes).len() <= LONGEST);
    if let Ok(servers) = ip_vs::parse_servers(path, bytes) {
        assert!(servers.len() <= bytes.len());
    }
    let ports: PortSet = PortRange::DEFAULT_NODE_PORTS.into();
    if let Ok(connections) = ip_vs::parse_connections(path, bytes, &ports, &[]) {
        assert!(connections.len() <= bytes.len());
    }
}

pub fn resolv_conf(bytes: &[u8]) {
    assert!(resolv::nameservers(&String::from_utf8_lossy(bytes)).len() <= bytes.len());
}

pub fn proxy_answer(bytes: &[u8]) {
    let body = String::from_utf8_lossy(bytes).into_owned();
    let answer = Answer { place: "127.0.0.1:10249/metrics".to_owned(), status: StatusCode::OK, body };
    match proxy::configz::settings(&answer) {
        Ok(config) => {
            let texts = [&config.mode, &config.detect_local_mode, &config.cluster_cidr];
            texts.into_iter().flatten().chain(&config.node_port_addresses).for_each(|it| shown(it));
        }
        Err(gap) => shown(&gap.detail),
    }
    match proxy::metrics::measures(&answer) {
        Ok(metrics) => metrics.version.iter().for_each(|it| shown(it)),
        Err(gap) => shown(&gap.detail),
    }
    if let Err(gap) = proxy::mode(&answer) {
        shown(&gap.detail);
    }
    health::service(&answer).iter().for_each(|it| shown(it));
}
