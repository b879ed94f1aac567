//! `portreeve agent` with a real API server and a real kube-proxy, and with the rights of the chart's role only.

use std::net::TcpListener;

use serde_json::json;

use crate::{
    parts::{Agent, ControlPlane, PRIMARY, Proxy, Wired, events, objects, reasons, until},
    server::grant,
};

#[test]
fn a_squatter_is_an_event_on_its_service_once_and_one_more_when_it_is_gone() {
    let _wired = Wired::enter();
    let mut cluster = ControlPlane::start();
    let node = cluster.api().create(&objects::node("n1", &PRIMARY));
    let service = cluster.api().create(&objects::service("web", &[objects::port(80, Some(30080))]));
    cluster.api().create(&objects::endpoint_slice(&service, Some((Wired::HERE[0], "n1")), "IPv4"));
    grant(
        &mut cluster,
        &[json!({"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]})],
    );
    let _proxy = Proxy::start(&cluster, "iptables", &json!({}));
    let agent = Agent::start(&cluster, &[]);
    assert!(events(&cluster).is_empty(), "nothing is wrong yet");

    let squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    until("Event", || (reasons(&cluster) == ["ListenerOnNodePort"]).then_some(()));
    let event = &events(&cluster)[0];
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["regarding"]["kind"], "Service");
    assert_eq!(event["regarding"]["uid"], service["metadata"]["uid"], "`kubectl describe` finds it by the real uid");
    assert_eq!(event["related"]["uid"], node["metadata"]["uid"]);
    assert_eq!(event["reportingInstance"], "portreeve-n1");
    let metrics = agent.metrics();
    assert!(metrics.contains(r#"portreeve_findings{rule="listener-on-node-port",severity="critical"} 1"#), "{metrics}");

    drop(agent);
    let agent = Agent::start(&cluster, &[]);
    until("finding again", || {
        agent.metrics().contains(r#"portreeve_events_total{result="deduplicated"} 1"#).then_some(())
    });
    assert_eq!(reasons(&cluster), ["ListenerOnNodePort"], "a restart writes nothing new");

    drop(squatter);
    until("resolution", || (reasons(&cluster) == ["ListenerOnNodePort", "ListenerOnNodePortResolved"]).then_some(()));
    assert_eq!(events(&cluster)[1]["type"], "Normal");
    drop(agent);
}
