//! From a listener on a NodePort to whoever is called at night: agent, Prometheus and Alertmanager as they are installed.

use std::{net::TcpListener, path::Path};

use serde_json::{Value, json};

use crate::parts::{
    Agent, Alertmanager, ControlPlane, PRIMARY, Person, Prometheus, Proxy, Role, Wired, objects, until,
};

/// Where the documentation of this installation is read.
const DOCUMENTATION: &str = "https://git.example/portreeve/";

/// The alerts as the chart delivers them, in a hurry: what they wait for takes a second where it would take a minute. What
/// they ask and say is left alone.
fn hurried_alerts(cluster: &ControlPlane) -> Value {
    let template = "helm template portreeve deploy/chart --set prometheusRule.enabled=true --set documentation=";
    let manifest = Person::of(cluster).types(&format!("{template}{DOCUMENTATION}"));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&manifest).expect("YAML");
    let rule = objects.into_iter().find(|object| object["kind"] == "PrometheusRule").expect("a PrometheusRule");
    let mut alerts = rule["spec"].clone();
    let groups = alerts["groups"].as_array_mut().expect("groups").iter_mut();
    for rule in groups.flat_map(|group| group["rules"].as_array_mut().expect("rules")) {
        for key in ["for", "keep_firing_for"] {
            if let Some(time) = rule[key].as_str() {
                rule[key] = json!(time.replace('m', "s").replace('h', "m"));
            }
        }
    }
    alerts
}

/// The labels of an alert in a message, or its annotations, by their names.
fn words<'a, const N: usize>(alert: &'a Value, kind: &str, names: [&str; N]) -> [&'a str; N] {
    names.map(|name| alert[kind][name].as_str().unwrap_or_else(|| panic!("no {name}: {alert:#}")))
}

#[test]
fn a_listener_on_a_node_port_is_one_call_that_says_it_all_and_its_end_is_another() {
    let _wired = Wired::enter();
    let mut cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    let service = cluster.api().create(&objects::service("web", &[objects::port(80, Some(30080))]));
    cluster.api().create(&objects::endpoint_slice(&service, Some((Wired::HERE[0], "n1")), "IPv4"));
    Role::of_chart().grant(&mut cluster);
    let _proxy = Proxy::start(&cluster, "iptables", &json!({}));
    let agent = Agent::start(&cluster, &[]);
    let alertmanager = Alertmanager::start();
    let agents = [("n1", "127.0.0.1:29517")];
    let prometheus = Prometheus::telling(Alertmanager::PLACE, &hurried_alerts(&cluster), &agents);

    let squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    let call = until("call", || alertmanager.told("critical").pop());
    assert_eq!(call["status"], "firing");
    assert_eq!(call["groupLabels"], json!({"rule": "listener-on-node-port"}));
    let [alert] = call["alerts"].as_array().expect("alerts").as_slice() else { panic!("more than one: {call:#}") };
    let labels = [
        "alertname",
        "severity",
        "rule",
        "subject_kind",
        "subject_namespace",
        "subject_name",
        "port",
        "protocol",
        "node",
    ];
    let wanted = [
        "PortreeveCriticalFinding",
        "critical",
        "listener-on-node-port",
        "Service",
        "default",
        "web",
        "30080",
        "tcp",
        "n1",
    ];
    assert_eq!(words(alert, "labels", labels), wanted);
    let [summary, description, runbook] = words(alert, "annotations", ["summary", "description", "runbook_url"]);
    assert_eq!(summary, "listener-on-node-port is critical for Service default/web");
    for part in [
        "Service default/web, port 30080/tcp, on node n1: ",
        "kubectl get events -A --field-selector reportingComponent=portreeve.",
        "https://git.example/portreeve/docs/rules/listener-on-node-port.md",
    ] {
        assert!(description.contains(part), "{part}: {description}");
    }
    let page = runbook.strip_prefix(DOCUMENTATION).expect("an address of the documentation");
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(page).is_file(), "{runbook}");

    drop(squatter);
    until("end of the finding", || agent.found("listener-on-node-port").is_empty().then_some(()));
    let last = until("second call", || alertmanager.told("critical").into_iter().nth(1));
    assert_eq!((&last["status"], &last["alerts"][0]["labels"]), (&json!("resolved"), &alert["labels"]));
    assert!(prometheus.query(r#"ALERTS{severity="critical"}"#).is_empty());
    assert_eq!(alertmanager.told("critical").len(), 2, "once each");
}
