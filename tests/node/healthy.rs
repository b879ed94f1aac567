//! Healthy nodes: no finding may be above info.

use std::net::{TcpListener, UdpSocket};

use crate::{
    proxy::StandIn,
    stage::{Stage, ip},
};

fn quiet(stage: &Stage, arguments: &[&str]) {
    let scan = stage.check(arguments);
    assert!(scan.alarms().is_empty(), "{:#?}", scan.alarms());
    assert_eq!(scan.code, 0);
}

fn services(stage: Stage) -> Stage {
    (0..5).fold(stage, |stage, n| {
        let name = format!("s{n}");
        stage.service(&name, "TCP", 30080 + n, "").endpoints(&name, "TCP", Some("n1"))
    })
}

#[test]
fn a_node_with_kube_proxys_own_listeners() {
    let stage = services(Stage::new());
    StandIn::default().start();
    let _health = TcpListener::bind("0.0.0.0:10256").expect("the port is free");
    quiet(&stage, &[]);
}

#[test]
fn a_node_whose_old_proxy_holds_every_node_port() {
    let stage = services(Stage::new());
    StandIn { version: "v1.23.6", ..StandIn::default() }.start();
    let _held: Vec<_> =
        (30080..30085).map(|port| TcpListener::bind(("0.0.0.0", port)).expect("the port is free")).collect();
    quiet(&stage, &[]);
}

#[test]
fn a_node_whose_nftables_proxy_serves_node_ports_on_loopback() {
    let stage = services(Stage::new());
    StandIn {
        mode: "nftables",
        node_port_addresses: r#"["primary","localhost"]"#,
        version: "v1.37.0",
        ..StandIn::default()
    }
    .start();
    let _held: Vec<_> =
        (30080..30085).map(|port| TcpListener::bind(("127.0.0.1", port)).expect("the port is free")).collect();
    quiet(&stage, &[]);
}

#[test]
fn a_host_network_pod_that_is_the_services_own_endpoint() {
    let stage = Stage::new().service("web", "TCP", 30080, "").document(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nmetadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}\n\
         ports: [{name: \"\", port: 30080, protocol: TCP}]\nendpoints: [{addresses: [\"192.0.2.1\"], nodeName: n1, conditions: {ready: true}}]",
    );
    let _listener = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    quiet(&stage, &["--proxy-mode", "iptables"]);
}

#[test]
fn udp_sockets_of_the_kernel_and_of_resolvers() {
    let stage = Stage::new().service("dns", "UDP", 30053, "").endpoints("dns", "UDP", Some("n1"));
    ip("link add vxlan.calico type vxlan id 4096 dstport 30789 dev eth0");
    ip("link set vxlan.calico up");
    // The tunnel's port is in the NodePort range, but no Service has this port.
    let _client = UdpSocket::bind("0.0.0.0:40000").expect("the port is free");
    quiet(&stage, &["--proxy-mode", "iptables"]);
}

#[test]
fn established_and_accepted_connections_are_not_conflicts() {
    let stage = services(Stage::new());
    let listener = TcpListener::bind("127.0.0.1:8080").expect("the port is free");
    let clients: Vec<_> =
        (0..50).map(|_| std::net::TcpStream::connect("127.0.0.1:8080").expect("a connection")).collect();
    let accepted: Vec<_> = clients.iter().map(|_| listener.accept().expect("a connection")).collect();
    for mode in ["iptables", "nftables", "ipvs"] {
        quiet(&stage, &["--proxy-mode", mode]);
    }
    assert_eq!(accepted.len(), clients.len());
}
