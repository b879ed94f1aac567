//! The queries of dashboards and alerts, in a real Prometheus that scrapes a real agent during an incident.

use std::net::TcpListener;

use serde_json::json;

use crate::{
    panels::{EMPTY_WHEN_NEW, EMPTY_WHEN_WELL, questions},
    parts::{Agent, ControlPlane, Prometheus, Proxy, Wired, cluster, objects, serve, until},
};

#[test]
fn every_panel_has_something_to_show_and_the_alert_names_the_victim() {
    let _wired = Wired::enter();
    let cluster = cluster();
    serve(&cluster, "web", Some(30080));
    let _proxy = Proxy::start(&cluster, "iptables", &json!({}));
    let _squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    let _agent = Agent::start(&cluster, &[]);
    let prometheus = Prometheus::start(&[("n1", "127.0.0.1:29517")]);

    let questions = questions("1m", "1h");
    assert!(questions.len() > 40, "all dashboards");
    for it in &questions {
        let data = || Some(prometheus.query(&it.query)).filter(|series| !series.is_empty());
        let is_empty = EMPTY_WHEN_WELL.iter().chain(&EMPTY_WHEN_NEW).any(|title| *title == it.title);
        // The node has no guard, so a query about the guard may return nothing.
        match is_empty || it.query.contains("portreeve_guard_") {
            true => drop(prometheus.query(&it.query)),
            false => drop(until(&format!("data for {}: {}", it.title, it.query), data)),
        }
    }

    let alert = until("alert", || prometheus.query(r#"ALERTS{alertname="PortreeveCriticalFinding"}"#).pop());
    let named =
        ["rule", "variant", "subject_kind", "subject_namespace", "subject_name", "port", "protocol", "severity"];
    let wanted = ["listener-on-node-port", "loses", "Service", "default", "web", "30080", "tcp", "critical"];
    assert_eq!(named.map(|label| alert["metric"][label].as_str().unwrap_or_default()), wanted);
    let alerts = prometheus.alerts();
    assert_eq!(alerts.len(), 19);
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
