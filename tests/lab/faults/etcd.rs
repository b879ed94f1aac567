//! etcd hangs, is killed, or starts again with an older state or without a state.

use super::{FOUND, Node, RESOLVED, RULE, errors, serve, squat, until_found, until_told, until_told_also};
use crate::parts::{PRIMARY, Role, objects, until};

/// Fault (API server): etcd is frozen (SIGSTOP)
/// Does: still scans; finds new listeners
/// Right again: Events are written when etcd continues
/// Lost: nothing
///
/// Fault (API server): etcd is killed, and started again
/// Does: still scans; sees the end of a listener
/// Right again: Events are written once etcd is back
/// Lost: nothing
#[test]
fn detection_goes_on_while_etcd_is_frozen_and_dead() {
    let mut node = Node::enter();
    serve(&node.cluster, "late", 30081);
    let agent = node.agent(&["--request-timeout", "2s"]);

    node.cluster.store().freeze();
    let late = squat(30081);
    until_found(&agent, &[30080, 30081]);
    assert!(agent.is_well());
    node.cluster.store().thaw();
    until_told(&node.cluster, &[("web", FOUND), ("late", FOUND)]);

    node.cluster.store().kill();
    drop(late);
    until_found(&agent, &[30080]);
    assert!(agent.is_well());
    node.cluster.store().restart();
    // The API server answers a moment after etcd answers.
    until("API server", || node.cluster.api().text("/apis/events.k8s.io/v1/events"));
    until_told(&node.cluster, &[("web", FOUND), ("late", FOUND), ("late", RESOLVED)]);
}

/// Fault (API server): the server comes back with an older state, from a backup of etcd
/// Does: reports no findings about Services that the older state lacks
/// Right again: with the scan that the first list of Services starts
/// Lost: Events that the server has lost
#[test]
fn a_server_that_comes_back_with_an_older_state_is_believed() {
    let mut node = Node::enter();
    let agent = node.agent(&[]);
    let saved = node.cluster.store().save();
    until("API server", || node.cluster.api().text("/api/v1/services"));
    serve(&node.cluster, "later", 30081);
    // After these writes, the server's resource version is much higher than in the saved state.
    for number in 0..50 {
        node.cluster.api().create(&objects::service(&format!("more-{number}"), &[objects::port(80, None)]));
    }
    let _later = squat(30081);
    until_found(&agent, &[30080, 30081]);
    until_told(&node.cluster, &[("web", FOUND), ("later", FOUND)]);

    node.cluster.kill();
    node.cluster.store().restore(Some(&saved));
    node.cluster.restart();
    until_found(&agent, &[30080]);
    serve(&node.cluster, "again", 30081);
    until_found(&agent, &[30080, 30081]);
    assert!(agent.is_well());
}

/// Fault (API server): the server comes back empty, and its roles are written again
/// Does: keeps its facts during the refusals (403); then accepts the server's state, and finds new conflicts
/// Right again: with the scan that each change starts
/// Lost: Events that the server has lost or refused
#[test]
fn a_server_that_comes_back_empty_is_believed_once_it_allows_to_read() {
    let mut node = Node::enter();
    let agent = node.agent(&[]);
    node.cluster.kill();
    node.cluster.store().restore(None);
    let refused = errors(&agent, "403");
    node.cluster.restart();
    until("refusal", || (errors(&agent, "403") > refused).then_some(()));
    assert_eq!(agent.found(RULE), [30080], "a refusal is no news");
    Role::of_chart().grant(&mut node.cluster);
    until_found(&agent, &[]);
    node.cluster.api().create(&objects::node("n1", &PRIMARY));
    serve(&node.cluster, "new", 30080);
    until_found(&agent, &[30080]);
    until_told_also(&node.cluster, ("new", FOUND));
    assert!(agent.is_well());
}
