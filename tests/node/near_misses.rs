//! Near misses: states that are close to the problem of a rule, but are no problem. For each rule, another test makes
//! the problem itself. A near miss differs from this problem only in a number, a protocol or an address. If a rule
//! cannot judge, the test fails, because *unknown* is not silence.

use crate::named::is_of;
use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
};

use crate::{
    agent::{Agent, ask, wait_for, web},
    claims::{balanced, edge, gate},
    proxy::{Squatter, StandIn},
    ranges::crowd,
    stage::{PEER, Scan, Stage, connecting, sysctl},
};

const MODES: [&str; 3] = ["iptables", "nftables", "ipvs"];

#[track_caller]
pub(crate) fn expect_silent(scan: &Scan, rule: &str, what: &str) {
    assert!(scan.findings(rule).is_empty(), "{what}: {:#}", scan.json);
    let unknown = scan.json["unknown"].as_array().expect("a list");
    assert!(!unknown.iter().any(|it| is_of(it, rule)), "{what}: {:#}", scan.json);
}

#[track_caller]
fn expect_silent_in_every_mode(stage: &Stage, rule: &str, what: &str) {
    for mode in MODES {
        expect_silent(&stage.check(&["--proxy-mode", mode]), rule, &format!("{what}, {mode}"));
    }
}

#[test]
fn a_client_socket_beside_a_node_port_or_of_another_protocol_is_no_conflict() {
    let stage = web().service("dns", "UDP", 30082, "").endpoints("dns", "UDP", Some("n1"));
    let _beside = connecting("192.0.2.1:30081", &format!("{PEER}:8080"));
    let _of_tcp = connecting("192.0.2.1:30082", &format!("{PEER}:8080"));
    expect_silent_in_every_mode(&stage, "connection-on-port/answers-taken", "ports 30081 and 30082");
}

#[test]
fn connections_to_a_served_health_check_do_not_block_it() {
    let stage = balanced().node_port_range("30000-32767");
    let server = TcpListener::bind("0.0.0.0:30999").expect("the port is free");
    let body = r#"{"service":{"namespace":"default","name":"lb"},"localEndpoints":1,"serviceProxyHealthy":true}"#;
    std::thread::spawn(move || crate::proxy::serve(&server, |_| Some(body.to_owned())));
    // Each health check of a load balancer leaves a connection in TIME_WAIT on the port.
    for _ in 0..3 {
        let mut load_balancer = TcpStream::connect("192.0.2.1:30999").expect("a connection");
        load_balancer.write_all(b"GET / HTTP/1.1\r\nhost: n1\r\n\r\n").expect("a question");
        load_balancer.read_to_end(&mut Vec::new()).expect("an answer");
    }
    let _beside = connecting("192.0.2.1:30998", &format!("{PEER}:443"));
    expect_silent_in_every_mode(&stage, "connection-on-port/blocks", "a served health check");
}

#[test]
fn an_external_ip_with_another_port_or_of_another_node_shadows_nothing() {
    for (address, port) in [("192.0.2.1", 30081), (PEER, 30080)] {
        let stage = gate(web().node("n2", &[PEER]), address, port);
        let what = format!("{address} port {port}");
        expect_silent_in_every_mode(&stage, "external-ip-conflict/takes-node-port", &what);
    }
}

#[test]
fn an_ephemeral_range_after_the_node_ports_or_without_them_overlaps_nothing() {
    let stage = web().node_port_range("30000-32767");
    for (range, reserved) in [("32768 60999", ""), ("1024 29999", ""), ("1024 65535", "30000-32767")] {
        sysctl("net.ipv4.ip_local_port_range", range);
        sysctl("net.ipv4.ip_local_reserved_ports", reserved);
        let what = format!("{range}, reserved {reserved:?}");
        expect_silent_in_every_mode(&stage, "ephemeral-range-overlap/node-ports", &what);
    }
}

#[test]
fn connections_that_exhaust_a_narrow_range_do_not_exhaust_the_usual_range() {
    let stage = web();
    sysctl("net.ipv4.tcp_tw_reuse", "0");
    sysctl("net.ipv4.ip_local_port_range", "32768 60999");
    let server = TcpListener::bind("192.0.2.1:8080").expect("the port is free");
    for _ in 0..2700 {
        drop(TcpStream::connect("192.0.2.1:8080").expect("a connection"));
        drop(server.accept().expect("a connection"));
    }
    expect_silent_in_every_mode(&stage, "ephemeral-ports-near-exhaustion", "2700 of 28232 ports");
}

#[test]
fn a_host_port_beside_a_listener_or_of_another_protocol_takes_nothing() {
    let stage = edge(8099);
    let _beside = TcpListener::bind("0.0.0.0:8098").expect("the port is free");
    let _of_udp = UdpSocket::bind("0.0.0.0:8099").expect("the port is free");
    expect_silent_in_every_mode(&stage, "host-port-conflict/takes-listener", "port 8098, and 8099 of UDP");
}

#[test]
fn a_band_that_is_in_use_up_to_its_threshold_is_not_crowded() {
    // The dynamic band has 112 ports. The limit is 80 % of these ports, and 88 ports are below the limit.
    let stage = crowd("30000-30127", 30016..30016 + 88);
    expect_silent_in_every_mode(&stage, "node-port-range-crowded", "88 of 112");
}

#[test]
fn a_written_port_of_the_static_band_and_a_chosen_one_of_the_dynamic_band_are_in_their_place() {
    let service = |name: &str, port: u16, written: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: default\n  uid: uid-{name}\n  managedFields:\n  \
             - {{manager: kubectl, operation: Update, fieldsType: FieldsV1, fieldsV1: {{\"f:spec\": {{\"f:ports\": {{\".\": {{}}, \
             'k:{{\"port\":80,\"protocol\":\"TCP\"}}': {{\".\": {{}}, \"f:port\": {{}}{written}}}}}}}}}}}\nspec:\n  type: NodePort\n  \
             clusterIP: 10.96.0.10\n  ipFamilies: [IPv4]\n  ports: [{{port: 80, protocol: TCP, nodePort: {port}}}]"
        )
    };
    let written = ", \"f:nodePort\": {}";
    let stage = Stage::new().node_port_range("30000-32767");
    let stage = stage.document(&service("low", 30005, written)).document(&service("chosen", 30100, ""));
    expect_silent_in_every_mode(&stage, "node-port-range-mismatch/band", "30005 written, 30100 chosen");
    // The rule also judges Services like these. A client wrote a port of the dynamic band into a third Service, and the
    // rule reports this Service.
    let high = stage.document(&service("high", 30101, written)).check(&["--proxy-mode", "iptables"]);
    assert_eq!(high.findings("node-port-range-mismatch/band").len(), 1, "{:#}", high.json);
}

#[test]
fn listeners_around_the_node_port_range_are_outside_of_it() {
    let stage = web().node_port_range("30000-32767");
    let _before = TcpListener::bind("0.0.0.0:29999").expect("the port is free");
    let _behind = TcpListener::bind("0.0.0.0:32768").expect("the port is free");
    expect_silent_in_every_mode(&stage, "listener-on-node-port/latent", "ports 29999 and 32768");
}

#[test]
fn a_range_after_the_last_daemon_covers_no_daemon() {
    let stage = Stage::new().node_port_range("10300-32767");
    let daemons = ["0.0.0.0:22", "127.0.0.1:10248", "[::]:10250"];
    let _daemons = daemons.map(|place| TcpListener::bind(place).expect("the port is free"));
    expect_silent_in_every_mode(&stage, "node-port-range-mismatch/daemons", "daemons below 10300");
}

#[test]
fn a_listener_on_the_agents_port_at_another_address_does_not_block_the_agent() {
    let stage = web();
    let _beside = TcpListener::bind("127.0.0.2:29517").expect("the port is free");
    let _agent = Agent::start(&stage, &[]);
    let mut document = wait_for("/findings", |document| document.contains("\"lookedAt\""));
    for _ in 0..3 {
        let before = document;
        document = wait_for("/findings", |document| *document != before);
        assert!(!document.contains("host-network-port-taken/agent"), "{document}");
    }
    assert_eq!(ask("/livez", "").map(|(status, _)| status), Some(200));
}

#[test]
fn a_kube_proxy_with_its_health_port_and_a_kube_proxy_that_never_answers_lose_nothing() {
    let rule = "health-check-unserved/proxy";
    let stage = Stage::new();
    let other = Squatter::on("0.0.0.0:10256");
    expect_silent(&stage.check(&[]), rule, "no kube-proxy answers");
    drop(other);
    StandIn::default().start();
    let _own = TcpListener::bind("0.0.0.0:10256").expect("the port is free");
    let _beside = Squatter::on("0.0.0.0:10257");
    expect_silent(&stage.check(&[]), rule, "the port is kube-proxy's own");
}
