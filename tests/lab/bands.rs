//! `portreeve agent` and the NodePort range of a real API server: the number of used ports, the source of the range,
//! and settings that disagree.

use crate::parts::named::is_of;
use serde_json::{Value, json};

use crate::{
    parts::{Agent, Api, ControlPlane, PRIMARY, Role, enter_alone, events, kubectl, objects, sysctl, until},
    server::{node_ports, small_cluster},
};

const OTHER: (&str, &str) = ("n2", "127.0.0.1:29518");

#[track_caller]
fn reaches(agent: &Agent, series: &str, value: u32) {
    until(series, || (Agent::value(&agent.metrics(), series) == Some(f64::from(value))).then_some(()));
}

fn many(name: &str, count: u16) -> Value {
    let ports: Vec<Value> = (1..=count).map(|number| objects::port(number, None)).collect();
    objects::service(name, &ports)
}

#[test]
fn a_range_is_told_from_a_fixed_port_to_the_last_one_and_once_by_two_agents() {
    let mut cluster = small_cluster();
    // Both agents scan the same machine, so both Nodes have the machine's addresses.
    cluster.api().create(&objects::node(OTHER.0, &[&["192.0.2.9"], &PRIMARY[..]].concat()));
    Role::of_chart().grant(&mut cluster);
    for (name, port) in [("high", Some(30100)), ("low", Some(30005)), ("automatic", None)] {
        cluster.api().create(&objects::service(name, &[objects::port(80, port)]));
    }
    let agents = [Agent::start(&cluster, &[]), Agent::of(&cluster, OTHER.0, OTHER.1, &[])];
    let [agent, _] = &agents;
    reaches(agent, r#"portreeve_findings{rule="node-port-range-mismatch",variant="band",severity="info"}"#, 1);
    for (series, value) in [
        ("portreeve_node_port_range_first", 30000),
        ("portreeve_node_port_range_last", 30127),
        (r#"portreeve_node_port_range_info{source="flagz"}"#, 1),
        (r#"portreeve_node_ports{state="fixed",band="static"}"#, 1),
        (r#"portreeve_node_ports{state="fixed",band="dynamic"}"#, 1),
        (r#"portreeve_node_ports{state="automatic",band="dynamic"}"#, 1),
        (r#"portreeve_node_ports{state="free",band="static"}"#, 15),
        (r#"portreeve_node_ports{state="free",band="dynamic"}"#, 110),
    ] {
        reaches(agent, series, value);
    }
    let range = &agent.findings()["nodes"][0]["nodePortRange"];
    assert_eq!((&range["sourceKind"], &range["source"]), (&json!("flagz"), &json!("https://127.0.0.1:6443/flagz")));

    // Two of the 112 ports of the dynamic band are in use. A warning needs 90 used ports (80 %).
    let crowded = |variant: &str, severity: &str| {
        let labels = format!("rule=\"node-port-range-crowded\",variant=\"{variant}\",severity=\"{severity}\"");
        let series = format!("portreeve_findings{{{labels}}}");
        agents.iter().for_each(|agent| reaches(agent, &series, 1));
    };
    // Waits until each agent has written or deduplicated `openings` Events, and the cluster has `count` Events.
    let settled = |count: u32, openings: u32| {
        until("Events", || {
            let told =
                ["written", "deduplicated"].map(|result| format!("portreeve_events_total{{result=\"{result}\"}}"));
            let counts = |metrics: &str| told.iter().filter_map(|series| Agent::value(metrics, series)).sum::<f64>();
            let all_told = agents.iter().all(|agent| counts(&agent.metrics()) >= f64::from(openings));
            (all_told && events(&cluster).len() == count as usize).then_some(())
        });
        events(&cluster).pop()
    };
    cluster.api().create(&many("below", 87));
    reaches(agent, r#"portreeve_node_ports{state="free",band="dynamic"}"#, 23);
    assert_eq!(settled(0, 0), None, "info is no Event, and 79 % is not crowded");

    cluster.api().create(&many("at", 1));
    crowded("crowded", "warning");
    let event = settled(1, 1).expect("an Event");
    let kubernetes = cluster.api().text("/api/v1/namespaces/default/services/kubernetes").expect("a Service");
    let kubernetes: Value = serde_json::from_str(&kubernetes).expect("JSON");
    assert_eq!((&event["reason"], &event["type"]), (&json!("NodePortRangeCrowded"), &json!("Warning")));
    assert_eq!(event["regarding"]["uid"], kubernetes["metadata"]["uid"]);
    assert!(event["note"].as_str().is_some_and(|it| it.contains("is filling up.")), "{event:#}");

    let spilled = node_ports(&cluster.api().create(&many("spilled", 24)));
    assert!(spilled.iter().any(|port| *port < 30016), "22 ports of the dynamic band were left: {spilled:?}");
    let event = settled(2, 2).expect("an Event");
    assert!(event["note"].as_str().is_some_and(|it| it.contains("taken from the static band")), "{event:#}");
    reaches(agent, r#"portreeve_node_ports{state="automatic",band="static"}"#, 2);

    cluster.api().create(&many("rest", 13));
    let refused = cluster.api().try_create(&many("late", 1)).expect_err("no port is left");
    assert!(refused.contains("failed to allocate a nodePort: range is full"), "{refused}");
    crowded("full", "critical");
    let event = settled(3, 3).expect("an Event");
    assert!(event["note"].as_str().is_some_and(|it| it.contains("30000-30127 is full")), "{event:#}");
    let shown = kubectl(&cluster, &["describe", "service", "kubernetes"]);
    assert_eq!(shown.matches("NodePortRangeCrowded").count(), 3, "{shown}");

    kubectl(&cluster, &["delete", "service", "below"]);
    let event = settled(4, 3).expect("an Event");
    assert_eq!((&event["reason"], &event["type"]), (&json!("NodePortRangeCrowdedResolved"), &json!("Normal")));
}

#[test]
fn the_range_comes_from_the_best_place_that_says_it_and_the_place_is_named() {
    let mut cluster = small_cluster();
    Role::of_chart().without("/flagz").grant(&mut cluster);
    let known = |kind: &str, place: &str| {
        let agent = Agent::start(&cluster, &[]);
        reaches(&agent, &format!("portreeve_node_port_range_info{{source=\"{kind}\"}}"), 1);
        let range = json!({"first": 30000, "last": 30127, "source": place, "sourceKind": kind});
        assert_eq!(agent.findings()["nodes"][0]["nodePortRange"], range);
        reaches(&agent, "portreeve_node_port_range_last", 30127);
    };
    let arguments = json!(["server", "--kube-apiserver-arg", "service-node-port-range=30000-30127"]).to_string();
    kubectl(&cluster, &["annotate", "node", "n1", &format!("k3s.io/node-args={arguments}")]);
    known("node-arguments", "annotation k3s.io/node-args of node n1");

    let command = ["kube-apiserver", "--secure-port=6443", "--service-node-port-range=30000-30127"];
    cluster.api().create(&objects::static_pod("kube-apiserver", &command));
    known("api-server-arguments", "pod kube-system/kube-apiserver-n1");

    kubectl(&cluster, &["create", "clusterrole", "flagz", "--verb=get", "--non-resource-url=/flagz"]);
    kubectl(&cluster, &["create", "clusterrolebinding", "flagz", "--clusterrole=flagz", "--user=observer"]);
    let observer = Api::of(&cluster.kubeconfig("observer")).expect("a kubeconfig");
    until("right to read /flagz", || observer.text("/flagz"));
    known("flagz", "https://127.0.0.1:6443/flagz");
}

/// Returns the `summary` of the finding, and the Event.
#[track_caller]
fn disagreement(cluster: &ControlPlane, agent: &Agent, variant: &str) -> (String, Value) {
    let event = until("Event", || events(cluster).into_iter().find(|it| it["reason"] == "NodePortRangeMismatch"));
    let findings = agent.findings();
    let findings = findings["findings"].as_array().expect("a list").iter();
    let findings: Vec<_> = findings.filter(|it| is_of(it, &format!("node-port-range-mismatch/{variant}"))).collect();
    let [finding] = findings[..] else { panic!("one finding: {findings:#?}") };
    let summary = finding["summary"].as_str().expect("a sentence").to_owned();
    assert!(event["note"].as_str().is_some_and(|note| note.starts_with(&summary)), "{event:#}");
    assert_eq!(finding["severity"], "warning");
    (summary, event)
}

#[test]
fn cilium_with_a_range_of_its_own_disagrees_with_the_api_server() {
    let mut cluster = small_cluster();
    Role::of_chart().grant(&mut cluster);
    cluster.api().create(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cilium-config", "namespace": "kube-system"},
        "data": {"kube-proxy-replacement": "true", "node-port-range": "30000,30063"},
    }));
    let agent = Agent::start(&cluster, &[]);
    let (summary, event) = disagreement(&cluster, &agent, "component");
    assert_eq!(
        summary,
        "Cilium uses the NodePort range 30000-30063, but the API server uses 30000-30127: NodePorts 30064-30127 are served only on the addresses for remote clients."
    );
    assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Service"), &json!("kubernetes")));
}

/// A cluster with Cilium 1.15 has CiliumNodeConfigs only in the version `v2alpha1`. The API server answers a request
/// for `v2` with 404.
#[test]
fn cilium_with_a_range_of_its_own_on_this_node_alone_disagrees_there() {
    let mut cluster = small_cluster();
    Role::of_chart().grant(&mut cluster);
    define(&cluster, ("cilium.io", "v2alpha1"), ("CiliumNodeConfig", "ciliumnodeconfigs"), "Namespaced");
    let metadata = |name: &str| json!({"name": name, "namespace": "kube-system"});
    cluster.api().create(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata("cilium-config"),
        "data": {"kube-proxy-replacement": "true", "node-port-range": "30000,30127"},
    }));
    kubectl(&cluster, &["label", "node", "n1", "pool=edge"]);
    for (name, pool, range) in [("edge", "edge", "30000,30063"), ("first-of-others", "core", "30000,30031")] {
        cluster.api().create(&json!({
            "apiVersion": "cilium.io/v2alpha1",
            "kind": "CiliumNodeConfig",
            "metadata": metadata(name),
            "spec": {"defaults": {"node-port-range": range}, "nodeSelector": {"matchLabels": {"pool": pool}}},
        }));
    }
    let agent = Agent::start(&cluster, &[]);
    let (summary, _) = disagreement(&cluster, &agent, "component");
    assert!(summary.starts_with("Cilium uses the NodePort range 30000-30063,"), "{summary}");
    let told = agent.findings().to_string();
    assert!(told.contains("ConfigMap kube-system/cilium-config with CiliumNodeConfig edge"), "{told}");
}

#[track_caller]
fn define(cluster: &ControlPlane, (group, version): (&str, &str), (kind, plural): (&str, &str), scope: &str) {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    cluster.api().create(&json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": any}}],
        },
    }));
    until("kind of its own", || cluster.api().text(&format!("/apis/{group}/{version}/{plural}")));
}

#[test]
fn calico_with_ranges_of_its_own_disagrees_in_ipvs_mode() {
    let mut cluster = small_cluster();
    Role::of_chart().grant(&mut cluster);
    define(&cluster, ("crd.projectcalico.org", "v1"), ("FelixConfiguration", "felixconfigurations"), "Cluster");
    let felix = json!({
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "FelixConfiguration",
        "metadata": {"name": "default"},
        "spec": {"kubeNodePortRanges": ["30000:30063", 30100]},
    });
    cluster.api().create(&felix);
    let agent = Agent::start(&cluster, &["--proxy-mode", "ipvs"]);
    let (summary, _) = disagreement(&cluster, &agent, "component");
    assert!(summary.starts_with("Calico uses the NodePort range 30000-30063,30100"), "{summary}");
}

#[test]
fn ports_reserved_for_an_older_range_are_told_about_the_node_that_reserves_them() {
    enter_alone();
    let mut cluster = ControlPlane::with(&["--service-node-port-range=30000-34095"]);
    let node = cluster.api().create(&objects::node("n1", &PRIMARY));
    Role::of_chart().grant(&mut cluster);
    sysctl("net.ipv4.ip_local_reserved_ports", "30000-32767");
    let agent = Agent::start(&cluster, &[]);
    let (summary, event) = disagreement(&cluster, &agent, "reserved");
    assert!(summary.ends_with("the kernel may use NodePorts 32768-34095 for outgoing connections."), "{summary}");
    assert_eq!(event["regarding"]["uid"], node["metadata"]["uid"], "other nodes may reserve other ports");
    assert_eq!(event["related"]["uid"], node["metadata"]["uid"]);
}
