use std::{collections::BTreeMap, time::Duration};

use super::*;
use crate::cluster::{error::Error, requests::Collect, watch::row::Rows, wire::Object};

fn rows(kind: &str, objects: &[&str]) -> Rows {
    let mut rows = Rows::default();
    let text = format!(r#"{{"kind":"{kind}List","items":[{}]}}"#, objects.join(","));
    let mut parser = serde_json::Deserializer::from_str(&text);
    let mut sink = |object: Object| rows.accept("here", object);
    let document = crate::cluster::document::Document { kind: Some(kind), closed: true, sink: &mut sink };
    serde::de::DeserializeSeed::deserialize(document, &mut parser).expect("a list");
    rows
}

fn web(port: u16) -> String {
    let spec = format!(r#"{{"type":"NodePort","ports":[{{"port":80,"nodePort":{port}}}]}}"#);
    format!(r#"{{"metadata":{{"namespace":"d","name":"web"}},"spec":{spec}}}"#)
}

fn slice(service: &str) -> String {
    let labels = format!(r#"{{"kubernetes.io/service-name":"{service}"}}"#);
    format!(
        r#"{{"metadata":{{"namespace":"d","name":"{service}-x","labels":{labels}}},"addressType":"IPv4","endpoints":[]}}"#
    )
}

fn expired() -> Error {
    Error::Status { request: "GET x".to_owned(), code: 410, message: "too old".to_owned(), retry_after: None }
}

fn names(of: &[&str]) -> Scope {
    Scope::Names(Arc::new(of.iter().map(|name| (*name).to_owned()).collect()))
}

/// An index that knows Service `d/web` and Node `n1`.
fn index() -> (Index, Instant) {
    let (mut index, now) = (Index::new(None, "N1".to_owned(), Arc::default()), Instant::now());
    index.take(Resource::Nodes, News::Replaced(Scope::All, rows("Node", &[r#"{"metadata":{"name":"n1"}}"#])), now);
    index.take(Resource::Services, News::Replaced(Scope::Served, rows("Service", &[&web(30080)])), now);
    (index, now)
}

#[test]
fn nothing_is_known_before_it_was_read_as_a_whole() {
    let facts = Index::new(None, "n1".to_owned(), Arc::default()).facts();
    let gaps = [facts.services.gap(), facts.endpoint_slices.gap(), facts.pods.gap(), facts.nodes.gap()];
    assert!(gaps.iter().all(|gap| gap.is_some_and(|gap| gap.why == Why::NotYet)), "{gaps:?}");
    let gap = facts.node_port_range.gap().expect("no range is assumed before anybody was asked");
    assert_eq!((gap.source, gap.why), (Source::NodePortRange, Why::NotYet));
    assert_eq!(facts.proxy_config.gap().map(|gap| gap.why), Some(Why::NotYet));
}

#[test]
fn objects_are_applied_replaced_and_deleted() {
    let (mut index, now) = index();
    let ports = |index: &Index| {
        let facts = index.facts();
        let services = facts.services.get().expect("services").clone();
        services.iter().map(|service| service.ports[0].node_port).collect::<Vec<_>>()
    };
    assert_eq!(ports(&index), [Some(30080)]);
    assert!(index.take(Resource::Services, News::Applied(rows("Service", &[&web(30081)])), now));
    assert_eq!(ports(&index), [Some(30081)]);
    assert!(index.take(Resource::Services, News::Deleted("d/web".to_owned()), now));
    assert_eq!(ports(&index), []);
    assert!(!index.take(Resource::Services, News::Deleted("d/web".to_owned()), now), "it was not there");
}

#[test]
fn an_object_that_says_the_same_again_changes_nothing() {
    let (mut index, now) = index();
    assert!(!index.take(Resource::Services, News::Applied(rows("Service", &[&web(30080)])), now));
    assert!(!index.take(Resource::Services, News::Replaced(Scope::Served, rows("Service", &[&web(30080)])), now));
    assert!(!index.take(Resource::Services, News::Confirmed, now));
}

#[test]
fn a_service_that_becomes_headless_is_gone() {
    let (mut index, now) = index();
    let headless = r#"{"metadata":{"namespace":"d","name":"web"},"spec":{"clusterIP":"None"}}"#;
    assert!(index.take(Resource::Services, News::Applied(rows("Service", &[headless])), now));
    assert_eq!(index.facts().services.get().expect("services").len(), 0);
}

#[test]
fn a_complaint_lasts_as_long_as_its_object() {
    let (mut index, now) = index();
    let odd = r#"{"metadata":{"namespace":"d","name":"odd"},"spec":{"ports":[{"port":70000}]}}"#;
    index.take(Resource::Services, News::Applied(rows("Service", &[odd])), now);
    assert!(index.facts().rejected[0].detail.contains("Service d/odd: spec.ports[0].port is 70000"));
    index.take(Resource::Services, News::Deleted("d/odd".to_owned()), now);
    assert_eq!(index.facts().rejected, []);
}

#[test]
fn a_failure_takes_nothing_away_that_was_known() {
    let (mut index, now) = index();
    let later = now + Duration::from_secs(600);
    assert!(!index.take(Resource::Services, News::Failed(expired()), later));
    assert!(index.facts().services.seen().is_some());
    let standing = &index.standings()[&Resource::Services];
    assert_eq!(standing.age(later), Some(Duration::from_secs(600)));
    assert_eq!(standing.trouble.as_ref().map(|gap| gap.why), Some(Why::Stale));
    assert_eq!(standing.errors, BTreeMap::from([("410".to_owned(), 1)]));

    index.take(Resource::Services, News::Confirmed, later);
    let standing = &index.standings()[&Resource::Services];
    assert_eq!((standing.age(later), &standing.trouble), (Some(Duration::ZERO), &None));
    assert_eq!(standing.errors["410"], 1, "a counter only rises");
}

#[test]
fn a_failure_says_why_nothing_was_ever_known() {
    let mut index = Index::new(None, "n1".to_owned(), Arc::default());
    assert!(index.take(Resource::Services, News::Failed(expired()), Instant::now()));
    let facts = index.facts();
    assert_eq!(facts.services.gap().map(|gap| gap.why), Some(Why::Stale));
    assert_eq!(facts.nodes.gap().map(|gap| gap.why), Some(Why::NotYet));
}

#[test]
fn the_host_name_finds_the_node_and_the_node_its_pods() {
    let (mut index, now) = index();
    assert_eq!(index.wanted(Resource::Pods), Some(Scope::Node("n1".to_owned())));
    index.take(Resource::Nodes, News::Deleted("n1".to_owned()), now);
    assert_eq!(index.wanted(Resource::Pods), None);
    let facts = index.facts();
    let gap = facts.pods.gap().expect("a gap");
    assert!(gap.why == Why::NotAsked && gap.detail.contains("--node"), "{gap:?}");
    let said = Index::new(Some("other".to_owned()), "n1".to_owned(), Arc::default());
    assert_eq!(said.wanted(Resource::Pods), Some(Scope::Node("other".to_owned())));
}

#[test]
fn endpoints_are_known_only_for_services_they_were_asked_for() {
    let (mut index, now) = index();
    assert_eq!(index.wanted(Resource::EndpointSlices), Some(names(&[])), "a NodePort alone is no reason to ask");
    let Scope::Names(web) = names(&["web"]) else { unreachable!("names are names") };
    assert!(index.take(Resource::EndpointSlices, News::Wanted(Arc::clone(&web)), now));
    assert!(!index.take(Resource::EndpointSlices, News::Wanted(web), now), "the same again");
    assert_eq!(index.wanted(Resource::EndpointSlices), Some(names(&["web"])));
    assert!(!index.is_settled());
    index.take(Resource::EndpointSlices, News::Replaced(names(&["web"]), rows("EndpointSlice", &[&slice("web")])), now);
    assert!(index.is_settled());
    let facts = index.facts();
    let slices = facts.endpoint_slices_with("web").expect("slices");
    assert_eq!(slices.iter().map(|slice| slice.service.as_str()).collect::<Vec<_>>(), ["web"]);
    assert_eq!(facts.endpoint_slices_with("other").map_err(|gap| gap.why), Err(Why::NotAsked), "not asked is not none");

    let Scope::Names(both) = names(&["other", "web"]) else { unreachable!("names are names") };
    index.take(Resource::EndpointSlices, News::Wanted(both), now);
    assert!(!index.is_settled());
    assert_eq!(index.facts().endpoint_slices.gap().map(|gap| gap.why), Some(Why::NotYet));

    index.take(Resource::EndpointSlices, News::Wanted(Arc::default()), now);
    assert!(index.is_settled() && index.facts().endpoint_slices.seen().is_some(), "fewer are covered");
}

#[test]
fn endpoint_slices_that_nobody_asked_for_are_not_kept() {
    let (mut index, now) = index();
    let scope = names(&["kubernetes", "web"]);
    let mut found = Rows::within(scope.clone());
    found.absorb(rows("EndpointSlice", &[&slice("web"), &slice("quiet")]));
    assert_eq!(found.rows.keys().collect::<Vec<_>>(), ["d/web-x"]);
    index.take(Resource::EndpointSlices, News::Replaced(scope, found), now);
    let applied = |index: &mut Index, slice: &str| {
        index.take(Resource::EndpointSlices, News::Applied(rows("EndpointSlice", &[slice])), now)
    };
    assert!(!applied(&mut index, &slice("quiet")));
    assert!(applied(&mut index, &slice("web").replace("IPv4", "IPv6")));
    assert!(applied(&mut index, &slice("web").replace(r#"e":"web""#, r#"e":"quiet""#)), "it was theirs and is not now");
    assert_eq!(index.facts().endpoint_slices.get().expect("slices").len(), 0);
}
