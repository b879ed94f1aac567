//! Objects on which an agent depends are deleted and made again.

use std::slice;

use serde_json::{Value, json};

use super::{FOUND, MODE, Node, RULE, serve, squat, until_found, until_told};
use crate::parts::{Agent, PRIMARY, events, objects, until};

#[track_caller]
fn related(node: &Node, service: &str) -> Vec<Value> {
    let told = events(&node.cluster).into_iter().filter(|it| it["regarding"]["name"] == service);
    told.map(|it| it["related"]["uid"].clone()).collect()
}

/// An agent reads Nodes at its start and every ten minutes. So the test starts an agent after each change.
///
/// Fault (operator): the Node object is deleted, and an agent starts before a new Node object exists
/// Does: has the same findings, and finds the Event of the earlier agent
/// Right again: an agent that starts then writes Events about the new uid; an agent that runs does so after it reads
/// Nodes again
/// Lost: nothing
#[test]
fn an_agent_that_starts_without_its_node_object_finds_the_same_and_tells_of_a_new_one() {
    let node = Node::enter();
    let agent = node.agent(&[]);
    let nodes = |agent: &Agent| {
        let nodes = agent.snapshot()["cluster"]["nodes"]["seen"].clone();
        let uids = nodes.as_array().expect("Nodes were read").iter().map(|it| it["uid"].clone());
        uids.collect::<Vec<_>>()
    };
    let [old] = <[Value; 1]>::try_from(nodes(&agent)).expect("one Node");
    assert_eq!(related(&node, "web"), slice::from_ref(&old));

    node.cluster.api().delete(&objects::node("n1", &PRIMARY));
    drop(agent);
    let agent = Agent::start(&node.cluster, &MODE);
    until_found(&agent, &[30080]);
    assert_eq!(nodes(&agent), [] as [Value; 0], "it has read that there is none");
    until("answer about the Event", || {
        let told = Agent::value(&agent.metrics(), "portreeve_events_total{result=\"deduplicated\"}");
        (told == Some(1.0)).then_some(())
    });
    assert_eq!(related(&node, "web"), slice::from_ref(&old), "nothing was news");

    let new = node.cluster.api().create(&objects::node("n1", &PRIMARY))["metadata"]["uid"].clone();
    assert_ne!(new, old);
    drop(agent);
    let agent = node.agent(&[]);
    assert_eq!(nodes(&agent), slice::from_ref(&new));
    serve(&node.cluster, "late", 30081);
    let _late = squat(30081);
    until_found(&agent, &[30080, 30081]);
    until_told(&node.cluster, &[("web", FOUND), ("late", FOUND)]);
    assert_eq!((related(&node, "web"), related(&node, "late")), (vec![old], vec![new]));
    assert!(agent.is_well());
}

/// Fault (operator): the namespace of a Service is deleted
/// Does: clears the findings about the Service
/// Right again: with the scan that the change starts
/// Lost: the Events about the Service, which are deleted with the namespace
#[test]
fn a_namespace_that_is_deleted_takes_nothing_else_along() {
    let node = Node::enter();
    let agent = node.agent(&[]);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}});
    node.cluster.api().create(&namespace);
    let mut service = objects::service("theirs", &[objects::port(80, Some(30081))]);
    service["metadata"]["namespace"] = json!("tenant");
    node.cluster.api().create(&service);
    let _theirs = squat(30081);
    until_found(&agent, &[30080, 30081]);
    // This cluster has no namespace controller, so the test deletes the Service itself.
    node.cluster.api().delete(&namespace);
    until("refusal", || node.cluster.api().try_create(&service).err());
    node.cluster.api().delete(&service);
    until_found(&agent, &[30080]);
    let document = agent.findings_after(2);
    assert_eq!(agent.found(RULE), [30080], "{document:#}");
    assert!(agent.is_well());
}
