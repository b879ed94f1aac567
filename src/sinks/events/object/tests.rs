use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{
    facts::Protocol,
    findings::{Evidence, Key, RuleId, Subject},
};

fn place() -> Place {
    Place { node: "n1".to_owned(), node_uid: Some("uid-n1".to_owned()), kubernetes_uid: Some("uid-k".to_owned()) }
}

fn subject(kind: SubjectKind, namespace: Option<&str>, name: &str, uid: Option<&str>) -> Subject {
    Subject { kind, namespace: namespace.map(str::to_owned), name: name.to_owned(), uid: uid.map(str::to_owned) }
}

fn web() -> Finding {
    let rule = RuleId("listener-on-node-port");
    let subject = subject(SubjectKind::Service, Some("shop"), "web", Some("uid-web"));
    let evidence = Evidence::new(Severity::Critical, "nginx listens on 30080.").remedy(Step::advice("stop nginx"));
    finding(Key { rule, subject, port: Some(30080), protocol: Some(Protocol::Tcp) }, evidence)
}

fn finding(key: Key, evidence: Evidence) -> Finding {
    Finding { key, evidence, since: Timestamp::from_microsecond(1_700_000_000_000_001).expect("a time") }
}

fn event(finding: &Finding, scope: Scope) -> Event {
    Event::of(finding, scope, &place()).expect("a uid")
}

fn json(event: &Event) -> serde_json::Value {
    serde_json::to_value(event).expect("JSON")
}

#[test]
fn a_service_has_its_event_in_its_namespace_and_the_node_beside_it() {
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "portreeve.032ee3c4e07961530f8d0f92505bccc2", "namespace": "shop"},
        "eventTime": "2023-11-14T22:13:20.000001Z",
        "reportingController": "portreeve", "reportingInstance": "portreeve-n1",
        "action": "CheckPorts", "reason": "ListenerOnNodePort", "type": "Warning",
        "note": "nginx listens on 30080. Remedy: stop nginx",
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "uid-web"},
        "related": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"},
    });
    assert_eq!(json(&event(&web(), Scope::Node)), expected);
}

#[test]
fn a_node_has_its_event_in_default() {
    let key = Key {
        rule: RuleId("proxy-near-fd-limit"),
        subject: Subject::node("n1", Some("uid-n1")),
        port: None,
        protocol: None,
    };
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "portreeve.8619ad9d8cbefd5c5a9fc024fa42ec89", "namespace": "default"},
        "eventTime": "2023-11-14T22:13:20.000001Z",
        "reportingController": "portreeve", "reportingInstance": "portreeve-n1",
        "action": "CheckPorts", "reason": "ProxyNearFdLimit", "type": "Warning",
        "note": "it is full.",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"},
        "related": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"},
    });
    let finding = finding(key, Evidence::new(Severity::Warning, "it is full."));
    assert_eq!(json(&event(&finding, Scope::Node)), expected);
}

fn crowded(subject: Subject) -> Finding {
    let key = Key { rule: RuleId("node-port-range-crowded"), subject, port: None, protocol: None };
    finding(key, Evidence::new(Severity::Warning, "no room."))
}

#[test]
fn a_fact_of_the_cluster_hangs_on_the_kubernetes_service_without_a_node() {
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "portreeve.e173a68c7a1c188b35e538892e7548a3", "namespace": "default"},
        "eventTime": "2023-11-14T22:13:20.000001Z",
        "reportingController": "portreeve", "reportingInstance": "portreeve-n1",
        "action": "CheckPorts", "reason": "NodePortRangeCrowded", "type": "Warning",
        "note": "no room.",
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "default", "name": "kubernetes", "uid": "uid-k"},
    });
    assert_eq!(json(&event(&crowded(Subject::cluster()), Scope::Cluster)), expected);
}

#[test]
fn the_end_is_a_normal_event_of_its_own() {
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "portreeve.032ee3c4e07961530f8d0f92505bccc2.resolved", "namespace": "shop"},
        "eventTime": "2023-11-14T22:13:20.000001Z",
        "reportingController": "portreeve", "reportingInstance": "portreeve-n1",
        "action": "CheckPorts", "reason": "ListenerOnNodePortResolved", "type": "Normal",
        "note": "Resolved: nginx listens on 30080.",
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "uid-web"},
        "related": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"},
    });
    assert_eq!(json(&event(&web(), Scope::Node).resolved()), expected);
}

#[test]
fn a_series_has_microseconds_even_where_they_are_zero() {
    let series = Series { count: 2, last: Timestamp::from_second(1_700_000_000).expect("a time") };
    let expected = json!({"count": 2, "lastObservedTime": "2023-11-14T22:13:20.000000Z"});
    assert_eq!(serde_json::to_value(series).expect("JSON"), expected);
}

#[test]
fn everything_that_an_event_says_is_in_its_name_and_a_time_is_not() {
    let changes: [fn(&mut Finding); 6] = [
        |it| it.key.rule = RuleId("other"),
        |it| it.key.subject.uid = Some("recreated".to_owned()),
        |it| it.key.port = None,
        |it| it.key.protocol = Some(Protocol::Udp),
        |it| it.evidence.severity = Severity::Warning,
        |it| it.evidence.summary.push('!'),
    ];
    let name = |finding: &Finding, scope| event(finding, scope).metadata.name;
    for (index, change) in changes.iter().enumerate() {
        let mut changed = web();
        change(&mut changed);
        assert_ne!(name(&changed, Scope::Node), name(&web(), Scope::Node), "change {index}");
    }
    let mut later = web();
    later.since = Timestamp::UNIX_EPOCH;
    later.evidence.values.push(("pid", "7".to_owned()));
    assert_eq!(name(&later, Scope::Node), name(&web(), Scope::Node));
}

#[test]
fn only_a_fact_of_the_cluster_has_the_same_name_on_every_node() {
    let other = Place { node: "n2".to_owned(), ..place() };
    let name = |scope, place: &Place| Event::of(&web(), scope, place).expect("a uid").metadata.name;
    assert_eq!(name(Scope::Cluster, &place()), name(Scope::Cluster, &other));
    assert_ne!(name(Scope::Node, &place()), name(Scope::Node, &other));
    assert_ne!(name(Scope::Node, &place()), name(Scope::Cluster, &place()));
}

#[test]
fn an_object_without_a_uid_has_no_event() {
    let mut finding = web();
    finding.key.subject.uid = None;
    assert_eq!(Event::of(&finding, Scope::Node, &place()), Err(NoUid));
    let unseen = Place { kubernetes_uid: None, ..place() };
    assert_eq!(Event::of(&crowded(Subject::cluster()), Scope::Cluster, &unseen), Err(NoUid));
}

#[test]
fn lines_of_a_note_are_joined_by_a_space() {
    assert_eq!(note("a.", Some("b\nc\u{202e}d\u{1b}[31m")), "a. Remedy: b cd[31m");
}

#[test]
fn a_port_that_is_free_in_this_look_is_in_no_note_and_no_name() {
    let of = |free: u16| {
        let patch = Step::command(format!("kubectl patch {free}")).lasting("give Service shop/web another nodePort");
        let mut finding = web();
        finding.evidence.remedies = vec![patch.into()];
        event(&finding, Scope::Node)
    };
    assert_eq!(of(30000), of(30001));
    assert_eq!(of(30000).note, "nginx listens on 30080. Remedy: give Service shop/web another nodePort");
}

proptest! {
    #[test]
    fn a_note_is_bounded_whole_and_clean(summary in any_text(), remedy in proptest::option::of(any_text())) {
        let once = note(&summary, remedy.as_deref());
        prop_assert!(once.len() <= NOTE);
        prop_assert!(!once.chars().any(char::is_control));
        let hides = once.contains(['\u{202e}', '\u{200b}', '\u{feff}', '\u{2066}']);
        prop_assert!(!hides);
        prop_assert_eq!(note(&once, None), once.clone());
        let whole = clean(&summary.replace(['\n', '\t'], " "), NOTE);
        prop_assert!(once.starts_with(&whole), "what comes first is cut last, and on a character boundary");
    }

    #[test]
    fn every_event_is_within_the_limits_of_the_server(node in any_text(), summary in any_text()) {
        let mut finding = web();
        finding.evidence.summary = summary;
        let place = Place { node, ..place() };
        let opening = Event::of(&finding, Scope::Node, &place).expect("a uid");
        for event in [opening.resolved(), opening] {
            prop_assert!(event.note.len() <= NOTE);
            prop_assert!(event.reporter().len() <= WORD && event.reason.len() <= WORD && event.action.len() <= WORD);
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.';
            prop_assert!(event.metadata.name.len() <= 253 && event.metadata.name.bytes().all(plain));
        }
    }
}

/// Long ones, with everything that hides, reorders or takes four bytes.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,40}", "[a-zäß日🦀\n\t\u{202e}\u{200b}\u{feff}\u{2066}\u{1b}]{0,1500}"]
}
