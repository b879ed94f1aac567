//! Other claims to a NodePort's number: hostPorts, and health checks served by somebody else.

use std::net::TcpListener;

use crate::stage::Stage;

fn edge(host_port: u16) -> Stage {
    Stage::new().document(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: edge, namespace: default, uid: uid-edge}}\nspec:\n  nodeName: n1\n  containers:\n  \
         - name: edge\n    ports: [{{containerPort: 80, hostPort: {host_port}, protocol: TCP}}]\nstatus: {{phase: Running, podIP: 10.244.0.7, podIPs: [{{ip: 10.244.0.7}}]}}"
    ))
}

#[test]
fn a_host_port_equal_to_a_node_port_is_told_per_mode_and_endpoints() {
    for (mode, endpoints, severity) in [
        ("iptables", Some("n1"), "critical"),
        ("iptables", None, "warning"),
        ("ipvs", Some("n1"), "critical"),
        ("nftables", Some("n1"), "warning"),
    ] {
        let stage = edge(30080).service("web", "TCP", 30080, "").endpoints("web", "TCP", endpoints);
        let look = stage.check(&["--proxy-mode", mode]);
        let finding = look.finding("host-port-equals-node-port", "edge");
        assert_eq!(finding.0["severity"], severity, "{mode}, endpoints on {endpoints:?}");
        assert!(finding.evidence().contains("default/web"), "{}", finding.evidence());
    }
}

#[test]
fn a_host_port_of_another_number_or_protocol_is_no_conflict() {
    for (port, protocol) in [(30081, "TCP"), (30080, "UDP")] {
        let stage = edge(30080).service("web", protocol, port, "").endpoints("web", protocol, Some("n1"));
        assert!(stage.check(&["--proxy-mode", "iptables"]).findings("host-port-equals-node-port").is_empty());
    }
}

/// A load balancer's Service whose health check is at 30999.
fn balanced() -> Stage {
    Stage::new()
        .document(
            "apiVersion: v1\nkind: Service\nmetadata: {name: lb, namespace: default, uid: uid-lb}\nspec:\n  type: LoadBalancer\n  \
             clusterIP: 10.96.0.30\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 30999\n  ipFamilies: [IPv4]\n  \
             ports: [{port: 80, protocol: TCP, nodePort: 30090}]",
        )
        .endpoints("lb", "TCP", Some("n1"))
}

#[test]
fn a_health_check_that_somebody_else_serves_drops_the_node_from_its_load_balancer() {
    let stage = balanced();
    let server = TcpListener::bind("0.0.0.0:30999").expect("the port is free");
    std::thread::spawn(move || crate::proxy::serve(&server, |_| Some("<html>hello</html>".to_owned())));
    let look = stage.check(&["--proxy-mode", "iptables"]);
    assert_eq!(look.finding("health-check-node-port-unserved", "lb").0["severity"], "critical");
}

#[test]
fn a_health_check_that_names_its_service_is_served() {
    let stage = balanced();
    let server = TcpListener::bind("[::]:30999").expect("the port is free");
    let body = r#"{"service":{"namespace":"default","name":"lb"},"localEndpoints":1,"serviceProxyHealthy":true}"#;
    std::thread::spawn(move || crate::proxy::serve(&server, |_| Some(body.to_owned())));
    let look = stage.check(&["--proxy-mode", "iptables"]);
    assert!(look.findings("health-check-node-port-unserved").is_empty(), "{:#}", look.json);
    assert!(look.findings("listener-on-node-port").is_empty(), "{:#}", look.json);
}
