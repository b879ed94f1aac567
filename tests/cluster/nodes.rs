//! How Nodes are read if this node's name is known: this node's Node completely, and the other Nodes as rows of a
//! Table.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use portreeve_cluster::{ClusterView, Resource, Watch};
use portreeve_facts::{RangeSource, Why};

use crate::{
    api::{list, small},
    fake::{Fake, Reply},
    watch::{View, about, calm, timing, until, whole},
};

const OWN: &str = r#"{"metadata":{"name":"n1"},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}"#;
const OWN_OF_BOTH_FAMILIES: &str = r#"{"metadata":{"name":"n1"},"status":{"addresses":[
    {"type":"InternalIP","address":"10.0.0.1"},{"type":"InternalIP","address":"2001:db8::1"}]}}"#;
const SERVER: &str = r#"{"metadata":{"name":"cp","annotations":{
    "k3s.io/node-args":"[\"server\",\"--service-node-port-range\",\"20000-20999\"]"}},
    "status":{"addresses":[{"type":"InternalIP","address":"10.0.0.2"}]}}"#;
const OTHER: &str = r#"{"metadata":{"name":"n3"},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.3"}]}}"#;
const TABLE: &str = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},
    "columnDefinitions":[{"name":"Name"},{"name":"Version"},{"name":"Internal-IP"},{"name":"External-IP"}],
    "rows":[{"cells":["n3","v1.36.3","10.0.0.3","<none>"]},{"cells":["n4","v1.36.3","10.0.0.4","203.0.113.4"]}]}"#;

fn answer(path: &str, own: &str, table: Reply) -> Reply {
    match path {
        path if !path.starts_with("/api/v1/nodes?") || path.contains("watch=1") => calm(path),
        path if path.contains("metadata.name%3Dn1") => list("Node", &[own]),
        path if path.contains("labelSelector=%21node-role") && path.ends_with("&includeObject=None") => table,
        path if path.contains("labelSelector=node-role") => list("Node", &[SERVER]),
        path if path.contains("metadata.name%21%3Dn1") => list("Node", &[SERVER, OTHER]),
        _ => Reply::Status(400, "every Node was requested"),
    }
}

fn start(fake: &Fake) -> (Watch, ClusterView) {
    let access = fake.access("t", Duration::from_secs(20));
    Watch::start(access, &Resource::ALL, Some("n1".to_owned()), "elsewhere".to_owned(), about(&[]).1, timing())
}

fn addresses(view: &View) -> Vec<String> {
    let nodes = view.facts.nodes.seen().into_iter().flatten();
    nodes.flat_map(|node| node.addresses.iter().map(|it| format!("{} {}", node.name, it.ip))).collect()
}

#[tokio::test]
async fn the_own_node_is_read_completely_and_the_others_are_rows_of_a_table() {
    let fake = Fake::new(|path, _| answer(path, OWN, Reply::Json(TABLE.to_owned())));
    let (_watch, views) = start(&fake);
    let view = until(&views, "everything is read", whole).await;
    let expected = ["cp 10.0.0.2", "n1 10.0.0.1", "n3 10.0.0.3", "n4 10.0.0.4", "n4 203.0.113.4"];
    assert_eq!(addresses(&view), expected);
    let range = view.facts.node_port_range.seen().expect("a range");
    assert_eq!((range.source, range.range.first), (RangeSource::NodeArguments, 20000));
    let nodes = |path: &&String| path.starts_with("/api/v1/nodes");
    let requests = fake.requests();
    assert!(requests.iter().filter(nodes).all(|path| path.contains("metadata.name%") && !path.contains("watch=1")));
}

#[tokio::test]
async fn nodes_with_addresses_of_both_families_are_read_completely() {
    let fake = Fake::new(|path, _| answer(path, OWN_OF_BOTH_FAMILIES, Reply::Status(500, "a Table was requested")));
    let (_watch, views) = start(&fake);
    let view = until(&views, "everything is read", whole).await;
    assert_eq!(addresses(&view), ["cp 10.0.0.2", "n1 10.0.0.1", "n1 2001:db8::1", "n3 10.0.0.3"]);
}

#[tokio::test]
async fn a_server_without_tables_answers_with_a_list() {
    let fake = Fake::new(|path, _| answer(path, OWN, list("Node", &[OTHER])));
    let (_watch, views) = start(&fake);
    let view = until(&views, "everything is read", whole).await;
    assert_eq!(addresses(&view), ["cp 10.0.0.2", "n1 10.0.0.1", "n3 10.0.0.3"]);
}

#[tokio::test]
async fn nodes_are_unread_without_the_others_and_known_nodes_stay() {
    let known = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&known);
    let fake = Fake::new(move |path, _| {
        let table =
            if shared.load(Ordering::Relaxed) { TABLE } else { r#"{"kind":"Table","rows":[{"cells":["n3"]}]}"# };
        answer(path, OWN, Reply::Json(table.to_owned()))
    });
    let (_watch, views) = start(&fake);
    let gap = |view: &View| view.facts.nodes.gap().map(|gap| gap.why);
    let view = until(&views, "settings", |view| gap(view) == Some(Why::Malformed)).await;
    assert!(view.facts.nodes.gap().expect("a gap").detail.contains("no column Name"), "{:?}", view.facts.nodes);
    known.store(true, Ordering::Relaxed);
    until(&views, "all Nodes", |view| view.facts.nodes.seen().is_some_and(|nodes| nodes.len() == 4)).await;
    known.store(false, Ordering::Relaxed);
    let resource = Resource::Nodes;
    let view = until(&views, "trouble", |view| view.statuses[&resource].failure.is_some()).await;
    assert_eq!(addresses(&view).len(), 5);
}

/// Fault (operator): the Node object is deleted while its agent runs, and made again with another uid
/// Does: keeps all other facts; reports no error about the Node
/// Right again: with the next poll of the Nodes
/// Lost: facts of this Node meanwhile
#[tokio::test]
async fn a_new_node_object_has_its_new_uid_after_the_next_poll_and_affects_nothing_else() {
    let phase = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&phase);
    let named = |uid: &str| OWN.replace("\"name\"", &format!("\"uid\":\"{uid}\",\"name\""));
    let (old, new) = (named("old"), named("new"));
    let fake = Fake::new(move |path, _| {
        let is_own = path.starts_with("/api/v1/nodes?") && path.contains("metadata.name%3Dn1");
        match shared.load(Ordering::Relaxed) {
            1 if is_own => list("Node", &[]),
            2 => answer(path, &new, Reply::Json(TABLE.to_owned())),
            _ => answer(path, &old, Reply::Json(TABLE.to_owned())),
        }
    });
    let (_watch, views) = start(&fake);
    let own = |view: &View| -> Option<String> {
        view.facts.nodes.seen().into_iter().flatten().find(|node| node.name == "n1")?.uid.clone()
    };
    let first = until(&views, "everything is read", whole).await;
    assert_eq!(own(&first).as_deref(), Some("old"));
    phase.store(1, Ordering::Relaxed);
    let gone = until(&views, "the Node is gone", |view| own(view).is_none()).await;
    let others: Vec<String> = addresses(&first).into_iter().filter(|it| !it.starts_with("n1 ")).collect();
    assert_eq!(addresses(&gone), others, "the other Nodes stay");
    assert_eq!(gone.facts.services, first.facts.services);
    phase.store(2, Ordering::Relaxed);
    until(&views, "the new Node", |view| own(view).as_deref() == Some("new")).await;
}

#[tokio::test]
async fn nodes_are_unread_without_the_right_to_list_them() {
    let fake = Fake::new(|path, _| match path {
        path if path.starts_with("/api/v1/nodes") => Reply::Status(403, "forbidden"),
        path => small(path),
    });
    let (_watch, views) = start(&fake);
    let gap = |view: &View| view.facts.nodes.gap().map(|gap| gap.why);
    until(&views, "a gap", |view| gap(view) == Some(Why::NotPermitted)).await;
}

#[tokio::test]
async fn an_error_in_the_own_node_is_named_and_affects_no_other() {
    for (wrong, kept, said) in [
        (
            r#"{"metadata":{"name":"n1"},"status":{"capacity":"none","addresses":[
                {"type":"InternalIP","address":"10.0.0.1"},{"type":"ExternalIP","address":"x"}]}}"#,
            true,
            "status.addresses[1].address is \"x\", wanted an IP address",
        ),
        (r#"{"metadata":{"name":"n1","labels":7}}"#, false, "metadata.labels is 7, wanted a mapping"),
    ] {
        let fake = Fake::new(move |path, _| answer(path, wrong, Reply::Json(TABLE.to_owned())));
        let (_watch, views) = start(&fake);
        let view = until(&views, "everything is read", whole).await;
        assert_eq!(addresses(&view).contains(&"n1 10.0.0.1".to_owned()), kept, "{:?}", view.facts.nodes);
        assert_eq!(view.facts.nodes.seen().map(Vec::len), Some(if kept { 4 } else { 3 }));
        let rejected: Vec<_> = view.facts.rejected.iter().map(|gap| gap.detail.as_str()).collect();
        assert!(rejected.iter().any(|it| it.contains("Node n1: ") && it.ends_with(said)), "{rejected:?}");
    }
}
