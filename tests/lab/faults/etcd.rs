//! etcd hangs, dies, and comes back with an older state or with none.

use super::{FOUND, Node, RESOLVED, serve, squat, until_found, until_told};
use crate::parts::until;

/// Fault (API server): its etcd is frozen (SIGSTOP)
/// Does: goes on looking with what it knew; new listeners are found
/// Right again: Events are written once etcd goes on
/// Lost: nothing
///
/// Fault (API server): its etcd is killed, and started again
/// Does: goes on looking with what it knew; the end of a listener is seen
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
    // An API server answers again a moment after its etcd.
    until("API server", || node.cluster.api().text("/apis/events.k8s.io/v1/events"));
    until_told(&node.cluster, &[("web", FOUND), ("late", FOUND), ("late", RESOLVED)]);
}
