//! The guard of the chart with its bind hook, in a pod that a kubelet runs.

use std::time::Duration;

use serde_json::json;

use super::of_guard::events;
use crate::{
    chart::{self, INSTALL, prepare},
    guard::guard_of,
    parts::{Agent, WholeNode, all_events, http_get, objects, sysctl, until, until_within},
};

const PLACE: &str = "192.0.2.1:29518";
/// The effective capabilities: only BPF and NET_ADMIN.
const CAPABILITIES: &str = "CapEff:\t0000008000001000";

#[test]
fn below_a_kubelet_a_squatter_in_a_pod_is_an_event_of_the_guard_of_the_chart() {
    let node = WholeNode::start();
    sysctl("net.ipv4.ip_local_port_range", "30000 60999");
    node.namespace("shop");
    let service = node.cluster.api().create(&objects::selecting_service("web", &[objects::port(80, Some(30080))]));
    let person = node.person();
    prepare(&person);
    person.types(&format!("{INSTALL} --set guard.enabled=true --set guard.bind=report"));
    person.types("kubectl -n portreeve rollout status daemonset/portreeve-guard --timeout=2m");
    let lines =
        ["portreeve_guard_bind_hook{mode=\"report\"} 1", "portreeve_guard_reserved_ports{reason=\"node_port\"} 1"];
    until("the hook and the claim", || {
        let metrics = http_get(PLACE, "/metrics")?;
        lines.iter().all(|line| metrics.lines().any(|it| it.starts_with(line))).then_some(())
    });
    let pid = guard_of(&node).expect("the guard runs");
    let status = std::fs::read_to_string(node.machine.file(&format!("/proc/{pid}/status"))).expect("a process");
    assert!(status.lines().any(|line| line == CAPABILITIES), "{status}");

    let spec = json!({"nodeName": "n1", "hostNetwork": true});
    node.stranger("shop", "squatter", &["0.0.0.0:30080", "squatter"], &spec);
    let event = until("an Event", || events(&node.cluster, "default", "ReportBind").into_iter().next());
    assert_eq!((&event["reason"], &event["related"]["kind"]), (&json!("ListenerOnNodePort"), &json!("Pod")));
    assert_eq!(
        (&event["related"]["name"], &event["regarding"]["uid"]),
        (&json!("squatter"), &service["metadata"]["uid"])
    );
    let note = event["note"].as_str().expect("a note");
    assert!(note.contains("pod shop/squatter called bind for 0.0.0.0:30080/tcp"), "{note}");
    until_within(Duration::from_secs(120), "the agent's request", || {
        let metrics = http_get(chart::PLACE, "/metrics")?;
        let count = Agent::value(&metrics, r#"portreeve_events_total{result="deduplicated"}"#);
        count.filter(|count| *count >= 1.0)
    });
    let mut warnings = all_events(&node.cluster);
    warnings.retain(|it| it["regarding"]["uid"] == service["metadata"]["uid"] && it["type"] == "Warning");
    assert_eq!(warnings, [event], "the agent writes no second Event, and kube-proxy holds no NodePort");
}
