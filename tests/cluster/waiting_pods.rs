//! Pods that wait for free ports. The program polls for these pods. Of other pods without a node, the program keeps
//! only the ports.

use portreeve_facts::{Source, Why};

use crate::{
    api::{list, small},
    fake::{Fake, Reply},
    watch::{calm, is_watch, start, until, whole},
};

const WAITS: &str = r#"{"metadata":{"name":"late","namespace":"d","uid":"u"},
    "spec":{"containers":[{"ports":[{"containerPort":80,"hostPort":80}]}]},
    "status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","message":
    "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."}]}}"#;
const STARTS: &str = r#"{"metadata":{"name":"new","namespace":"d"},"spec":{},"status":{"phase":"Pending"}}"#;
const LACKS_CPU: &str = r#"{"metadata":{"name":"large","namespace":"d","uid":"v"},
    "spec":{"containers":[{"ports":[{"containerPort":80,"hostPort":10000},{"containerPort":81}]}]},
    "status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","message":
    "0/1 nodes are available: 1 Insufficient cpu."}]}}"#;
const RUNS: &str = r#"{"metadata":{"name":"far","namespace":"d"},
    "spec":{"nodeName":"n1","containers":[{"ports":[{"containerPort":80,"hostPort":10001}]}]},
    "status":{"phase":"Running"}}"#;

fn asks_for_waiting(path: &str) -> bool {
    path.starts_with("/api/v1/pods?") && path.contains("fieldSelector=spec.nodeName%3D%2Cstatus.phase%3DPending")
}

#[test]
fn one_scan_reads_waiting_pods_and_drops_the_rest() {
    let fake = Fake::new(|path, _| match path {
        path if asks_for_waiting(path) => list("Pod", &[STARTS, WAITS, LACKS_CPU, RUNS]),
        path => small(path),
    });
    let facts = fake.facts();
    let names: Vec<_> = facts.waiting_pods.get().expect("pods").iter().map(|pod| pod.name.clone()).collect();
    assert_eq!(names, ["late"]);
    assert_eq!(facts.pending_ports.to_string(), "10000", "the port of a pod that waits for CPU");
    assert_eq!(facts.pods.get().map(Vec::len), Ok(0), "a server that does not know the selector sends other Pods too");
}

#[test]
fn a_refusal_leaves_only_waiting_pods_unknown() {
    let fake = Fake::new(|path, _| match path {
        path if asks_for_waiting(path) => Reply::Status(403, "pods is forbidden"),
        path => small(path),
    });
    let facts = fake.facts();
    let gap = facts.waiting_pods.gap().expect("a gap");
    assert_eq!((gap.source, gap.why), (Source::WaitingPods, Why::NotPermitted));
    assert!(facts.pods.seen().is_some() && facts.services.seen().is_some());
}

#[tokio::test]
async fn an_agent_polls_waiting_pods_and_sees_them_come_and_go() {
    let fake = Fake::new(|path, before| match path {
        path if asks_for_waiting(path) && before == 0 => list("Pod", &[WAITS, STARTS, LACKS_CPU, RUNS]),
        path if asks_for_waiting(path) && before == 1 => Reply::Status(500, "not now"),
        path if asks_for_waiting(path) && before < 20 => list("Pod", &[WAITS, LACKS_CPU]),
        path if asks_for_waiting(path) => list("Pod", &[]),
        path => calm(path),
    });
    let (_watch, views) = start(&fake);
    let count = |view: &crate::watch::View| view.facts.waiting_pods.seen().map(Vec::len);
    let view = until(&views, "one waits", |view| count(view) == Some(1) && view.facts.pods.seen().is_some()).await;
    assert_eq!(view.facts.pods.seen().map(Vec::len), Some(0));
    assert_eq!(view.facts.pending_ports.to_string(), "10000");
    let mut kept = true;
    let view = until(&views, "none waits", |view| {
        kept &= count(view).is_some();
        count(view) == Some(0) && whole(view)
    })
    .await;
    assert!(view.facts.pending_ports.is_empty(), "{}", view.facts.pending_ports);
    assert!(kept, "known Pods stay while the server fails");
    assert!(fake.requests().iter().filter(|path| asks_for_waiting(path)).all(|path| !is_watch(path)));
}
