//! The Node condition that an agent writes, with a real API server and the role of the chart.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::{
    parts::{Agent, Api, Audit, ControlPlane, PRIMARY, Person, Role, enter_alone, kubectl, objects, reasons, until},
    said,
};

const STATUS: &str = "/api/v1/nodes/n1/status?fieldManager=portreeve";
const MERGE: &str = "application/strategic-merge-patch+json";
const WITH_CONDITION: [&str; 3] = ["--proxy-mode", "iptables", "--node-condition"];
/// The command in docs/events.md that removes the condition.
const REMOVE: &str = r#"kubectl patch node NODE --subresource=status -p '{"status":{"conditions":[{"type":"PortConflict","$patch":"delete"}]}}'"#;
const DOCUMENT: &str = include_str!("../../docs/events.md");

/// A cluster with a Service and the Node `n1`, which has two conditions of its kubelet. The agent has the rights of
/// `role`.
fn node(flags: &[String], role: &Role) -> ControlPlane {
    enter_alone();
    let mut cluster = ControlPlane::with(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let condition = |kind: &str, status: &str| {
        let at = "2026-11-21T12:00:00Z";
        json!({
            "type": kind, "status": status, "reason": "KubeletSays", "message": "as the kubelet says",
            "lastHeartbeatTime": at, "lastTransitionTime": at,
        })
    };
    let mut node = objects::node("n1", &PRIMARY);
    node["status"]["conditions"] = json!([condition("MemoryPressure", "False"), condition("Ready", "True")]);
    cluster.api().create(&node);
    let service = cluster.api().create(&objects::service("web", &[objects::port(80, Some(30080))]));
    cluster.api().create(&objects::endpoint_slice(&service, Some(("10.244.0.5", "n2")), "IPv4"));
    role.grant(&mut cluster);
    cluster
}

fn read(cluster: &ControlPlane) -> Value {
    serde_json::from_str(&cluster.api().text("/api/v1/nodes/n1").expect("a Node")).expect("JSON")
}

fn conditions(node: &Value) -> Vec<Value> {
    let mut all = node["status"]["conditions"].as_array().expect("a list").clone();
    all.sort_by_key(|condition| condition["type"].to_string());
    all
}

fn others(node: &Value) -> Vec<Value> {
    conditions(node).into_iter().filter(|condition| condition["type"] != "PortConflict").collect()
}

fn condition(cluster: &ControlPlane) -> Option<Value> {
    conditions(&read(cluster)).into_iter().find(|condition| condition["type"] == "PortConflict")
}

#[track_caller]
fn until_is(cluster: &ControlPlane, reason: &str) -> Value {
    until(reason, || condition(cluster).filter(|condition| condition["reason"] == reason))
}

#[test]
fn with_the_right_of_the_chart_a_conflict_is_a_condition_and_those_of_the_kubelet_stay() {
    let audit = Audit::new();
    let cluster = &node(&audit.flags(), &Role::of_chart_with("rbac.nodeCondition=true"));
    let before = read(cluster);
    let agent = Agent::start(cluster, &WITH_CONDITION);
    assert_eq!(until_is(cluster, "NoPortConflict")["status"], "False");
    let squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    let found = until_is(cluster, "PortsInConflict");
    assert_eq!((&found["status"], &found["message"]), (&json!("True"), &json!("listener-on-node-port/loses: 1")));

    let described = kubectl(cluster, &["describe", "node", "n1"]);
    let line = described.lines().find(|line| line.trim_start().starts_with("PortConflict")).expect("a line");
    assert!(line.contains("PortsInConflict") && line.trim_end().ends_with("listener-on-node-port/loses: 1"), "{line}");
    let now = read(cluster);
    assert_eq!(others(&now), others(&before));
    for part in ["/spec", "/metadata/labels", "/metadata/annotations", "/status/addresses"] {
        assert_eq!(now.pointer(part), before.pointer(part), "{part}");
    }

    // The killed agent writes no `AgentStopped`. The next agent finds the same problem, so the time of the last
    // transition does not change.
    drop(agent);
    let agent = Agent::start(cluster, &WITH_CONDITION);
    let again = until("next scan", || {
        condition(cluster).filter(|it| it["lastHeartbeatTime"].as_str() > found["lastHeartbeatTime"].as_str())
    });
    assert_eq!(again["lastTransitionTime"], found["lastTransitionTime"]);
    assert_eq!(again["status"], "True");
    agent.stop();
    let stopped = condition(cluster).expect("a condition");
    assert_eq!((&stopped["status"], &stopped["reason"]), (&json!("Unknown"), &json!("AgentStopped")));
    drop(squatter);

    assert!(DOCUMENT.contains(REMOVE));
    // `types` runs no shell, so the test removes the quotes. The quoted text has no spaces.
    Person::of(cluster).types(&REMOVE.replace("NODE", "n1").replace('\'', ""));
    let left = read(cluster);
    assert_eq!(conditions(&left), others(&before));
    let asked = audit.of("observer");
    let refused: Vec<_> = asked.iter().filter(|it| matches!(it.code, 401 | 403)).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(asked.iter().all(|it| !it.uri.starts_with("/api/v1/nodes/") || it.verb == "patch" && it.uri == STATUS));
}

#[test]
fn the_right_to_a_condition_is_the_right_to_the_status_and_labels_of_every_node() {
    let cluster = &node(&[], &Role::of_chart_with("rbac.nodeCondition=true"));
    cluster.api().create(&objects::node("n2", &["192.0.2.2"]));
    let thief = Api::unrepeated(&cluster.kubeconfig("observer"));
    let patch = json!({
        "metadata": {"labels": {"stolen": "yes"}, "annotations": {"stolen": "yes"}},
        "spec": {"unschedulable": true, "taints": [{"key": "stolen", "effect": "NoExecute"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "False"}],
            "addresses": [{"type": "InternalIP", "address": "203.0.113.66"}],
            "capacity": {"cpu": "0"},
        },
    });
    let changed = thief.send("PATCH", "/api/v1/nodes/n2/status", MERGE, &patch).expect("RBAC cannot limit it");
    for part in ["/metadata/labels/stolen", "/metadata/annotations/stolen"] {
        assert_eq!(changed.pointer(part), Some(&json!("yes")), "{part}");
    }
    assert_eq!(changed["spec"]["unschedulable"], Value::Null, "the spec is not a part of the status");
    assert_eq!(conditions(&changed)[0]["status"], "False");
    assert!(changed["status"]["addresses"].to_string().contains("203.0.113.66"), "{changed:#}");
    assert_eq!(changed["status"]["capacity"]["cpu"], "0");
    let whole = thief.send("PATCH", "/api/v1/nodes/n2", MERGE, &patch).expect_err("the right is for the status only");
    assert!(whole.contains("cannot patch resource"), "{whole}");
}

#[test]
fn without_the_right_the_log_has_one_line_and_the_agent_still_reports() {
    let cluster = &node(&[], &Role::of_chart());
    let agent = Agent::start(cluster, &WITH_CONDITION);
    let _squatter = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    until("Event", || (reasons(cluster) == ["ListenerOnNodePort"]).then_some(()));
    let failed = || Agent::value(&agent.metrics(), r#"portreeve_node_condition_writes_total{result="failed"}"#);
    until("second refusal", || failed().filter(|count| *count >= 2.0));
    let log = agent.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("the Node condition")).collect();
    let [line] = lines[..] else { panic!("{log}") };
    assert!(line.contains("403") && line.contains(r#"cannot patch resource "nodes/status""#), "{line}");
    assert_eq!(condition(cluster), None);
}

#[test]
fn the_fake_of_other_tests_patches_a_status_as_the_server_does() {
    let cluster = &node(&[], &Role::of_chart());
    let mut fake = read(cluster);
    let at = |minute: u8| format!("2026-11-21T12:{minute:02}:00Z");
    let whole = json!({
        "type": "PortConflict", "status": "True", "reason": "PortsInConflict", "message": "one: 1",
        "lastHeartbeatTime": at(1), "lastTransitionTime": at(1),
    });
    let patch = |condition: &Value| json!({"status": {"conditions": [condition]}});
    let part = json!({"type": "PortConflict", "message": "two: 2", "lastHeartbeatTime": at(2)});
    for patch in [json!({}), patch(&whole), patch(&whole), patch(&part), json!({})] {
        let version = read(cluster)["metadata"]["resourceVersion"].clone();
        let answer = cluster.api().send("PATCH", STATUS, MERGE, &patch).expect("an admin may patch it");
        let same = conditions(&answer) == conditions(&fake);
        said::patch_status(&mut fake, &patch);
        assert_eq!(conditions(&answer), conditions(&fake));
        assert!(!same || answer["metadata"]["resourceVersion"] == version, "what changes nothing is no write");
    }
}
