//! A listener on a NodePort becomes a finding of the agent, an alert in Prometheus, and a message of Alertmanager.

use std::{net::TcpListener, path::Path};

use serde_json::{Value, json};

use crate::parts::{
    Agent, Alertmanager, ControlPlane, Copies, Person, Prometheus, Proxy, Wired, cluster, http_get, serve, sysctl,
    until,
};

const DOCUMENTATION: &str = "https://docs.example/portreeve/";

/// The alerts of the chart with shorter waits: each minute becomes a second. Expressions and texts are unchanged.
fn hurried_alerts(cluster: &ControlPlane) -> Value {
    let template = "helm template portreeve deploy/chart --set image.repository=registry.example/portreeve \
                    --set prometheusRule.enabled=true --set documentation=";
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

fn words<'a, const N: usize>(alert: &'a Value, kind: &str, names: [&str; N]) -> [&'a str; N] {
    names.map(|name| alert[kind][name].as_str().unwrap_or_else(|| panic!("no {name}: {alert:#}")))
}

/// A node with a Service. No process listens on the Service's NodePort.
struct Well {
    agent: Agent,
    proxy: Proxy,
    cluster: ControlPlane,
    wired: Wired,
}

impl Well {
    #[track_caller]
    fn enter() -> Self {
        let wired = Wired::enter();
        let cluster = cluster();
        serve(&cluster, "web", Some(30080));
        let proxy = Proxy::start(&cluster, "iptables", &json!({}));
        let agent = Agent::start(&cluster, &[]);
        Self { agent, proxy, cluster, wired }
    }
}

#[test]
fn a_listener_on_a_node_port_is_one_call_that_says_it_all_and_its_end_is_another() {
    let Well { agent, proxy: _proxy, cluster, wired: _wired } = Well::enter();
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
        "variant",
        "subject_kind",
        "subject_namespace",
        "subject_name",
        "port",
        "protocol",
    ];
    let wanted = [
        "PortreeveCriticalFinding",
        "critical",
        "listener-on-node-port",
        "loses",
        "Service",
        "default",
        "web",
        "30080",
        "tcp",
    ];
    assert_eq!(words(alert, "labels", labels), wanted);
    let [summary, description, runbook] = words(alert, "annotations", ["summary", "description", "runbook_url"]);
    assert_eq!(summary, "listener-on-node-port/loses is critical for Service default/web on 1 node");
    for part in [
        "Service default/web, port 30080/tcp, on 1 of 1 nodes (n1): ",
        "kubectl get events -A --field-selector reportingComponent=portreeve.",
        "https://docs.example/portreeve/rules/listener-on-node-port.html",
    ] {
        assert!(description.contains(part), "{part}: {description}");
    }
    let page = runbook.strip_prefix(DOCUMENTATION).expect("an address of the documentation");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page).with_extension("md");
    assert!(page.is_file(), "{runbook}");

    drop(squatter);
    until("end of the finding", || agent.found("listener-on-node-port/loses").is_empty().then_some(()));
    let last = until("second call", || alertmanager.told("critical").into_iter().nth(1));
    assert_eq!((&last["status"], &last["alerts"][0]["labels"]), (&json!("resolved"), &alert["labels"]));
    assert!(prometheus.query(r#"ALERTS{severity="critical"}"#).is_empty());
    assert_eq!(alertmanager.told("critical").len(), 2, "once each");
}

#[test]
fn one_mistake_on_five_hundred_nodes_is_one_call_until_the_last_of_them_is_well() {
    let Well { agent, proxy: _proxy, cluster, wired: _wired } = Well::enter();
    let told = || http_get("127.0.0.1:29517", "/metrics").expect("metrics");
    let well = told();
    let _squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    sysctl("net.ipv4.ip_local_port_range", "30000 60999");
    let sick = until("both in the metrics", || {
        Some(told()).filter(|text| text.matches("portreeve_finding_info{").count() >= 2)
    });
    let rules = hurried_alerts(&cluster);
    drop((agent, cluster));

    let copies = Copies::start("n1", well.clone());
    let alertmanager = Alertmanager::start();
    let nodes: Vec<String> = (1..=500).map(|number| format!("n{number:03}")).collect();
    let prometheus = Prometheus::of_copies(Alertmanager::PLACE, &rules, &nodes);
    copies.say(&nodes[6..7], &sick);
    let first = until("call", || alertmanager.told("critical").pop());
    let [alert] = first["alerts"].as_array().expect("alerts").as_slice() else { panic!("more than one: {first:#}") };
    let [description] = words(alert, "annotations", ["description"]);
    assert!(
        description.starts_with("Service default/web, port 30080/tcp, on 1 of 500 nodes (n007): "),
        "{description}"
    );

    copies.say(&nodes, &sick);
    let critical = r#"ALERTS{severity="critical", alertstate="firing"}"#;
    let on_all =
        "Service default/web, port 30080/tcp, on 500 of 500 nodes (n001, n002, n003, n004, n005 and 495 more): ";
    until("all nodes", || prometheus.firing("critical").into_iter().find(|it| it.starts_with(on_all)));
    assert_eq!(prometheus.query(critical).len(), 1);
    let warning = "500 of 500 nodes (n001, n002, n003, n004, n005 and 495 more): ";
    until("warning", || prometheus.firing("warning").into_iter().find(|it| it.starts_with(warning)));

    copies.say(&nodes[1..], &well);
    let on_one = "Service default/web, port 30080/tcp, on 1 of 500 nodes (n001): ";
    until("one node", || prometheus.firing("critical").into_iter().find(|it| it.starts_with(on_one)));
    assert_eq!(alertmanager.told("critical").len(), 1, "499 nodes more and 499 nodes fewer are nobody's call");

    copies.say(&nodes, &well);
    let last = until("second call", || alertmanager.told("critical").into_iter().nth(1));
    assert_eq!((&last["status"], &last["alerts"][0]["labels"]), (&json!("resolved"), &alert["labels"]));
    // The simulated agents do not scan, so an alert without the label `rule` fires. The test ignores this alert.
    let calls = |severity: &str| {
        let calls = alertmanager.told(severity).into_iter();
        calls.filter(|call| call["groupLabels"]["rule"].is_string()).collect::<Vec<Value>>()
    };
    until("end of the warning", || calls("warning").into_iter().find(|call| call["status"] == "resolved"));
    for severity in ["critical", "warning"] {
        let calls = calls(severity);
        let said: Vec<_> = calls.iter().map(|it| (&it["status"], it["alerts"].as_array().map(Vec::len))).collect();
        assert_eq!(said, [(&json!("firing"), Some(1)), (&json!("resolved"), Some(1))], "{severity}");
    }
}
