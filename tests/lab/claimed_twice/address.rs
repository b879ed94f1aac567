//! Two Services with the same address and port, behind the real kube-proxy. Connections reach one Service, and both
//! Services get an Event.

use std::collections::BTreeSet;

use portreeve_facts::Protocol;
use serde_json::json;

use super::{about, answers, claimants, each_is_told, one_answers};
use crate::{
    parts::{Answer, Proxy, Wired, cluster, follow, kubectl},
    verdicts::claims::{Behind, OTHER, balance, balanced_service, serve, service},
};

const RULE: &str = "external-ip-conflict/claimed-twice";
/// An address that no node has.
const ADDRESS: &str = "198.51.100.7";
const BOTH: [&str; 2] = ["first", "second"];

#[track_caller]
fn one_of_two_is_reached(mode: &str) {
    let wired = Wired::enter();
    let _pods = serve(&wired);
    let cluster = cluster();
    Behind::Ready.create(cluster.api(), balanced_service("first", Protocol::Tcp, 8100), Wired::PORT);
    balance(&cluster, "first", &[ADDRESS]);
    let mut second = service("second", Protocol::Tcp, 8100, None);
    second["spec"]["type"] = json!("ClusterIP");
    second["spec"]["externalIPs"] = json!([ADDRESS]);
    let second = Behind::Ready.create(cluster.api(), second, OTHER);
    let mut proxy = Proxy::start(&cluster, mode, &json!({}));
    let asked = |port: u16| answers(&wired, &format!("{ADDRESS}:{port}"));

    one_answers(&wired, &format!("{ADDRESS}:8100"));
    let told = each_is_told(&cluster, RULE, ("warning", 8100), BOTH);
    let claim = |name: &str| ("external-ip".to_owned(), format!("Service default/{name} port p8100"));
    assert_eq!(claimants(&cluster, 8100), BTreeSet::from(BOTH.map(claim)));

    // Both findings have the same remedy: remove the external IP that a user wrote.
    follow(&cluster, &told);
    proxy.settle(&cluster);
    assert_eq!(asked(8100), BTreeSet::from([Answer::Pod]));
    assert!(BOTH.iter().all(|name| about(&cluster, RULE, name).is_empty()));

    // The second Service may keep the external IP if its port differs.
    let mut ports = second["spec"]["ports"].clone();
    ports[0]["port"] = json!(8101);
    let changed = json!({"spec": {"externalIPs": [ADDRESS], "ports": ports}}).to_string();
    kubectl(&cluster, &["patch", "service", "second", "--type=merge", "-p", &changed]);
    proxy.settle(&cluster);
    assert_eq!((asked(8100), asked(8101)), (BTreeSet::from([Answer::Pod]), BTreeSet::from([Answer::OtherPod])));
    assert!(BOTH.iter().all(|name| about(&cluster, RULE, name).is_empty()));
}

#[test]
fn in_iptables_mode_one_of_two_services_with_one_address_and_port_is_reached() {
    one_of_two_is_reached("iptables");
}

#[test]
fn in_nftables_mode_one_of_two_services_with_one_address_and_port_is_reached() {
    one_of_two_is_reached("nftables");
}
