//! Pods that wait for a hostPort because the real scheduler has refused all nodes.

use serde_json::{Value, json};

use crate::{
    look::Look,
    parts::{Agent, ControlPlane, Directory, PRIMARY, cluster, controllers, enter_alone, events, objects, until},
};

const RULE: &str = "pod-waits-for-port/pod";

#[track_caller]
pub fn make_room(cluster: &ControlPlane) {
    let old = objects::node("n1", &PRIMARY);
    // Deletes the existing Node, because it has no capacity for pods.
    cluster.api().delete(&old);
    for mut node in [old, objects::node("n2", &["192.0.2.9"])] {
        node["metadata"]["labels"] = json!({"kubernetes.io/hostname": node["metadata"]["name"]});
        let room = json!({"pods": "20", "cpu": "4", "memory": "4Gi"});
        node["status"]["capacity"] = room.clone();
        node["status"]["allocatable"] = room;
        cluster.api().create(&node);
    }
}

/// The DaemonSet that ServiceLB makes for a Service: a pod on each node, with the port as hostPort.
fn service_lb(service: &str, port: u16) -> Value {
    let name = format!("svclb-{service}");
    let labels = json!({
        "app": name,
        "svccontroller.k3s.cattle.io/svcname": service,
        "svccontroller.k3s.cattle.io/svcnamespace": "default",
    });
    let container = json!({"name": "lb", "image": "lb", "ports": [{"containerPort": port, "hostPort": port}]});
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    })
}

#[test]
fn the_pod_that_the_scheduler_refuses_for_its_port_is_told_with_the_one_that_has_it() {
    enter_alone();
    let cluster = cluster();
    make_room(&cluster);
    let directory = Directory::new();
    let mut account = objects::service_account();
    account["metadata"]["namespace"] = json!("kube-system");
    cluster.api().create(&account);
    let _controllers = controllers::start(&cluster, &directory);

    let pods = |app: &str| -> Vec<Value> {
        let path = format!("/api/v1/pods?labelSelector=app%3Dsvclb-{app}");
        let list: Value = serde_json::from_str(&cluster.api().text(&path).expect("pods")).expect("JSON");
        list["items"].as_array().expect("items").clone()
    };
    let placed = |pod: &Value| pod["spec"]["nodeName"].is_string();
    let refused = |pod: &Value| pod["status"]["conditions"][0]["status"] == "False";
    let two = |app: &str, are: &dyn Fn(&Value) -> bool| {
        until(app, || Some(pods(app)).filter(|pods| pods.len() == 2 && pods.iter().all(are)))
    };
    for (service, port) in [("gate", 80), ("web", 80), ("other", 81)] {
        cluster.api().create(&objects::service(service, &[objects::port(port, None)]));
        cluster.api().create(&service_lb(service, port));
        if service == "web" {
            two(service, &refused)
        } else {
            two(service, &placed)
        };
    }

    let look = Look::check_with(&["--rule", RULE], &cluster.kubeconfig("observer"));
    let [finding] = &look.findings(RULE)[..] else { panic!("{:#}", look.json) };
    assert_eq!((&finding["subject"]["kind"], &finding["subject"]["name"]), (&json!("Service"), &json!("web")));
    let holder = pods("gate").into_iter().find(|pod| pod["spec"]["nodeName"] == "n1").expect("a pod here");
    let holder = format!("pod kube-system/{} on n1", holder["metadata"]["name"].as_str().expect("a name"));
    let evidence = finding["evidence"].to_string();
    assert!(evidence.contains(&holder) && evidence.contains("Service default/gate"), "{evidence}");
    assert!(look.unknown().iter().all(|it| it["source"] != "waiting-pods"), "{:#}", look.json);

    // This Pod may run on any node, so the finding is about the whole cluster, and only one agent reports it.
    let mut late = objects::host_port_pod("late", "TCP", 80, None);
    late["metadata"]["labels"] = json!({"app": "svclb-late"});
    late["spec"]["nodeName"].take();
    late["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    cluster.api().create(&late);
    until("late", || pods("late").iter().any(refused).then_some(()));
    let agents = [Agent::start(&cluster, &[]), Agent::of(&cluster, "n2", "127.0.0.1:29518", &[])];
    let found = |agent: &Agent| Agent::value(&agent.metrics(), r#"portreeve_events_total{result="deduplicated"}"#);
    until("both", || (agents.iter().filter_map(found).sum::<f64>() == 1.0).then_some(()));
    let told = || -> Vec<Value> {
        events(&cluster).into_iter().filter(|event| event["reason"] == "PodWaitsForPort").collect()
    };
    let told = until("Events", || Some(told()).filter(|told| told.len() == 3));
    let mut told: Vec<_> = told.iter().map(|it| (&it["regarding"]["name"], &it["related"]["name"])).collect();
    told.sort_by_key(|(about, node)| format!("{about} {node}"));
    assert_eq!(told, [(&json!("late"), &Value::Null), (&json!("web"), &json!("n1")), (&json!("web"), &json!("n2"))]);
}
