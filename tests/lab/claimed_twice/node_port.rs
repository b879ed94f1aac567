//! Two Services with the same nodePort: the rule's findings about manifests, and the answers of the real API server.

use std::collections::BTreeSet;

use portreeve_facts::Protocol;
use serde_json::{Value, json};

use super::{about, answers, before, claimants, each_is_told, one_answers};
use crate::{
    look::Look,
    parts::{Answer, Directory, PRIMARY, Proxy, Wired, cluster, enter_alone, follow, kubectl, objects},
    verdicts::claims::{self, Behind, OTHER},
};

const RULE: &str = "node-port-claimed-twice";
const ALLOCATED: &str = "provided port is already allocated";

/// Each tuple is a port, its nodePort and its protocol.
fn service(name: &str, ports: &[(u16, u16, &str)]) -> Value {
    let entry = |(port, node_port, protocol): &(u16, u16, &str)| {
        let name = format!("{}-{port}", protocol.to_lowercase());
        json!({"name": name, "port": port, "nodePort": node_port, "protocol": protocol})
    };
    objects::service(name, &ports.iter().map(entry).collect::<Vec<_>>())
}

fn checked(name: &str, check: u16, node_port: u16) -> Value {
    let mut service = service(name, &[(80, node_port, "TCP")]);
    service["spec"]["type"] = json!("LoadBalancer");
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    service["spec"]["healthCheckNodePort"] = json!(check);
    service
}

#[test]
fn what_the_api_server_will_refuse_is_told_of_the_same_manifests_before() {
    enter_alone();
    let cluster = cluster();
    for (what, manifests, is_refused) in [
        ("one number", vec![service("a", &[(80, 30001, "TCP")]), service("b", &[(81, 30001, "TCP")])], true),
        ("two protocols", vec![service("c", &[(53, 30002, "TCP")]), service("d", &[(53, 30002, "UDP")])], true),
        ("two protocols of one port", vec![service("e", &[(53, 30003, "TCP"), (53, 30003, "UDP")])], false),
        ("two protocols of two ports", vec![service("f", &[(53, 30004, "TCP"), (54, 30004, "UDP")])], true),
        ("another's health check", vec![service("g", &[(80, 30005, "TCP")]), checked("h", 30005, 30006)], true),
        ("its own health check", vec![checked("i", 30007, 30007)], true),
        ("four numbers", vec![service("j", &[(80, 30008, "TCP")]), checked("k", 30009, 30010)], false),
    ] {
        let told = before(RULE, &manifests);
        let refusals: Vec<String> = manifests.iter().filter_map(|it| cluster.api().try_create(it).err()).collect();
        assert!(refusals.iter().all(|it| it.contains(ALLOCATED)), "{what}: {refusals:?}");
        assert_eq!((refusals.len() == 1, !told.is_empty()), (is_refused, is_refused), "{what}: {refusals:?} {told:#?}");
        assert!(told.iter().all(|it| it["variant"] == "refused" && it["severity"] == "warning"), "{what}: {told:#?}");
    }

    // The API server refuses to create a Service that has one nodePort for two ports. The API server accepts a change
    // that gives an existing Service one nodePort for two ports.
    let asked = |what: &str| about(&cluster, RULE, what);
    assert_eq!(asked("e"), [Value::Null; 0]);
    let changed = r#"[{"op": "replace", "path": "/spec/ports/1/port", "value": 54}]"#;
    kubectl(&cluster, &["patch", "service", "e", "--type=json", "-p", changed]);
    let told = asked("e");
    assert!(told.len() == 2 && told.iter().all(|it| it["variant"] == "anew"), "{told:#?}");
    let changed = service("e", &[(53, 30003, "TCP"), (54, 30003, "UDP")]);
    cluster.api().delete(&changed);
    assert!(cluster.api().try_create(&changed).is_err_and(|refusal| refusal.contains(ALLOCATED)));
}

#[test]
fn a_port_or_a_name_that_a_service_has_twice_is_told_if_the_api_server_refuses_the_service() {
    enter_alone();
    let (cluster, directory) = (cluster(), Directory::new());
    let rule = "port-field-refused/twice";
    for (name, first, second, is_refused) in [
        ("port-and-protocol-twice", ("a", 80, "TCP", 30001), ("b", 80, "TCP", 30002), true),
        ("name-twice", ("a", 80, "TCP", 30003), ("a", 81, "TCP", 30004), true),
        ("both-twice", ("a", 80, "TCP", 30005), ("a", 80, "TCP", 30006), true),
        ("two-ports", ("a", 80, "TCP", 30007), ("b", 81, "TCP", 30008), false),
        ("two-protocols-and-numbers", ("a", 80, "TCP", 30009), ("b", 80, "UDP", 30010), false),
        ("two-protocols", ("a", 80, "TCP", 30011), ("b", 80, "UDP", 30011), false),
    ] {
        let ports = [first, second].map(|(name, port, protocol, node_port)| {
            json!({"name": name, "port": port, "protocol": protocol, "nodePort": node_port})
        });
        let service = objects::service(name, &ports);
        let look = Look::lint(rule, &directory.write("service.json", &service.to_string()));
        let refusal = cluster.api().try_create(&service).err();
        assert_eq!(
            (refusal.is_some(), !look.findings(rule).is_empty()),
            (is_refused, is_refused),
            "{name}: {refusal:?}"
        );
        assert!(refusal.is_none_or(|it| it.contains("Duplicate value")), "{name}");
    }
}

#[track_caller]
fn one_of_two_is_reached(mode: &str) {
    let wired = Wired::enter();
    let _pods = claims::serve(&wired);
    let cluster = cluster();
    let create = |name, node_port, target| {
        Behind::Ready.create(cluster.api(), claims::service(name, Protocol::Tcp, 80, Some(node_port)), target)
    };
    create("first", 30080, Wired::PORT);
    let mut second = create("second", 30081, OTHER);
    second["spec"]["ports"][0]["nodePort"] = json!(30080);
    cluster.restore_service(&second);
    let mut proxy = Proxy::start(&cluster, mode, &json!({}));

    let place = format!("{}:30080", PRIMARY[0]);
    one_answers(&wired, &place);
    let told = each_is_told(&cluster, RULE, ("critical", 30080), ["first", "second"]);
    let claim = |name: &str| ("node-port".to_owned(), format!("Service default/{name} port p80"));
    assert_eq!(claimants(&cluster, 30080), BTreeSet::from(["first", "second"].map(claim)));

    follow(&cluster, &told);
    proxy.settle(&cluster);
    assert_eq!(answers(&wired, &place), BTreeSet::from([Answer::OtherPod]));
    assert!(["first", "second"].iter().all(|name| about(&cluster, RULE, name).is_empty()));
}

#[test]
fn in_iptables_mode_one_of_two_services_with_one_node_port_is_reached() {
    one_of_two_is_reached("iptables");
}

#[test]
fn in_nftables_mode_one_of_two_services_with_one_node_port_is_reached() {
    one_of_two_is_reached("nftables");
}
