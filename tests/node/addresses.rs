//! External IPs that are addresses of a node, and addresses that an ipvs proxy has left on its link `kube-ipvs0`.

use crate::stage::{PEER, Stage, ip, ip_batch};

fn external(address: &str) -> Stage {
    Stage::new().document(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: gate, namespace: default, uid: uid-gate}}\nspec:\n  type: ClusterIP\n  \
         clusterIP: 10.96.0.20\n  ports: [{{port: 6666, protocol: TCP}}]\n  externalIPs: [\"{address}\"]"
    ))
}

fn ipvs_link() {
    ip("link add kube-ipvs0 type bridge");
}

#[test]
fn a_cluster_ip_service_with_a_peers_address_cuts_the_peer_off_in_ipvs_mode_only() {
    let stage = external(PEER);
    for (mode, severity) in [("ipvs", "critical"), ("iptables", "info"), ("nftables", "info")] {
        let scan = stage.check(&["--proxy-mode", mode]);
        let finding = scan.finding("external-ip-conflict/node-address", "gate");
        assert_eq!(finding.0["severity"], severity, "{mode}");
        assert!(finding.evidence().contains("n2"), "the owner is named: {}", finding.evidence());
        assert!(finding.evidence().contains("ClusterIP"), "{}", finding.evidence());
    }
}

#[test]
fn an_external_ip_that_is_no_nodes_address_is_no_conflict() {
    let stage = external("198.51.100.7");
    for mode in ["ipvs", "iptables", "nftables"] {
        let scan = stage.check(&["--proxy-mode", mode]);
        assert!(scan.findings("external-ip-conflict/node-address").is_empty(), "{mode}: {:#}", scan.json);
    }
}

#[test]
fn an_address_on_this_node_is_reported_once_with_its_service() {
    ipvs_link_with(PEER, |stage| {
        let scan = stage.check(&["--proxy-mode", "ipvs"]);
        assert!(scan.finding("external-ip-conflict/node-address", "gate").evidence().contains("kube-ipvs0"));
        assert!(scan.findings("address-held-twice/ipvs").is_empty(), "{:#}", scan.json);
    });
}

fn ipvs_link_with(address: &str, then: impl FnOnce(Stage)) {
    let stage = external(address);
    ipvs_link();
    ip(&format!("address add {address}/32 dev kube-ipvs0"));
    then(stage);
}

#[test]
fn a_peers_address_on_kube_ipvs0_without_a_service_is_foreign() {
    let stage = Stage::new();
    ipvs_link();
    ip(&format!("address add {PEER}/32 dev kube-ipvs0"));
    let scan = stage.check(&["--proxy-mode", "ipvs"]);
    let finding = scan.finding("address-held-twice/ipvs", "n1");
    assert_eq!(finding.0["severity"], "critical");
    assert!(finding.remedy().contains(&format!("ip addr del {PEER}/32 dev kube-ipvs0")), "{}", finding.remedy());
}

#[test]
fn an_address_without_a_service_was_left_behind() {
    let stage = Stage::new();
    ipvs_link();
    ip("address add 10.96.7.7/32 dev kube-ipvs0");
    let scan = stage.check(&["--proxy-mode", "ipvs"]);
    assert_eq!(scan.finding("stale-redirection/proxy", "n1").0["severity"], "warning");
    assert!(scan.finding("stale-redirection/proxy", "n1").evidence().contains("10.96.7.7"));
}

#[test]
fn ten_thousand_cluster_ips_on_kube_ipvs0_are_no_strain_and_no_finding() {
    let stage = Stage::new();
    ipvs_link();
    let mut lines = String::new();
    let mut manifest = String::from("apiVersion: v1\nkind: List\nitems:\n");
    for n in 0..10_000 {
        let address = format!("10.97.{}.{}", n / 250, n % 250 + 1);
        lines.push_str(&format!("address add {address}/32 dev kube-ipvs0\n"));
        manifest.push_str(&format!(
            "- apiVersion: v1\n  kind: Service\n  metadata: {{name: s{n}, namespace: default}}\n  spec:\n    type: ClusterIP\n    \
             clusterIP: {address}\n    ports: [{{port: 80}}]\n"
        ));
    }
    ip_batch(&lines);
    let scan = stage.document(&manifest).check(&["--proxy-mode", "ipvs"]);
    assert!(scan.alarms().is_empty(), "{:#?}", scan.alarms());
    assert!(!scan.unknown().iter().any(|it| it.starts_with("addresses")), "{:?}", scan.unknown());
}
