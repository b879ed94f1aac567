use std::{collections::BTreeMap, time::Duration};

use super::*;
use crate::{
    error::Error,
    objects::{self, Identity},
};
use serde_json::value::RawValue;

fn objects(kind: &str, items: &[&str]) -> ObjectBatch {
    read_into(ObjectBatch::default(), kind, items)
}

fn objects_within(selection: &Selection, kind: &str, items: &[&str]) -> ObjectBatch {
    read_into(ObjectBatch::within(selection.clone(), None), kind, items)
}

fn read_into(mut objects: ObjectBatch, kind: &str, items: &[&str]) -> ObjectBatch {
    for item in items {
        let item: &RawValue = serde_json::from_str(item).expect("an item");
        match kind {
            "Service" => objects.add::<objects::Service>("here", item),
            "EndpointSlice" => objects.add::<objects::EndpointSlice>("here", item),
            "Pod" => objects.add::<objects::Pod>("here", item),
            _ => objects.add::<objects::Node>("here", item),
        }
    }
    objects
}

fn applied(kind: &str, item: &str) -> Update {
    let item: &RawValue = serde_json::from_str(item).expect("an item");
    let (Identity { title, .. }, object) = match kind {
        "Service" => CachedObject::read::<objects::Service>("here", item),
        _ => CachedObject::read::<objects::EndpointSlice>("here", item),
    };
    Update::Applied(title, object)
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

fn names(of: &[&str]) -> Selection {
    Selection::EndpointsOf(Arc::new(of.iter().map(|name| (*name).to_owned()).collect()))
}

fn index() -> (Index, Instant) {
    let (mut index, now) = (Index::new(None, "N1".to_owned(), Arc::default()), Instant::now());
    index.apply(
        Resource::Nodes,
        Update::Replaced(Selection::All, objects("Node", &[r#"{"metadata":{"name":"n1"}}"#])),
        now,
    );
    index.apply(Resource::Services, Update::Replaced(Selection::Served, objects("Service", &[&web(30080)])), now);
    (index, now)
}

#[test]
fn nothing_is_known_before_a_complete_read() {
    let facts = Index::new(None, "n1".to_owned(), Arc::default()).facts();
    let gaps = [facts.services.gap(), facts.endpoint_slices.gap(), facts.pods.gap(), facts.nodes.gap()];
    assert!(gaps.iter().all(|gap| gap.is_some_and(|gap| gap.why == Why::NotYet)), "{gaps:?}");
    let gap = facts.node_port_range.gap().expect("no range is assumed before a read");
    assert_eq!((gap.source, gap.why), (Source::NodePortRange, Why::NotYet));
    assert_eq!(facts.proxy_config.gap().map(|gap| gap.why), Some(Why::NotYet));
}

#[test]
fn a_program_without_settings_assumes_no_range_and_knows_the_nodes_in_any_case() {
    let index = |resources: &[Resource]| Index::new(None, "n1".to_owned(), Arc::default()).only(resources);
    let facts = index(&Resource::OF_GUARD).facts();
    for gap in [facts.node_port_range.gap(), facts.proxy_config.gap()] {
        assert!(gap.is_some_and(|gap| gap.detail.contains("a guard does not read them")), "{gap:?}");
    }
    let of_pods = index(&[Resource::Pods]);
    assert!(of_pods.is_awaited() && of_pods.facts().nodes.gap().is_some());
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
    assert!(index.apply(Resource::Services, applied("Service", &web(30081)), now));
    assert_eq!(ports(&index), [Some(30081)]);
    assert!(index.apply(Resource::Services, Update::Applied("d/web".to_owned(), None), now));
    assert_eq!(ports(&index), []);
    assert!(
        !index.apply(Resource::Services, Update::Applied("d/web".to_owned(), None), now),
        "there was no such Service"
    );
}

#[test]
fn an_unchanged_object_changes_nothing() {
    let (mut index, now) = index();
    assert!(!index.apply(Resource::Services, applied("Service", &web(30080)), now));
    assert!(!index.apply(
        Resource::Services,
        Update::Replaced(Selection::Served, objects("Service", &[&web(30080)])),
        now
    ));
    assert!(!index.apply(Resource::Services, Update::Confirmed, now));
    let of_no_concern = r#""status":{},"metadata":{"annotations":{"edited":"again"},"resourceVersion":"9","#;
    let edited = web(30080).replace(r#""metadata":{"#, of_no_concern);
    assert!(!index.apply(Resource::Services, applied("Service", &edited), now), "{edited}");
}

#[test]
fn a_service_that_becomes_headless_is_gone() {
    let (mut index, now) = index();
    let headless = r#"{"metadata":{"namespace":"d","name":"web"},"spec":{"clusterIP":"None"}}"#;
    assert!(index.apply(Resource::Services, applied("Service", headless), now));
    assert_eq!(index.facts().services.get().expect("services").len(), 0);
}

#[test]
fn a_rejected_field_is_named_as_long_as_its_object_exists() {
    let (mut index, now) = index();
    let odd = r#"{"metadata":{"namespace":"d","name":"odd"},"spec":{"ports":[{"port":70000}]}}"#;
    index.apply(Resource::Services, applied("Service", odd), now);
    assert!(index.facts().rejected[0].detail.contains("Service d/odd: spec.ports[0].port is 70000"));
    assert_eq!(index.facts().unread_services, [("d".to_owned(), "odd".to_owned())]);
    index.apply(Resource::Services, Update::Applied("d/odd".to_owned(), None), now);
    assert_eq!((index.facts().rejected, index.facts().unread_services), (Vec::new(), Vec::new()));
}

#[test]
fn a_service_with_a_key_twice_counts_as_unread() {
    let (mut index, now) = index();
    let twice = web(30080).replacen('{', r#"{"spec":{},"#, 1);
    index.apply(Resource::Services, applied("Service", &twice), now);
    let facts = index.facts();
    assert_eq!(facts.services.get().map(Vec::len), Ok(0), "{twice}");
    assert_eq!(facts.unread_services, [("d".to_owned(), "web".to_owned())]);
}

#[test]
fn a_failure_removes_no_known_object() {
    let (mut index, now) = index();
    let later = now + Duration::from_secs(600);
    assert!(!index.apply(Resource::Services, Update::Failed(expired()), later));
    assert!(index.facts().services.seen().is_some());
    let status = &index.statuses()[&Resource::Services];
    assert_eq!(status.age(later), Some(Duration::from_secs(600)));
    assert_eq!(status.failure.as_ref().map(|gap| gap.why), Some(Why::Stale));
    assert_eq!(status.errors, BTreeMap::from([("410".to_owned(), 1)]));

    index.apply(Resource::Services, Update::Confirmed, later);
    let status = &index.statuses()[&Resource::Services];
    assert_eq!((status.age(later), &status.failure), (Some(Duration::ZERO), &None));
    assert_eq!(status.errors["410"], 1, "a counter only rises");
}

#[test]
fn a_failure_is_the_reason_of_an_unread_resource() {
    let mut index = Index::new(None, "n1".to_owned(), Arc::default());
    assert!(index.apply(Resource::Services, Update::Failed(expired()), Instant::now()));
    let facts = index.facts();
    assert_eq!(facts.services.gap().map(|gap| gap.why), Some(Why::Stale));
    assert_eq!(facts.nodes.gap().map(|gap| gap.why), Some(Why::NotYet));
}

#[test]
fn the_host_name_finds_the_node_and_the_node_its_pods() {
    let (mut index, now) = index();
    assert_eq!(index.needed(Resource::Pods), Some(Selection::Node("n1".to_owned())));
    index.apply(Resource::Nodes, Update::Applied("n1".to_owned(), None), now);
    assert_eq!(index.needed(Resource::Pods), None);
    let facts = index.facts();
    let gap = facts.pods.gap().expect("a gap");
    assert!(gap.why == Why::NotRequested && gap.detail.contains("--node"), "{gap:?}");
    let configured = Index::new(Some("other".to_owned()), "n1".to_owned(), Arc::default());
    assert_eq!(configured.needed(Resource::Pods), Some(Selection::Node("other".to_owned())));
}

#[test]
fn endpoints_are_known_only_for_the_services_that_were_read() {
    let (mut index, now) = index();
    assert_eq!(index.needed(Resource::EndpointSlices), Some(names(&[])), "a NodePort alone needs no endpoints");
    let Selection::EndpointsOf(web) = names(&["web"]) else { unreachable!("names are names") };
    let needed = Arc::clone(&web);
    assert!(index.apply(Resource::EndpointSlices, Update::EndpointsNeeded(Arc::clone(&web)), now));
    assert!(!index.apply(Resource::EndpointSlices, Update::EndpointsNeeded(web), now), "the same names");
    assert_eq!(index.needed(Resource::EndpointSlices), Some(names(&["web"])));
    assert!(!index.holds_endpoints_of(&needed));
    index.apply(
        Resource::EndpointSlices,
        Update::Replaced(names(&["web"]), objects("EndpointSlice", &[&slice("web")])),
        now,
    );
    assert!(index.holds_endpoints_of(&needed));
    let facts = index.facts();
    let slices = facts.endpoint_slices_with("web").expect("slices");
    assert_eq!(slices.iter().map(|slice| slice.service.as_str()).collect::<Vec<_>>(), ["web"]);
    assert_eq!(
        facts.endpoint_slices_with("other").map_err(|gap| gap.why),
        Err(Why::NotRequested),
        "not requested is not none"
    );

    let Selection::EndpointsOf(both) = names(&["other", "web"]) else { unreachable!("names are names") };
    index.apply(Resource::EndpointSlices, Update::EndpointsNeeded(Arc::clone(&both)), now);
    assert!(!index.holds_endpoints_of(&both));
    assert_eq!(index.facts().endpoint_slices.gap().map(|gap| gap.why), Some(Why::NotYet));

    index.apply(Resource::EndpointSlices, Update::EndpointsNeeded(Arc::default()), now);
    assert!(
        index.holds_endpoints_of(&needed) && index.facts().endpoint_slices.seen().is_some(),
        "fewer names are covered"
    );
}

#[test]
fn a_failure_is_a_change_if_needed_endpoints_are_unknown() {
    let (mut index, now) = index();
    let none = Update::Replaced(names(&[]), ObjectBatch::default());
    index.apply(Resource::EndpointSlices, none, now);
    assert!(!index.apply(Resource::EndpointSlices, Update::Failed(expired()), now), "all needed endpoints are known");
    index.apply(Resource::EndpointSlices, Update::Confirmed, now);
    let Selection::EndpointsOf(web) = names(&["web"]) else { unreachable!("names are names") };
    index.apply(Resource::EndpointSlices, Update::EndpointsNeeded(Arc::clone(&web)), now);
    assert!(index.apply(Resource::EndpointSlices, Update::Failed(expired()), now), "the facts have the reason");
    assert!(index.holds_endpoints_of(&web));
    assert!(!index.apply(Resource::EndpointSlices, Update::Failed(expired()), now), "once");
}

#[test]
fn endpoint_slices_outside_of_the_selection_are_not_kept() {
    let (mut index, now) = index();
    let selection = names(&["kubernetes", "web"]);
    let found = objects_within(&selection, "EndpointSlice", &[&slice("web"), &slice("quiet")]);
    assert_eq!(found.objects.keys().map(AsRef::as_ref).collect::<Vec<&str>>(), ["d/web-x"]);
    index.apply(Resource::EndpointSlices, Update::Replaced(selection, found), now);
    let apply =
        |index: &mut Index, slice: &str| index.apply(Resource::EndpointSlices, applied("EndpointSlice", slice), now);
    assert!(!apply(&mut index, &slice("quiet")));
    assert!(apply(&mut index, &slice("web").replace("IPv4", "IPv6")));
    assert!(
        apply(&mut index, &slice("web").replace(r#"e":"web""#, r#"e":"quiet""#)),
        "the slice belonged to the Service before"
    );
    assert_eq!(index.facts().endpoint_slices.get().expect("slices").len(), 0);
}

#[test]
fn an_answer_that_is_too_large_is_a_failure_like_any_other() {
    let (mut index, now) = index();
    let too_much = || Update::Failed(Error::TooMuch { request: "GET x".to_owned(), what: "it is large".to_owned() });
    assert!(!index.apply(Resource::Services, too_much(), now), "the known objects are kept");
    assert!(index.facts().services.seen().is_some());
    assert!(index.apply(Resource::Pods, too_much(), now));
    assert_eq!(
        index.facts().pods.gap().map(|gap| (gap.why, gap.detail.as_str())),
        Some((Why::TooMuch, "GET x: it is large"))
    );
}
