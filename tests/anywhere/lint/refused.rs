//! Objects that the API server refuses because of a port field.

use super::{containers, found, lint, sentence, service, workload};

const NOTHING: [&str; 0] = [];

fn daemon(host_network: bool, pods: &str) -> Vec<String> {
    let network = if host_network { "hostNetwork: true, " } else { "" };
    found(&workload("DaemonSet", "agent", "", &format!("{network}{pods}")), &[])
}

#[test]
fn a_node_port_needs_a_type_that_has_one() {
    let of = |kind: &str| service("web", "nodePort: 30080").replace("  type: NodePort", kind);
    let line = ["6:32 warning port-field-refused/node-port Service default/web 30080/tcp"];
    for kind in ["  type: ClusterIP", "  sessionAffinity: None"] {
        assert_eq!(found(&of(kind), &[]), line, "{kind}");
    }
    for kind in ["  type: NodePort", "  type: LoadBalancer", "  type: ExternalName\n  externalName: example.com"] {
        assert_eq!(found(&of(kind), &[]), NOTHING, "{kind}");
    }
    assert_eq!(
        sentence(&of("  sessionAffinity: None"), "port-field-refused", &[]),
        "nodePort 30080/tcp of Service default/web is set in a Service of type ClusterIP: the API server refuses the object."
    );
    // The API server refuses the Service of type ClusterIP, so the other Service can get the nodePort.
    let both = of("  type: ClusterIP") + &service("api", "nodePort: 30080");
    assert_eq!(found(&both, &[]), line);
}

#[test]
fn an_update_that_writes_the_number_that_it_has_is_taken() {
    let there = |port: &str, number: u16| {
        let service = service("web", &format!("nodePort: {number}")).replace("{name: web,", "{name: web, uid: u,");
        let web = self::service("web", port).replace("type: NodePort", "type: ClusterIP");
        let (code, stdout, stderr) =
            lint(&[("a.yaml", &web), ("b.yaml", &service)], &["a.yaml", "--against", "b.yaml"]);
        assert_eq!(stderr, "", "{stdout}");
        code
    };
    assert_eq!((there("nodePort: 30080", 30080), there("nodePort: 30080", 30081)), (0, 1));
    assert_eq!(there("protocol: UDP, nodePort: 30080", 30080), 0, "the API server compares only the numbers");
}

#[test]
fn a_health_check_needs_a_load_balancer_with_the_policy_local() {
    let of = |kind: &str, policy: &str| {
        let lines = format!("  type: {kind}\n  healthCheckNodePort: 30090\n  externalTrafficPolicy: {policy}");
        found(&service("lb", "nodePort: 30080").replace("  type: NodePort", &lines), &[])
    };
    let line = ["6:24 warning port-field-refused/node-port Service default/lb 30090/tcp"];
    assert_eq!(of("LoadBalancer", "Cluster"), line);
    assert_eq!(of("NodePort", "Local"), line);
    assert_eq!(of("LoadBalancer", "Local"), NOTHING);
}

/// Cases of kubernetes/kubernetes#133564 for a new Service. The API server refuses a repeated name, and a repeated pair
/// of port and protocol.
#[test]
fn a_service_has_each_port_and_protocol_once_and_each_name_once() {
    let of = |second: &str| found(&service("web", &format!("name: a, nodePort: 30010}}, {{{second}")), &[]);
    let refused = |found: &[String]| found.iter().filter(|it| it.contains("port-field-refused/twice")).count();
    assert_eq!(refused(&of("name: b, port: 80, nodePort: 30011")), 1);
    assert_eq!(refused(&of("name: a, port: 81, nodePort: 30011")), 1);
    assert_eq!(refused(&of("name: a, port: 80, nodePort: 30011")), 2);
    for taken in [
        "name: b, port: 81, nodePort: 30011",
        "name: b, port: 80, protocol: UDP, nodePort: 30011",
        "name: b, port: 80, protocol: UDP, nodePort: 30010",
    ] {
        assert_eq!(of(taken), NOTHING, "{taken}");
    }
}

#[test]
fn a_pod_has_a_port_of_the_node_once() {
    let two = |second: &str| {
        format!("containers: [{{ports: [{{containerPort: 80, hostPort: 8080}}]}}, {{ports: [{{{second}}}]}}]")
    };
    let lines = daemon(false, &two("containerPort: 81, hostPort: 8080"));
    assert_eq!(lines, ["5:122 warning port-field-refused/twice DaemonSet default/agent 8080/tcp"]);
    for other in [
        "containerPort: 81, hostPort: 8081",
        "containerPort: 81, hostPort: 8080, protocol: UDP",
        "containerPort: 81, hostPort: 8080, hostIP: 192.0.2.1",
        "containerPort: 80",
    ] {
        assert_eq!(daemon(false, &two(other)), NOTHING, "{other}");
    }
    // In the host's network, the API server sets hostPort to the value of each containerPort.
    let both = "containers: [{ports: [{containerPort: 8080}]}, {ports: [{containerPort: 8080}]}]";
    assert_eq!(daemon(true, both).len(), 1);
    assert_eq!(daemon(false, both), NOTHING);
    let ends = |object: &str, end: &str| assert!(sentence(object, "port-field-refused", &[]).ends_with(end), "{end}");
    ends(&workload("Deployment", "web", "", &format!("hostNetwork: true, {both}")), "the API server refuses its pods.");
    let pod = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{hostNetwork: true, {both}}}\n");
    ends(&pod, "the API server refuses the object.");
    let written = both.replace("8080", "8080, hostPort: 8080");
    ends(&workload("Deployment", "web", "", &format!("hostNetwork: true, {written}")), "refuses the object.");
    let beside = two("containerPort: 80")
        + ", initContainers: [{restartPolicy: Always, ports: [{containerPort: 80, hostPort: 8080}]}]";
    assert_eq!(daemon(false, &beside), NOTHING, "the API server does not compare these");
    let spelled = |ip: &str| format!("{{ports: [{{containerPort: 80, hostPort: 8080, hostIP: '{ip}'}}]}}");
    let spelled = |one, other| format!("containers: [{}, {}]", spelled(one), spelled(other));
    assert_eq!(daemon(false, &spelled("::1", "::1")).len(), 1);
    assert_eq!(daemon(false, &spelled("::1", "0:0::1")), NOTHING, "the API server compares the texts");
}

#[test]
fn in_the_hosts_network_a_host_port_is_the_container_port() {
    let lines = daemon(true, &containers("containerPort: 8080, hostPort: 8081"));
    assert_eq!(lines, ["5:95 warning port-field-refused/host-network DaemonSet default/agent 8081/tcp"]);
    assert_eq!(daemon(true, &containers("containerPort: 8080, hostPort: 8080")), NOTHING);
    assert_eq!(daemon(true, &containers("containerPort: 8080")), NOTHING);
    assert_eq!(daemon(false, &containers("containerPort: 8080, hostPort: 8081")), NOTHING);
}
