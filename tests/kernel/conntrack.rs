//! Tests add flows to conntrack. The reader must return the flows that the program `conntrack` shows.

use std::{
    collections::BTreeMap,
    io::Write as _,
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    time::Duration,
};

use portreeve_facts::{Masquerade, NodeQuery, PortSet, Protocol, Reading, Source, Why};
use portreeve_kernel::{Host, Known};

use crate::{host::snapshot, namespace::Namespace};

/// Each flow is one line of options for `conntrack`.
#[track_caller]
fn enter(flows: &[String]) {
    let mut conntrack = Command::new("conntrack")
        .args(["-R", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("`conntrack` of the Debian package is installed: `make test` does that");
    let lines: String = flows.iter().map(|flow| format!("-I -t 600 {flow}\n")).collect();
    conntrack.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("conntrack reads its input");
    assert!(conntrack.wait().expect("conntrack ends").success(), "{lines}");
}

/// A pod's flow that leaves the node with the source `as_address` and `port`. The flow has no answer yet.
fn hanging(protocol: &str, from: &str, to: &str, as_address: &str, port: u16) -> String {
    let state = if protocol == "tcp" { "--state SYN_SENT" } else { "" };
    let address = if as_address.contains(':') { format!("[{as_address}]") } else { as_address.to_owned() };
    format!("-p {protocol} -s {from} -d {to} --sport {port} --dport 443 {state} --src-nat {address}:{port}")
}

fn answered(port: u16) -> String {
    hanging("tcp", "10.244.0.6", "198.51.100.7", "192.0.2.1", port)
        .replace("SYN_SENT", "ESTABLISHED -u SEEN_REPLY,ASSURED")
}

fn ports(text: &str) -> PortSet {
    text.parse().expect("ports")
}

/// The scan counts flows with a port in `counted`, and lists flows with a port in `listed`.
fn read(counted: &str, listed: &str) -> Masquerade {
    let wanted = NodeQuery { masquerade_ports: ports(counted), client_ports: ports(listed), ..NodeQuery::default() };
    Host::at("/").read(&wanted).masquerade.get().expect("root may list flows").clone()
}

#[test]
fn flows_in_the_range_are_counted_and_those_without_an_answer_are_listed() {
    let namespace = Namespace::enter();
    namespace.add_address("192.0.2.1/24");
    namespace.add_address("2001:db8::1/64");
    enter(&[
        hanging("tcp", "10.244.0.5", "198.51.100.7", "192.0.2.1", 30080),
        hanging("udp", "10.244.0.5", "198.51.100.7", "192.0.2.1", 30081),
        hanging("tcp", "fd00:244::5", "2001:db8:1::7", "2001:db8::1", 30080),
        hanging("tcp", "10.244.0.5", "198.51.100.7", "192.0.2.1", 30082),
        hanging("tcp", "10.244.0.5", "198.51.100.7", "192.0.2.1", 32768),
        // A flow of another node. If another node uses this node as a router, conntrack has flows of that node.
        hanging("tcp", "10.244.0.7", "198.51.100.7", "192.0.2.9", 30080),
        // A flow of the node itself, which the kernel does not masquerade.
        "-p tcp -s 192.0.2.1 -d 198.51.100.7 --sport 30080 --dport 80 --state SYN_SENT".to_owned(),
        answered(30079),
        answered(30083),
    ]);
    let seen = read("30000-32767", "30080-30081");
    assert_eq!(seen.flows, Reading::Seen(BTreeMap::from([(Protocol::Tcp, 5), (Protocol::Udp, 1)])));
    let place = |(ip, port)| std::net::SocketAddr::new(ip, port).to_string();
    let mut listed: Vec<String> = seen
        .unanswered
        .iter()
        .map(|it| {
            let [source, translated, server] = [it.source, it.translated, it.server].map(place);
            format!("{} {source} {translated} {server}", it.protocol)
        })
        .collect();
    listed.sort();
    assert_eq!(
        listed,
        [
            "tcp 10.244.0.5:30080 192.0.2.1:30080 198.51.100.7:443",
            "tcp [fd00:244::5]:30080 [2001:db8::1]:30080 [2001:db8:1::7]:443",
            "udp 10.244.0.5:30081 192.0.2.1:30081 198.51.100.7:443",
        ]
    );
    assert_eq!(seen.beyond, 0);
}

#[test]
fn a_thousand_unanswered_flows_are_64_listed_flows_and_a_number() {
    let namespace = Namespace::enter();
    namespace.add_address("192.0.2.1/24");
    let flows: Vec<String> =
        (30000..31000).map(|port| hanging("tcp", "10.244.0.5", "198.51.100.7", "192.0.2.1", port)).collect();
    enter(&flows);
    let seen = read("30000-32767", "30000-32767");
    assert_eq!((seen.unanswered.len(), seen.beyond), (64, 936));
    assert_eq!(seen.flows, Reading::Seen(BTreeMap::from([(Protocol::Tcp, 1000)])));
}

/// The pool has a hundred ports, and the test opens more connections. The kernel drops each connection that finds no
/// free port, and counts it in `insert_failed`. Portreeve reads the pool after the kernel has counted a dropped
/// connection.
#[test]
fn a_pool_of_source_ports_is_read_after_the_kernel_dropped_connections_without_a_port() {
    let namespace = Namespace::enter();
    // The test needs an address outside of 127.0.0.0/8, because the kernel masquerades with such an address.
    namespace.add_address("192.0.2.1/24");
    // The clients' ports are outside the pool, because a connection from a port of the pool would keep its port.
    namespace.set("ipv4/ip_local_port_range", "50000 60999");
    let made = Command::new("iptables-nft")
        .args(["-w", "-t", "nat", "-A", "POSTROUTING", "-o", "lo", "-p", "tcp", "--dport", "9000", "-j", "MASQUERADE"])
        .args(["--to-ports", "40000-40099"])
        .status();
    assert!(made.expect("the program iptables-nft, of the package iptables").success());
    let server = TcpListener::bind("127.0.0.1:9000").expect("a namespace of the test's own");
    let mut open = Vec::new();
    let connect = |wanted: usize, open: &mut Vec<TcpStream>| {
        let to = server.local_addr().expect("an address");
        let connected = (0..wanted).map(|_| TcpStream::connect_timeout(&to, Duration::from_millis(50)).ok());
        let connected: Vec<_> = connected.collect();
        let failed = connected.iter().filter(|it| it.is_none()).count();
        open.extend(connected.into_iter().flatten());
        failed
    };
    let wanted = NodeQuery { masquerade_pools: true, ..NodeQuery::default() };
    let scan = || Host::at("/").read(&wanted).masquerade_pools;
    assert_eq!(connect(64, &mut open), 0);
    assert_eq!(scan().get().expect_err("no sign shows that ports are scarce").why, Why::NotRequested);
    assert!(connect(60, &mut open) > 0, "a hundred ports are not enough for 124 connections");
    let pools = scan().get().expect("ports are scarce").clone();
    let [pool] = &pools[..] else { panic!("one destination: {pools:?}") };
    assert_eq!((pool.protocol, pool.server), (Protocol::Tcp, ("127.0.0.1".parse().expect("an address"), 9000)));
    assert!((80..=100).contains(&pool.used) && pool.moved == pool.used, "{pool:?}");
    assert!(pool.ports.first >= 40000 && pool.ports.last <= 40099, "{pool:?}");
    assert_eq!(pool.translated.to_string(), "192.0.2.1");
    assert_eq!(pool.senders, [("127.0.0.1".parse().expect("an address"), pool.used)]);

    let mut setpriv = Command::new("setpriv"); // of the package util-linux
    setpriv.args(["--inh-caps=-all", "--bounding-set=-net_admin", env!("CARGO_BIN_EXE_portreeve")]);
    let gap = snapshot(&mut setpriv)["masquerade_pools"]["gap"].clone();
    assert_eq!(gap["why"], "not-permitted", "the table is needed, and its reader lacks CAP_NET_ADMIN: {gap}");
}

#[test]
fn flows_are_not_read_if_ipvs_serves_nothing_and_no_number_is_wanted() {
    let _namespace = Namespace::enter();
    let wanted = NodeQuery { client_ports: ports("30000-32767"), ..NodeQuery::default() };
    let gap = Host::at("/").read(&wanted).masquerade.get().expect_err("not requested").clone();
    assert_eq!((gap.source, gap.why), (Source::Conntrack, Why::NotRequested));
}

#[test]
fn flows_are_counted_in_some_scans_only() {
    let namespace = Namespace::enter();
    namespace.add_address("192.0.2.1/24");
    let wanted = NodeQuery { masquerade_ports: ports("30000-32767"), ..NodeQuery::default() };
    let mut known = Known::default();
    let mut count = || {
        let (seen, _) = Host::at("/").read_again(&wanted, &mut known);
        let flows = seen.masquerade.get().expect("root may list flows").flows.get().expect("counted").clone();
        flows.get(&Protocol::Tcp).copied().unwrap_or(0)
    };
    enter(&[answered(30080)]);
    assert_eq!(count(), 1);
    enter(&[answered(30081)]);
    assert_eq!(count(), 1, "the last count is kept");
    let counts: Vec<u64> = (0..20).map(|_| count()).collect();
    assert!(counts.is_sorted() && counts.ends_with(&[2]), "{counts:?}");
}
