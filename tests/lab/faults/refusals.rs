//! The API server works, but refuses the agent's requests: the agent has no rights for some time.

use serde_json::{Value, json};

use super::{FOUND, Node, RULE, errors, serve, squat, until_found, until_told, until_young};
use crate::parts::{Api, Relay, events, until};

/// The cluster-wide role bindings of `observer`, without the fields that the API server refuses in a new object.
#[track_caller]
fn bindings(node: &Node) -> Vec<Value> {
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let list: Value = serde_json::from_str(&node.cluster.api().text(path).expect("a list")).expect("JSON");
    let of_observer = |binding: &&Value| binding["subjects"][0]["name"] == "observer";
    let bare = |binding: &Value| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": binding["metadata"]["name"]},
            "roleRef": binding["roleRef"],
            "subjects": binding["subjects"],
        })
    };
    list["items"].as_array().expect("items").iter().filter(of_observer).map(bare).collect()
}

/// Fault (API server): the agent's rights are withdrawn, and given back
/// Does: sees the end of a listener
/// Right again: once it may read again, its facts are current; no restart
/// Lost: Events that were refused
#[test]
fn rights_that_are_withdrawn_and_given_back_change_no_finding_and_need_no_restart() {
    let node = Node::enter();
    let relay = Relay::start();
    serve(&node.cluster, "late", 30081);
    let agent = node.agent(&["--apiserver", Relay::URL]);

    let late = squat(30081);
    until_found(&agent, &[30080, 30081]);
    until_told(&node.cluster, &[("web", FOUND), ("late", FOUND)]);
    let bindings = bindings(&node);
    assert!(!bindings.is_empty());
    bindings.iter().for_each(|binding| node.cluster.api().delete(binding));
    // An open watch continues, even if the API server already refuses new requests. So the test cuts the connections,
    // and each watch begins again.
    let observer = Api::of(&node.cluster.kubeconfig("observer")).expect("a kubeconfig");
    until("refusal in force", || observer.text("/api/v1/services").is_none().then_some(()));
    relay.cut();
    relay.mend();
    until("403", || (errors(&agent, "403") >= 2.0).then_some(()));
    assert_eq!(agent.found(RULE), [30080, 30081], "a refusal is no news");
    drop(late);
    until_found(&agent, &[30080]);
    for binding in &bindings {
        node.cluster.api().create(binding);
    }
    until_young(&agent);
    serve(&node.cluster, "new", 30082);
    let _new = squat(30082);
    until_found(&agent, &[30080, 30082]);
    until("Event", || {
        let told = events(&node.cluster);
        told.iter().any(|it| it["regarding"]["name"] == "new").then_some(())
    });
    assert!(agent.is_well());
}
