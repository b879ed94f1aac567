//! Two workloads with the same hostPort: the rule's findings about manifests, and the nodes that the real scheduler
//! chooses.

use serde_json::{Value, json};

use super::before;
use crate::{
    parts::{ControlPlane, Directory, cluster, controllers, enter_alone, objects, until},
    waiting::make_room,
};

const RULE: &str = "pod-waits-for-port/workloads";

/// A workload: its kind, the port of its pods, and further fields of the pods' spec.
type Made = (&'static str, Value, Value);

fn workload(name: &str, (kind, port, fields): &Made) -> Value {
    let labels = json!({"app": name});
    let mut pods = json!({"containers": [{"name": "it", "image": "it", "ports": [port]}]});
    for (field, value) in fields.as_object().expect("fields") {
        pods[field] = value.clone();
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pods}},
    })
}

/// Waits until the scheduler has placed or refused all pods of a workload. Returns whether the scheduler has refused a
/// pod.
#[track_caller]
fn pending(cluster: &ControlPlane, workload: &Value, pods: usize) -> bool {
    let path = format!("/api/v1/pods?labelSelector=app%3D{}", workload["metadata"]["name"].as_str().expect("a name"));
    let is_placed = |pod: &Value| pod["spec"]["nodeName"].is_string();
    let refused = |pod: &Value| {
        let condition = &pod["status"]["conditions"][0];
        condition["message"].as_str().is_some_and(|it| it.contains("didn't have free ports"))
    };
    until("decision of the scheduler", || {
        let list: Value = serde_json::from_str(&cluster.api().text(&path)?).expect("JSON");
        let found = list["items"].as_array().expect("items");
        let decided = found.len() == pods && found.iter().all(|pod| is_placed(pod) || refused(pod));
        decided.then(|| !found.iter().all(is_placed))
    })
}

#[test]
fn pods_that_the_scheduler_will_leave_pending_are_told_of_the_same_manifests_before() {
    enter_alone();
    let (cluster, directory) = (cluster(), Directory::new());
    make_room(&cluster);
    cluster.api().create(&objects::service_account());
    let _controllers = controllers::start(&cluster, &directory);
    let port = |number: u16, more: Value| {
        let mut port = json!({"containerPort": number, "hostPort": number});
        port.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        port
    };
    let host = |number: u16| port(number, json!({}));
    let every = |port: Value| ("DaemonSet", port, json!({}));
    let some = |port: Value| ("Deployment", port, json!({}));
    let only = |node: &str, port: Value| ("DaemonSet", port, json!({"nodeSelector": {"kubernetes.io/hostname": node}}));
    let at = |address: &str| json!({"hostIP": address});
    let in_network = ("DaemonSet", json!({"containerPort": 8004}), json!({"hostNetwork": true}));
    let pairs: [(&str, [Made; 2], bool); 10] = [
        ("on every node", [every(host(8001)), every(host(8001))], true),
        ("on every node and on some", [every(host(8002)), some(host(8002))], true),
        ("on some nodes", [some(host(8003)), some(host(8003))], false),
        ("in the host's network", [every(host(8004)), in_network], true),
        ("protocols", [every(host(8005)), every(port(8005, json!({"protocol": "UDP"})))], false),
        ("addresses", [every(port(8006, at("192.0.2.1"))), every(port(8006, at("192.0.2.2")))], false),
        ("one address and every one", [every(port(8007, at("192.0.2.1"))), every(host(8007))], true),
        ("on other nodes", [only("n1", host(8008)), only("n2", host(8008))], false),
        ("on every node and on one", [every(host(8009)), only("n1", host(8009))], true),
        ("numbers", [every(host(8010)), every(host(8011))], false),
    ];
    // Creates all workloads before the test waits for the scheduler, because scheduling takes time.
    let told = pairs.iter().enumerate().map(|(index, (what, pair, conflict))| {
        let pair = [0, 1].map(|which: usize| workload(&format!("it-{index}-{which}"), &pair[which]));
        let told = before(RULE, &pair);
        pair.iter().for_each(|it| drop(cluster.api().create(it)));
        (what, pair, told, conflict)
    });
    for (what, pair, told, conflict) in told.collect::<Vec<_>>() {
        let pods = |it: &Value| match it["spec"]["template"]["spec"]["nodeSelector"].is_null() {
            true if it["kind"] == "DaemonSet" => 2,
            _ => 1,
        };
        let waits = pair.each_ref().map(|it| pending(&cluster, it, pods(it)));
        assert_eq!((waits.contains(&true), told.len()), (*conflict, usize::from(*conflict)), "{what}: {told:#?}");
        let names = |name: &Value| told.iter().all(|it| it.to_string().contains(name.as_str().expect("a name")));
        assert!(pair.iter().all(|it| names(&it["metadata"]["name"])), "{what}: {told:#?}");
    }
}
