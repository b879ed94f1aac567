//! Other claims to the port of a NodePort: hostPorts, external IPs, older listeners, and health checks that another
//! program or a connection blocks.

use std::net::TcpListener;

use crate::{
    host_network::bound,
    near_misses::expect_silent,
    stage::{Stage, connecting},
};

pub(crate) fn edge(host_port: u16) -> Stage {
    Stage::new().document(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: edge, namespace: default, uid: uid-edge}}\nspec:\n  nodeName: n1\n  containers:\n  \
         - name: edge\n    ports: [{{containerPort: 80, hostPort: {host_port}, protocol: TCP}}]\nstatus: {{phase: Running, podIP: 10.244.0.7, podIPs: [{{ip: 10.244.0.7}}]}}"
    ))
}

#[test]
fn a_host_port_equal_to_a_node_port_is_reported_by_mode_and_endpoints() {
    for (mode, endpoints, severity) in [
        ("iptables", Some("n1"), "critical"),
        ("iptables", None, "warning"),
        ("ipvs", Some("n1"), "critical"),
        ("nftables", Some("n1"), "warning"),
    ] {
        let stage = edge(30080).service("web", "TCP", 30080, "").endpoints("web", "TCP", endpoints);
        let scan = stage.check(&["--proxy-mode", mode]);
        let finding = scan.finding("host-port-conflict/node-port", "edge");
        assert_eq!(finding.0["severity"], severity, "{mode}, endpoints on {endpoints:?}");
        assert!(finding.evidence().contains("default/web"), "{}", finding.evidence());
    }
}

#[test]
fn a_host_port_of_another_number_or_protocol_is_no_conflict() {
    for (port, protocol) in [(30081, "TCP"), (30080, "UDP")] {
        let stage = edge(30080).service("web", protocol, port, "").endpoints("web", protocol, Some("n1"));
        assert!(stage.check(&["--proxy-mode", "iptables"]).findings("host-port-conflict/node-port").is_empty());
    }
}

#[test]
fn a_host_port_takes_the_connections_of_a_listener() {
    let stage = edge(8099);
    let _elsewhere = TcpListener::bind("0.0.0.0:8098").expect("the port is free");
    let scan = || stage.check(&["--proxy-mode", "iptables"]);
    assert!(scan().findings("host-port-conflict/takes-listener").is_empty());
    let _there = TcpListener::bind("0.0.0.0:8099").expect("the port is free");
    assert_eq!(scan().findings("host-port-conflict/takes-listener").len(), 1);
}

pub(crate) fn balanced() -> Stage {
    Stage::new()
        .document(
            "apiVersion: v1\nkind: Service\nmetadata: {name: lb, namespace: default, uid: uid-lb}\nspec:\n  type: LoadBalancer\n  \
             clusterIP: 10.96.0.30\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 30999\n  ipFamilies: [IPv4]\n  \
             ports: [{port: 80, protocol: TCP, nodePort: 30090}]",
        )
        .endpoints("lb", "TCP", Some("n1"))
}

#[test]
fn a_health_check_that_another_program_serves_removes_the_node_from_its_load_balancer() {
    let stage = balanced();
    let server = TcpListener::bind("0.0.0.0:30999").expect("the port is free");
    std::thread::spawn(move || crate::proxy::serve(&server, |_| Some("<html>hello</html>".to_owned())));
    let scan = stage.check(&["--proxy-mode", "iptables"]);
    assert_eq!(scan.finding("health-check-unserved/other", "lb").0["severity"], "critical");
}

#[test]
fn a_health_check_that_names_its_service_is_served() {
    let stage = balanced();
    let server = TcpListener::bind("[::]:30999").expect("the port is free");
    let body = r#"{"service":{"namespace":"default","name":"lb"},"localEndpoints":1,"serviceProxyHealthy":true}"#;
    std::thread::spawn(move || crate::proxy::serve(&server, |_| Some(body.to_owned())));
    let scan = stage.check(&["--proxy-mode", "iptables"]);
    assert!(scan.findings("health-check-unserved").is_empty(), "{:#}", scan.json);
    assert!(scan.findings("listener-on-node-port").is_empty(), "{:#}", scan.json);
}

#[test]
fn a_connection_from_the_port_of_a_health_check_blocks_the_proxy() {
    // `node_port_range` adds the API server's Pod. Without any Pod in the file, Portreeve would not know which pods
    // need a port.
    let stage = balanced().node_port_range("30000-32767");
    let connection = connecting("192.0.2.1:30999", "192.0.2.9:443");
    let scan = stage.check(&["--proxy-mode", "iptables"]);
    assert_eq!(scan.finding("connection-on-port/blocks", "lb").0["severity"], "warning");
    drop(connection);
    let _elsewhere = connecting("192.0.2.1:30998", "192.0.2.9:443");
    assert!(stage.check(&["--proxy-mode", "iptables"]).findings("connection-on-port/blocks").is_empty());
}

#[test]
fn a_process_that_is_bound_to_the_port_of_kube_proxys_health_blocks_kube_proxy() {
    let (rule, mode) = ("connection-on-port/blocks", ["--proxy-mode", "iptables"]);
    let stage = balanced().node_port_range("30000-32767");
    let idle = bound("0.0.0.0:10256");
    let evidence = stage.check(&mode).finding(rule, "n1").evidence();
    assert!(evidence.contains("socket = tcp BOUND 0.0.0.0:10256"), "{evidence}");
    drop(idle);
    let _elsewhere = bound("0.0.0.0:10257");
    expect_silent(&stage.check(&mode), rule, "another port");
}

pub(crate) fn gate(stage: Stage, address: &str, port: u16) -> Stage {
    let gate = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: gate, namespace: default, uid: uid-gate}}\nspec:\n  \
         clusterIP: 10.96.0.20\n  ipFamilies: [IPv4]\n  ports: [{{port: {port}, protocol: TCP}}]\n  externalIPs: [\"{address}\"]"
    );
    stage.document(&gate).endpoints("gate", "TCP", Some("n1"))
}

#[test]
fn an_external_ip_of_this_node_takes_anothers_node_port_there() {
    let web = || Stage::new().service("web", "TCP", 30080, "").endpoints("web", "TCP", Some("n1"));
    let taking =
        |stage: Stage, address: &str, port: u16| gate(stage, address, port).check(&["--proxy-mode", "nftables"]);
    let scan = taking(web(), "192.0.2.1", 30080);
    assert_eq!(scan.finding("external-ip-conflict/takes-node-port", "web").0["severity"], "critical");
    // The first Service has another port. The second Service has an address at which this mode serves no NodePorts.
    for (address, port) in [("192.0.2.1", 30081), ("192.0.2.2", 30080)] {
        let scan = taking(web(), address, port);
        assert!(scan.findings("external-ip-conflict/takes-node-port").is_empty(), "{address} port {port}");
    }
}

#[test]
fn a_listener_inside_the_range_is_reported_until_a_service_has_its_port() {
    let stage = || Stage::new().node_port_range("30000-32767");
    let outside = stage();
    let _listener = TcpListener::bind("0.0.0.0:29999").expect("the port is free");
    assert!(outside.check(&["--proxy-mode", "iptables"]).findings("listener-on-node-port/latent").is_empty());
    let inside = stage();
    let _listener = TcpListener::bind("0.0.0.0:31000").expect("the port is free");
    let scan = inside.check(&["--proxy-mode", "iptables"]);
    assert_eq!(scan.finding("listener-on-node-port/latent", "n1").0["severity"], "info");
    let taken = inside.service("web", "TCP", 31000, "");
    assert!(taken.check(&["--proxy-mode", "iptables"]).findings("listener-on-node-port/latent").is_empty());
}
