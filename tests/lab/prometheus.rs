//! What people see: the dashboards' queries and the alerts, in a real Prometheus that scrapes a real agent during an incident.

use std::{fs, net::TcpListener, path::Path};

use serde_json::{Value, json};

use crate::parts::{Agent, ControlPlane, Prometheus, Proxy, Wired, cluster, objects, serve, until};

/// Panels that are empty while nothing fails, and say so.
const EMPTY_WHEN_WELL: [&str; 4] =
    ["Panics", "Failures to read the cluster", "Sources that could not be read", "Verdicts that could not be given"];

/// The title and every query of each panel, as Grafana would send them.
fn queries() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards");
    let panels = ["fleet.json", "node.json", "agent.json"].map(|name| {
        let text = fs::read_to_string(folder.join(name)).expect("a dashboard");
        let mut dashboard: Value = serde_json::from_str(&text).expect("JSON");
        dashboard["panels"].take()
    });
    let panels = panels.iter().flat_map(|panels| panels.as_array().expect("panels"));
    let queries = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(|target| (panel["title"].clone(), target["expr"].clone()))
    });
    let variables = [("$__rate_interval", "1m"), ("$__range", "1h"), ("$cluster", ".*"), ("$node", "n1")];
    let word = |value: Value| value.as_str().expect("a word").to_owned();
    let set = |query: Value| variables.iter().fold(word(query), |query, (name, value)| query.replace(name, value));
    queries.map(|(title, query)| (word(title), set(query))).collect()
}

#[test]
fn every_panel_has_something_to_show_and_the_alert_names_the_victim() {
    let _wired = Wired::enter();
    let cluster = cluster();
    serve(&cluster, "web", Some(30080));
    let _proxy = Proxy::start(&cluster, "iptables", &json!({}));
    let _squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    let _agent = Agent::start(&cluster, &[]);
    let prometheus = Prometheus::start("127.0.0.1:29517");

    let queries = queries();
    assert!(queries.len() > 40, "three dashboards");
    for (title, query) in queries.iter().filter(|(title, _)| !EMPTY_WHEN_WELL.contains(&title.as_str())) {
        until(&format!("data for {title}: {query}"), || (!prometheus.query(query).is_empty()).then_some(()));
    }
    for (_, query) in queries.iter().filter(|(title, _)| EMPTY_WHEN_WELL.contains(&title.as_str())) {
        prometheus.query(query);
    }

    let alert = until("alert", || prometheus.query(r#"ALERTS{alertname="PortreeveCriticalFinding"}"#).pop());
    let named = ["rule", "node", "subject_kind", "subject_namespace", "subject_name", "port", "protocol", "severity"];
    let wanted = ["listener-on-node-port", "n1", "Service", "default", "web", "30080", "tcp", "critical"];
    assert_eq!(named.map(|label| alert["metric"][label].as_str().unwrap_or_default()), wanted);
    let alerts = prometheus.alerts();
    assert_eq!(alerts.len(), 16);
    assert!(alerts.iter().all(|(_, health)| health == "ok"), "{alerts:?}");
}

#[test]
fn the_api_server_tells_a_full_range_as_the_alerts_without_an_agent_read_it() {
    let _wired = Wired::enter();
    let cluster = ControlPlane::with(&["--service-node-port-range=30000-30001"]);
    let services = ["a", "b", "c"].map(|name| objects::service(name, &[objects::port(80, None)]));
    let [_, _, refused] = services.map(|service| cluster.api().try_create(&service));
    assert!(refused.is_err_and(|refusal| refusal.contains("range is full")));
    let metrics = cluster.api().text("/metrics").expect("metrics");
    for line in ["allocated_ports 2", "available_ports 0", r#"allocation_errors_total{scope="dynamic"} 1"#] {
        let line = format!("\nkube_apiserver_nodeport_allocator_{line}\n");
        assert!(metrics.contains(&line), "{line}");
    }
}
