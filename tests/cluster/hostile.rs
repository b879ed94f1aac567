//! Servers with endless or wrong answers. Every read ends, and incomplete facts are unknown.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use portreeve_facts::{Gap, Source, Why};

use crate::{
    api::{list, page, small},
    fake::{Fake, Reply},
    watch::{A, is_list},
};

/// Reads a cluster in which `answer` answers the list requests for Services. Returns why Services are unknown, and the
/// number of list requests. Then reads the same cluster with normal answers: this read must be complete.
fn services(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> (Option<Gap>, usize) {
    // 200,000 objects take a debug build seconds, and on a busy machine a minute.
    services_within(Duration::from_secs(200), answer)
}

fn services_within(
    request_timeout: Duration,
    answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
) -> (Option<Gap>, usize) {
    let is_over = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&is_over);
    let is_hostile = move |path: &str| is_list(path) && !shared.load(Ordering::Relaxed);
    let fake = Fake::new(move |path, _| if is_hostile(path) { answer(path) } else { small(path) });
    let facts = fake.facts_within(request_timeout);
    assert!(facts.nodes.seen().is_some(), "other resources are read after one failure");
    let requests = fake.requests().iter().filter(|path| is_list(path)).count();
    is_over.store(true, Ordering::Relaxed);
    assert!(fake.facts_within(request_timeout).services.seen().is_some(), "complete again");
    (facts.services.gap().cloned(), requests)
}

#[track_caller]
fn is_malformed(found: (Option<Gap>, usize), wanted: &str) {
    is_gap(found, Why::Malformed, wanted);
}

#[track_caller]
fn is_gap((gap, requests): (Option<Gap>, usize), why: Why, wanted: &str) {
    let gap = gap.expect("a gap");
    assert_eq!(gap.why, why, "{gap:?}");
    assert!(gap.detail.contains(wanted), "{gap:?}");
    assert!(requests < 100, "{requests} requests");
}

fn token(path: &str) -> usize {
    path.split_once("continue=t").map_or(0, |(_, number)| number.parse().expect("a number"))
}

/// Fault (API server): an answer never ends
/// Does: stops reading at a limit; the facts are unread (`too-much`)
/// Right again: with the next answer
/// Lost: nothing
#[test]
fn an_endless_list_is_cut() {
    const ITEMS: &str = r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":["#;
    is_gap(services(|_| Reply::Endless(ITEMS, format!("{A},"))), Why::TooMuch, "it holds more than 200000 objects");
    let next = |path: &str| {
        let items: Vec<&str> = std::iter::repeat_n(A, 20_000).collect();
        page("Service", &items, &format!("t{}", token(path) + 1))
    };
    is_gap(services(next), Why::TooMuch, "it holds more than 200000 objects");
    const OBJECT: &str = r#"{"kind":"ServiceList","metadata":{},"items":[{"metadata":{"name":""#;
    let wanted = "10 MiB without a complete object, wanted objects of at most 10 MiB";
    is_gap(services(|_| Reply::Endless(OBJECT, "x".to_owned())), Why::TooMuch, wanted);
}

/// One user's object must not stop the reading of other objects. Annotations may have 256 KiB, and the API server
/// writes `<` as six bytes.
#[test]
fn an_object_full_of_commas_and_one_of_escapes_are_read_like_any_other() {
    let annotated = |name: &str, text: &str| {
        format!(r#"{{"metadata":{{"name":"{name}","annotations":{{"a":"{text}"}}}},"spec":{{"ports":[]}}}}"#)
    };
    let commas = annotated("commas", &",".repeat(250_000));
    let escapes = annotated("escapes", &"\\u003c".repeat(1_500_000));
    let fake =
        Fake::new(move |path, _| if is_list(path) { list("Service", &[&commas, A, &escapes]) } else { small(path) });
    let facts = fake.facts();
    assert_eq!(facts.services.get().expect("services").len(), 3);
    assert!(facts.rejected.is_empty(), "{:?}", facts.rejected);
}

#[test]
fn an_answer_of_another_kind_is_malformed() {
    is_malformed(services(|_| list("Pod", &[])), "the answer is a PodList, wanted a ServiceList");
    is_malformed(services(|_| list("Pod", &[A])), "the answer is a PodList, wanted a ServiceList");
    let late = r#"{"metadata":{"resourceVersion":"1"},"items":[],"kind":"PodList"}"#;
    is_malformed(services(|_| Reply::Json(late.to_owned())), "the answer is a PodList");
    is_malformed(services(|_| Reply::Json(r#"{"items":[]}"#.to_owned())), "the answer has no kind");
    is_malformed(services(|_| Reply::Json(r#"{"kind":"Status","status":"Success"}"#.to_owned())), "a Status");
}

#[test]
fn a_list_whose_next_page_is_refused_or_malformed_is_unknown() {
    for code in [401, 403, 404] {
        let refused =
            move |path: &str| if token(path) > 0 { Reply::Status(code, "no") } else { page("Service", &[A], "t1") };
        is_malformed(services(refused), "page 2 of the list is refused");
    }
    for nonsense in [r#"{"continue":7}"#, r#"{"continue":["t1"]}"#, "7"] {
        let body = format!(r#"{{"kind":"ServiceList","metadata":{nonsense},"items":[{A}]}}"#);
        is_malformed(services(move |_| Reply::Json(body.clone())), "invalid type");
    }
    for remaining in ["3", "-1"] {
        let metadata = format!(r#"{{"resourceVersion":"1","remainingItemCount":{remaining}}}"#);
        let body = format!(r#"{{"kind":"ServiceList","metadata":{metadata},"items":[{A}]}}"#);
        is_malformed(services(move |_| Reply::Json(body.clone())), &format!("{remaining} more items on the server"));
    }
    let wrong = format!(r#"{{"kind":"ServiceList","metadata":{{"remainingItemCount":"3"}},"items":[{A}]}}"#);
    is_malformed(services(move |_| Reply::Json(wrong.clone())), "invalid type");
    let lonely = format!(r#"{{"kind":"ServiceList","items":[{A}]}}"#);
    is_malformed(services(move |_| Reply::Json(lonely.clone())), "no resource version");
}

#[test]
fn all_pages_of_nodes_are_read() {
    let node = |name: &str| format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
    let fake = Fake::new(move |path, _| match path {
        path if !path.starts_with("/api/v1/nodes?") => small(path),
        path if path.contains("continue=t1") => list("Node", &[&node("n2")]),
        _ => page("Node", &[&node("n1")], "t1"),
    });
    let nodes = fake.facts().nodes;
    assert_eq!(nodes.get().expect("Nodes").len(), 2);
}

#[test]
fn a_service_without_its_spec_is_unread_and_named() {
    let fake = Fake::new(|path, _| match path {
        path if is_list(path) => list("Service", &[A, r#"{"metadata":{"name":"b","namespace":"d"}}"#]),
        path => small(path),
    });
    let facts = fake.facts();
    assert_eq!(facts.services.get().expect("Services").len(), 1);
    let [gap] = facts.rejected.as_slice() else { panic!("one rejected item, not {:?}", facts.rejected) };
    assert_eq!((gap.source, gap.why), (Source::Services, Why::Malformed));
    assert!(gap.detail.ends_with("Service d/b: spec is absent, wanted a mapping"), "{}", gap.detail);
}

/// Fault (API server): an answer comes in pieces, or stops in the middle
/// Does: waits while pieces arrive; an answer that stops is unread (`timed-out`)
/// Right again: with the next answer
/// Lost: nothing
#[test]
fn a_server_that_keeps_sending_is_read_and_one_that_stops_times_out() {
    let timeout = Duration::from_secs(2);
    let pieces = || {
        let beginning = r#"{"kind":"ServiceList","metadata":{"resourceVersion":"1"},"items":["#.to_owned();
        let more = [A, ",", &A.replace(r#""a""#, r#""b""#), "]", "}"].map(str::to_owned);
        std::iter::once(beginning).chain(more).collect::<Vec<_>>()
    };
    let (gap, _) = services_within(timeout, move |_| Reply::Slow(pieces(), timeout / 4));
    assert_eq!(gap, None, "three times the allowed silence");
    let (gap, _) = services_within(timeout, move |_| {
        Reply::Slow(vec![pieces()[0].clone(), String::new(), String::new(), A.to_owned()], 2 * timeout / 3)
    });
    let gap = gap.expect("a gap");
    assert!(gap.why == Why::TimedOut && gap.detail.contains("nothing more of the answer within 2 s"), "{gap:?}");
}
