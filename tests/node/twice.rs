//! Two claims to one address or port. A Service has another Node's address, or two Services have one address and port.
//! Two claims have one nodePort, or a hostPort is in the NodePort range.

use crate::{
    claims::{edge, gate},
    near_misses::expect_silent,
    stage::{PEER, Stage, ip},
};

#[test]
fn a_peers_address_on_a_link_of_this_node_cuts_the_peer_off() {
    let stage = Stage::new();
    ip(&format!("address add {PEER}/32 dev eth0"));
    for mode in ["iptables", "nftables", "ipvs"] {
        let scan = stage.check(&["--proxy-mode", mode]);
        let finding = scan.finding("address-held-twice/link", "n1");
        assert_eq!(finding.verdict(), "critical remote node pods", "{mode}");
        assert_eq!(finding.0["scope"], "node", "the address belongs to the peer");
        assert!(finding.remedy().contains(&format!("ip addr del {PEER}/32 dev eth0")), "{}", finding.remedy());
        assert!(scan.findings("address-held-twice/ipvs").is_empty(), "{:#}", scan.json);
    }
}

#[test]
fn a_virtual_address_and_the_older_name_of_this_node_are_no_peers() {
    let stage = gate(Stage::new(), "198.51.100.7", 6666);
    ip("address add 198.51.100.7/32 dev eth0");
    let older = stage.node("n1-before", &["192.0.2.1", "192.0.2.2"]);
    for mode in ["iptables", "nftables", "ipvs"] {
        expect_silent(&older.check(&["--proxy-mode", mode]), "address-held-twice/link", mode);
    }
}

/// Adds a Service whose address kube-vip announces on `host`.
fn announced(stage: Stage, address: &str, host: &str) -> Stage {
    stage.document(&format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  {{name: front, namespace: edge, uid: uid-front, annotations: \
         {{kube-vip.io/vipHost: {host}}}}}\nspec:\n  type: LoadBalancer\n  clusterIP: 10.96.0.31\n  ipFamilies: [IPv4]\n  \
         ports: [{{port: 443, protocol: TCP, nodePort: 30091}}]\nstatus: {{loadBalancer: {{ingress: [{{ip: {address}}}]}}}}"
    ))
}

#[test]
fn an_address_that_kube_vip_announces_on_another_node_is_reported_until_it_is_deleted() {
    let stage = announced(Stage::new(), "192.0.2.50", "n2");
    ip("address add 192.0.2.50/32 dev eth0");
    for mode in ["iptables", "nftables", "ipvs"] {
        let scan = stage.check(&["--proxy-mode", mode]);
        let finding = scan.finding("address-held-twice/announced-elsewhere", "n1");
        assert_eq!(finding.verdict(), "warning remote", "{mode}");
        assert_eq!(finding.0["scope"], "node", "the address belongs to the other node");
        assert!(finding.evidence().contains("edge/front"), "{}", finding.evidence());
        assert!(finding.remedy().contains("ip addr del 192.0.2.50/32 dev eth0"), "{}", finding.remedy());
    }
    ip("addr del 192.0.2.50/32 dev eth0");
    expect_silent(&stage.check(&["--proxy-mode", "iptables"]), "address-held-twice/announced-elsewhere", "deleted");
}

#[test]
fn an_address_that_kube_vip_announces_here_or_routes_to_each_node_is_healthy() {
    for (address, host, link) in
        [("192.0.2.50", "n1", "eth0"), ("192.0.2.50", "n2", "lo"), ("198.51.100.50", "n2", "eth0")]
    {
        let stage = announced(Stage::new(), address, host);
        ip(&format!("address add {address}/32 dev {link}"));
        let scan = stage.check(&["--proxy-mode", "iptables"]);
        expect_silent(&scan, "address-held-twice/announced-elsewhere", &format!("{address} on {link} of {host}"));
    }
}

fn balanced(stage: Stage, address: &str, port: u16, protocol: &str) -> Stage {
    stage.document(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: lb, namespace: default, uid: uid-lb}}\nspec:\n  type: LoadBalancer\n  \
         clusterIP: 10.96.0.30\n  ipFamilies: [IPv4]\n  ports: [{{port: {port}, protocol: {protocol}, nodePort: 30090}}]\n\
         status: {{loadBalancer: {{ingress: [{{ip: {address}, ipMode: VIP}}]}}}}"
    ))
}

#[test]
fn an_external_ip_and_a_load_balancer_with_one_address_and_port_are_both_reported() {
    let stage = balanced(gate(Stage::new(), "198.51.100.7", 6666), "198.51.100.7", 6666, "TCP");
    let scan = stage.check(&["--proxy-mode", "iptables"]);
    for (name, other) in [("gate", "default/lb"), ("lb", "default/gate")] {
        let finding = scan.finding("external-ip-conflict/claimed-twice", name);
        assert_eq!(finding.verdict(), "warning remote node pods", "{name}");
        assert_eq!(finding.0["scope"], "cluster", "every agent finds it, and one reports it");
        assert!(finding.evidence().contains(other), "{}", finding.evidence());
    }
}

#[test]
fn one_address_with_two_ports_or_protocols_is_shared_on_purpose() {
    for (port, protocol) in [(6667, "TCP"), (6666, "UDP")] {
        let stage = balanced(gate(Stage::new(), "198.51.100.7", 6666), "198.51.100.7", port, protocol);
        let scan = stage.check(&["--proxy-mode", "iptables"]);
        expect_silent(&scan, "external-ip-conflict/claimed-twice", &format!("port {port}/{protocol}"));
    }
}

fn agents(stage: Stage, host_port: u16) -> Stage {
    daemon_set(stage, "agent", "", host_port)
}

fn daemon_set(stage: Stage, name: &str, selector: &str, host_port: u16) -> Stage {
    stage.document(&format!(
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: {name}, namespace: default}}\nspec:\n  template:\n    spec:\n      {selector}\
         containers:\n      - {{name: agent, ports: [{{containerPort: 80, hostPort: {host_port}}}]}}"
    ))
}

#[test]
fn one_host_port_of_two_daemon_sets_is_reported_once() {
    let scan = daemon_set(agents(Stage::new(), 9100), "other", "", 9100).check(&["--proxy-mode", "iptables"]);
    let [finding] = &scan.findings("pod-waits-for-port/workloads")[..] else { panic!("{:#}", scan.json) };
    assert_eq!((&finding["severity"], &finding["scope"]), (&"warning".into(), &"cluster".into()));
    assert!(finding["evidence"].to_string().contains("DaemonSet default/other as hostPort"), "{finding:#}");
}

#[test]
fn a_daemon_set_of_other_nodes_or_with_another_host_port_claims_nothing_twice() {
    let [fast, slow] = ["ssd", "hdd"].map(|disk| format!("nodeSelector: {{disk: {disk}}}\n      "));
    for (of_one, of_other, port) in [(slow.as_str(), fast.as_str(), 9100), ("", "", 9101)] {
        let one = daemon_set(Stage::new(), "agent", of_one, 9100);
        let scan = daemon_set(one, "other", of_other, port).check(&["--proxy-mode", "iptables"]);
        expect_silent(&scan, "pod-waits-for-port/workloads", &format!("{of_other}{port}"));
    }
}

#[test]
fn one_node_port_of_two_services_and_a_daemon_set_is_reported_for_each_service() {
    let stage = || Stage::new().service("web", "TCP", 30777, "");
    let scan = stage().service("shop", "TCP", 30777, "").check(&["--proxy-mode", "iptables"]);
    for name in ["web", "shop"] {
        let finding = scan.finding("node-port-claimed-twice", name).0;
        assert_eq!((&finding["severity"], &finding["scope"]), (&"critical".into(), &"cluster".into()));
    }
    let scan = agents(stage(), 30777).check(&["--proxy-mode", "iptables"]);
    let finding = scan.finding("node-port-claimed-twice", "web");
    assert_eq!(finding.0["severity"], "warning");
    assert!(finding.evidence().contains("DaemonSet default/agent"), "{}", finding.evidence());
}

#[test]
fn neighbours_of_a_node_port_are_other_ports() {
    let stage = Stage::new().service("web", "TCP", 30777, "").service("shop", "TCP", 30778, "");
    let scan = agents(stage, 30779).check(&["--proxy-mode", "iptables"]);
    expect_silent(&scan, "node-port-claimed-twice", "30777, 30778 and 30779");
}

#[test]
fn a_host_port_in_the_node_port_range_is_ignored_with_cilium_and_latent_otherwise() {
    let stage = edge(30777).node_port_range("30000-32767");
    let ignored = stage.check(&["--proxy-mode", "cilium"]);
    assert_eq!(ignored.finding("host-port-conflict/ignored", "edge").0["severity"], "warning");
    for mode in ["iptables", "nftables", "ipvs"] {
        let scan = stage.check(&["--proxy-mode", mode]);
        assert_eq!(scan.finding("host-port-conflict/latent", "edge").0["severity"], "info", "{mode}");
    }
}

#[test]
fn a_host_port_before_the_node_port_range_is_served() {
    let stage = edge(29999).node_port_range("30000-32767");
    for mode in ["cilium", "iptables"] {
        expect_silent(&stage.check(&["--proxy-mode", mode]), "host-port-conflict", mode);
    }
}
