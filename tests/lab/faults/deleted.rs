//! What an agent depends on in the cluster is deleted, and made anew.

use serde_json::json;

use super::{FOUND, Node, RULE, until_found, until_told};
use crate::parts::{PRIMARY, objects, until};

/// Fault (operator): the Node object is deleted, and made anew with another uid
/// Does: finds what it found
/// Right again: all the time; the new uid with the next reading of the Node
/// Lost: nothing
///
/// Fault (operator): the namespace of a Service is deleted with everything in it
/// Does: clears what was found about it
/// Right again: with the look that the change brings on
/// Lost: its Events, which go with the namespace
#[test]
fn a_node_and_a_namespace_that_are_deleted_take_nothing_else_along() {
    let node = Node::enter();
    let agent = node.agent(&[]);
    node.cluster.api().delete(&objects::node("n1", &PRIMARY));
    let document = agent.findings_after(3);
    assert_eq!(agent.found(RULE), [30080], "{document:#}");
    node.cluster.api().create(&objects::node("n1", &PRIMARY));
    agent.findings_after(3);
    assert_eq!(agent.found(RULE), [30080]);
    until_told(&node.cluster, &[("web", FOUND)]);

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}});
    node.cluster.api().create(&namespace);
    let mut service = objects::service("theirs", &[objects::port(80, Some(30081))]);
    service["metadata"]["namespace"] = json!("tenant");
    node.cluster.api().create(&service);
    let _theirs = super::squat(30081);
    until_found(&agent, &[30080, 30081]);
    // Its contents are deleted by a controller, which this cluster lacks: a test does it.
    node.cluster.api().delete(&namespace);
    until("refusal", || node.cluster.api().try_create(&service).err());
    node.cluster.api().delete(&service);
    until_found(&agent, &[30080]);
    assert!(agent.is_well());
}
