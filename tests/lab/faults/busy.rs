//! The API server works, but its API Priority and Fairness gives the agent no seat (a place for a running request).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::{Value, json};

use super::{FOUND, Node, RULE, errors, serve, squat, until_found, until_told, until_young};
use crate::parts::{Api, ControlPlane, Relay, until};

const LEVEL: &str = "few-seats";
/// Flags that limit the server's seats, so that a priority level with one share has one seat.
const SEATS: [&str; 2] = ["--max-requests-inflight=40", "--max-mutating-requests-inflight=20"];
const CROWD: usize = 6;

/// Users who occupy all seats of the agent's priority level.
struct Crowd {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    #[track_caller]
    fn of_nobody(cluster: &ControlPlane) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ask = || {
            let (kubeconfig, is_over) = (cluster.kubeconfig("nobody"), Arc::clone(&is_over));
            thread::spawn(move || {
                let api = Api::unrepeated(&kubeconfig);
                while !is_over.load(Ordering::Relaxed) {
                    // The server refuses a request at once. The pause after a refusal leaves processor time for other
                    // programs.
                    if api.answer("/api/v1/configmaps").len() < 10_000 {
                        thread::sleep(Duration::from_millis(2));
                    }
                }
            })
        };
        let threads = (0..CROWD).map(|_| ask()).collect();
        Self { is_over, threads }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("a crowd that does not panic"));
    }
}

/// A priority level with one share, and its users. If no seat is free, the priority level refuses a request at once.
fn few_seats() -> [Value; 2] {
    let version = "flowcontrol.apiserver.k8s.io/v1";
    let subjects: Vec<Value> =
        ["observer", "nobody"].iter().map(|name| json!({"kind": "User", "user": {"name": name}})).collect();
    let everything = json!({
        "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"],
    });
    [
        json!({
            "apiVersion": version,
            "kind": "PriorityLevelConfiguration",
            "metadata": {"name": LEVEL},
            "spec": {"type": "Limited", "limited": {
                "nominalConcurrencyShares": 1,
                "lendablePercent": 0,
                "borrowingLimitPercent": 0,
                "limitResponse": {"type": "Reject"},
            }},
        }),
        json!({
            "apiVersion": version,
            "kind": "FlowSchema",
            "metadata": {"name": LEVEL},
            "spec": {
                "priorityLevelConfiguration": {"name": LEVEL},
                "matchingPrecedence": 100,
                "rules": [{"subjects": subjects, "resourceRules": [everything]}],
            },
        }),
    ]
}

/// Allows the user `nobody` to list ConfigMaps, and makes ConfigMaps that take long to list.
#[track_caller]
fn prepare(cluster: &ControlPlane) {
    let rbac = "rbac.authorization.k8s.io/v1";
    cluster.api().create(&json!({
        "apiVersion": rbac,
        "kind": "ClusterRole",
        "metadata": {"name": "crowd"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
    }));
    cluster.api().create(&json!({
        "apiVersion": rbac,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "crowd"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "crowd"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "nobody"}],
    }));
    for number in 0..12 {
        cluster.api().create(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": format!("long-{number}"), "namespace": "default"},
            "data": {"text": "x".repeat(900_000)},
        }));
    }
    let crowd = Api::of(&cluster.kubeconfig("nobody")).expect("a kubeconfig");
    until("role in force", || crowd.text("/api/v1/configmaps?limit=1"));
}

#[track_caller]
fn without_a_seat(cluster: &ControlPlane) -> f64 {
    let metrics = cluster.api().text("/metrics").expect("metrics");
    let is_it =
        |line: &&str| line.starts_with("apiserver_flowcontrol_rejected_requests_total{") && line.contains(LEVEL);
    let counts = metrics.lines().filter(is_it).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    counts.sum()
}

/// Fault (API server): other clients have all seats of the server's API Priority and Fairness (429)
/// Does: finds new listeners
/// Right again: once there is a seat, its facts are current and Events are written; no restart
/// Lost: nothing
#[test]
fn without_a_seat_at_the_server_listeners_are_found_and_told_once_there_is_one() {
    let node = Node::with(&SEATS);
    let relay = Relay::start();
    serve(&node.cluster, "late", 30081);
    prepare(&node.cluster);
    let agent = node.agent(&["--apiserver", Relay::URL]);
    for object in few_seats() {
        node.cluster.api().create(&object);
    }
    let crowd = Crowd::of_nobody(&node.cluster);
    until("refusal in force", || (without_a_seat(&node.cluster) > 10.0).then_some(()));

    // An open watch needs no seat. So the test cuts the connections, and each watch must begin again.
    relay.cut();
    relay.mend();
    until("429", || (errors(&agent, "429") >= 2.0).then_some(()));
    assert_eq!(agent.found(RULE), [30080], "a refusal is no news");
    let _late = squat(30081);
    until_found(&agent, &[30080, 30081]);
    assert!(agent.is_well());
    drop(crowd);
    until_young(&agent);
    until_told(&node.cluster, &[("web", FOUND), ("late", FOUND)]);
    serve(&node.cluster, "new", 30082);
    let _new = squat(30082);
    until_found(&agent, &[30080, 30081, 30082]);
    assert_eq!(errors(&agent, "403"), 0.0);
    assert!(agent.is_well());
}
