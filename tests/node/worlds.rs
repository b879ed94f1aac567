//! Healthy example nodes on a real kernel. Each test shows that the node works, that the rule reports nothing, and that
//! the rule can report the problem.

use crate::named::is_of;
use std::{
    io::{ErrorKind, Read as _},
    net::{Shutdown, TcpListener, TcpStream},
    thread::sleep,
    time::Duration,
};

use crate::stage::{PEER, Scan, Stage, connecting, ip, sysctl};

const BLOCKS: &str = "connection-on-port/blocks";
const CLAIMS: &str = "external-ip-conflict/takes-listener";
const EXHAUSTION: &str = "ephemeral-ports-near-exhaustion";

#[track_caller]
fn expect_silent(scan: &Scan, rule: &str) {
    assert!(scan.findings(rule).is_empty(), "{:#}", scan.json);
    let unknown = scan.json["unknown"].as_array().expect("a list");
    assert!(!unknown.iter().any(|it| is_of(it, rule)), "{:#}", scan.json);
}

fn scan(stage: &Stage) -> Scan {
    stage.check(&["--proxy-mode", "iptables"])
}

fn connected(server: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(server.local_addr().expect("its address")).expect("a connection");
    (client, server.accept().expect("a connection").0)
}

#[test]
fn a_draining_ingress_does_not_block_its_successor() {
    let stage = Stage::new().document(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: ingress, namespace: default, uid: uid-ingress}\nspec:\n  nodeName: n1\n  \
         hostNetwork: true\n  containers:\n  - name: ingress\n    ports: [{containerPort: 8443, hostPort: 8443, protocol: TCP}]\n\
         status: {phase: Running, conditions: [{type: Ready, status: \"False\"}]}",
    );
    let server = TcpListener::bind("192.0.2.1:8443").expect("the port is free");
    let (_client, _kept) = connected(&server);
    let (mut closed, accepted) = connected(&server);
    // The server closes first, so its port stays in TIME_WAIT.
    accepted.shutdown(Shutdown::Write).expect("the connection is open");
    assert_eq!(closed.read(&mut [0]).expect("its end"), 0);
    drop((closed, accepted, server));
    let silent = scan(&stage);
    expect_silent(&silent, BLOCKS);
    drop(TcpListener::bind("192.0.2.1:8443").expect("nothing keeps a server off the port"));
    // The kernel may now choose this port for a client, so Portreeve does not know which end opened the connections.
    sysctl("net.ipv4.ip_local_port_range", "1024 65535");
    let unknown = scan(&stage);
    assert!(unknown.findings(BLOCKS).is_empty() && unknown.unknown().contains(&"clients: ambiguous".to_owned()));
    let _in_the_way = connecting("192.0.2.2:8443", &format!("{PEER}:443"));
    assert_eq!(scan(&stage).finding(BLOCKS, "ingress").0["severity"], "warning");
}

#[test]
fn a_load_balancers_virtual_address_takes_no_connections_from_a_listener_on_every_address() {
    let stage = Stage::new().document(
        "apiVersion: v1\nkind: Service\nmetadata: {name: gate, namespace: default, uid: uid-gate}\nspec:\n  type: LoadBalancer\n  \
         clusterIP: 10.96.0.20\n  ipFamilies: [IPv4]\n  ports: [{port: 2222, protocol: TCP, nodePort: 30022}]\n\
         status: {loadBalancer: {ingress: [{ip: 192.0.2.200}]}}",
    );
    let stage = stage.endpoints("gate", "TCP", Some("n1"));
    ip("address add 192.0.2.200/32 dev eth0");
    let everywhere = TcpListener::bind("0.0.0.0:2222").expect("the port is free");
    expect_silent(&scan(&stage), CLAIMS);
    drop(everywhere);
    let _there = TcpListener::bind("192.0.2.200:2222").expect("the port is free");
    assert_eq!(scan(&stage).finding(CLAIMS, "gate").0["severity"], "critical");
}

#[test]
fn ports_in_time_wait_are_used_again_where_the_kernel_may() {
    let stage = Stage::new();
    sysctl("net.ipv4.tcp_tw_reuse", "1");
    sysctl("net.ipv4.ip_local_port_range", "40000 40199");
    let server = TcpListener::bind("192.0.2.1:8080").expect("the port is free");
    for _ in 0..200 {
        let (client, accepted) = connected(&server);
        client.shutdown(Shutdown::Both).expect("it is open");
        drop((client, accepted));
    }
    expect_silent(&scan(&stage), EXHAUSTION);
    // All 200 ports are in TIME_WAIT. After one second, the kernel may use these ports again.
    let again = (0..200).find_map(|_| match TcpStream::connect("192.0.2.1:8080") {
        Ok(stream) => Some(stream),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
            sleep(Duration::from_millis(50));
            None
        }
        Err(error) => panic!("{error}"),
    });
    assert!(again.is_some(), "no port in TIME_WAIT was used again");
    sysctl("net.ipv4.tcp_tw_reuse", "2");
    assert_eq!(scan(&stage).finding(EXHAUSTION, "n1").0["severity"], "critical");
}
