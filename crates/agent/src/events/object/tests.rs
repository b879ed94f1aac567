use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use portreeve_facts::Protocol;
use portreeve_rules::findings::{Evidence, RuleId, Vantage};

fn place() -> Place {
    Place {
        node: "n1".to_owned(),
        node_uid: Some("uid-n1".to_owned()),
        kubernetes_uid: Some("uid-k".to_owned()),
        nodes: None,
        agents: None,
    }
}

fn subject(kind: SubjectKind, namespace: Option<&str>, name: &str, uid: Option<&str>) -> Subject {
    Subject { kind, namespace: namespace.map(str::to_owned), name: name.to_owned(), uid: uid.map(str::to_owned) }
}

fn web() -> Finding {
    let rule = RuleId("listener-on-node-port");
    let subject = subject(SubjectKind::Service, Some("shop"), "web", Some("uid-web"));
    let evidence = Evidence::new(Severity::Critical, "nginx listens on 30080.").remedy(Step::advice("stop nginx"));
    finding(Key { rule, variant: "loses", subject, port: Some(30080), protocol: Some(Protocol::Tcp) }, evidence)
}

fn finding(key: Key, evidence: Evidence) -> Finding {
    Finding { key, evidence, since: Timestamp::from_microsecond(1_700_000_000_000_001).expect("a time") }
}

fn event(finding: &Finding) -> PlannedEvent {
    PlannedEvent::of(None, finding, &place()).expect("a uid")
}

fn name(finding: &Finding) -> String {
    event(finding).names.in_hour(Timestamp::UNIX_EPOCH)
}

fn json(event: &PlannedEvent) -> serde_json::Value {
    serde_json::to_value(event.open("portreeve.7", web().since)).expect("JSON")
}

#[test]
fn a_service_has_its_event_in_its_namespace_and_the_node_beside_it() {
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {
            "name": "portreeve.7", "namespace": "shop",
            "annotations": {"portreeve/finding": "listener-on-node-port/loses"},
        },
        "eventTime": "2023-11-14T22:13:20.000001Z",
        "reportingController": "portreeve", "reportingInstance": "portreeve-n1",
        "action": "CheckPorts", "reason": "ListenerOnNodePort", "type": "Warning",
        "note": "On node n1: nginx listens on 30080. All affected nodes: `kubectl portreeve check -n shop --rule \
                 listener-on-node-port/loses -o wide` (at most five nodes write an Event in an hour). Who answers on the \
                 port: `kubectl portreeve owner 30080/tcp`. Remedy: stop nginx",
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "uid-web"},
        "related": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"},
    });
    assert_eq!(json(&event(&web())), expected);
}

#[test]
fn a_node_has_its_event_in_default() {
    let key = Key {
        rule: RuleId("proxy-near-fd-limit"),
        variant: "near",
        subject: Subject::node("n1", Some("uid-n1")),
        port: None,
        protocol: None,
    };
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {
            "name": "portreeve.7", "namespace": "default",
            "annotations": {"portreeve/finding": "proxy-near-fd-limit/near"},
        },
        "eventTime": "2023-11-14T22:13:20.000001Z",
        "reportingController": "portreeve", "reportingInstance": "portreeve-n1",
        "action": "CheckPorts", "reason": "ProxyNearFdLimit", "type": "Warning",
        "note": "it is full.",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"},
        "related": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"},
    });
    let finding = finding(key, Evidence::new(Severity::Warning, "it is full."));
    assert_eq!(json(&event(&finding)), expected);
}

fn crowded(subject: Subject) -> Finding {
    let key = Key { rule: RuleId("node-port-range-crowded"), variant: "crowded", subject, port: None, protocol: None };
    finding(key, Evidence::new(Severity::Warning, "no room.").in_cluster())
}

#[test]
fn a_fact_of_the_cluster_is_about_the_kubernetes_service_without_a_node() {
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {
            "name": "portreeve.7", "namespace": "default",
            "annotations": {"portreeve/finding": "node-port-range-crowded/crowded"},
        },
        "eventTime": "2023-11-14T22:13:20.000001Z",
        "reportingController": "portreeve", "reportingInstance": "portreeve-n1",
        "action": "CheckPorts", "reason": "NodePortRangeCrowded", "type": "Warning",
        "note": "no room.",
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "default", "name": "kubernetes", "uid": "uid-k"},
    });
    assert_eq!(json(&event(&crowded(Subject::cluster()))), expected);
}

#[test]
fn the_end_is_a_normal_event_of_its_own() {
    let expected = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {
            "name": "portreeve.7.resolved", "namespace": "shop",
            "annotations": {"portreeve/finding": "listener-on-node-port/loses"},
        },
        "eventTime": "2023-11-14T22:13:20.000001Z",
        "reportingController": "portreeve", "reportingInstance": "portreeve-n1",
        "action": "CheckPorts", "reason": "ListenerOnNodePortResolved", "type": "Normal",
        "note": "Resolved on node n1: nginx listens on 30080. Nodes that are still affected: `kubectl portreeve check \
                 -n shop --rule listener-on-node-port/loses -o wide`",
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "uid-web"},
        "related": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"},
    });
    let over = event(&web()).over("portreeve.7", web().since);
    assert_eq!(serde_json::to_value(over).expect("JSON"), expected);
}

#[test]
fn a_name_changes_with_what_the_finding_is_about_and_with_what_it_means() {
    let changes: [fn(&mut Finding); 9] = [
        |it| it.key.rule = RuleId("other"),
        |it| it.key.variant = "trap",
        |it| it.key.subject.uid = Some("recreated".to_owned()),
        |it| it.key.port = None,
        |it| it.key.port = Some(30081),
        |it| it.key.protocol = Some(Protocol::Udp),
        |it| it.evidence.severity = Severity::Warning,
        |it| it.evidence.scope = Scope::Cluster,
        |it| it.evidence.outcome = "refused",
    ];
    let mut names = BTreeSet::from([name(&web())]);
    for (index, change) in changes.iter().enumerate() {
        let mut changed = web();
        change(&mut changed);
        assert!(names.insert(name(&changed)), "change {index}");
    }
}

#[test]
fn a_name_does_not_change_with_a_word_a_free_port_a_value_or_a_time() {
    let changes: [fn(&mut Finding); 6] = [
        |it| it.evidence.affects = [Vantage::Remote].into(),
        |it| it.since = Timestamp::UNIX_EPOCH,
        |it| it.evidence.values.push(("pid", "7".to_owned())),
        |it| it.evidence.summary.push_str(" Really."),
        |it| it.evidence = it.evidence.clone().remedy(Step::advice("give the Service nodePort 30002")),
        |it| it.evidence.remedies.clear(),
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut changed = web();
        change(&mut changed);
        assert_eq!(name(&changed), name(&web()), "change {index}");
        assert!(event(&changed).is_same_as(&event(&web())));
    }
}

#[test]
fn a_fact_of_the_cluster_has_one_name_a_node_its_own_and_what_nodes_share_five() {
    let mut cluster = web();
    cluster.evidence.scope = Scope::Cluster;
    let nodes = || (0..100).map(|number| format!("n{number}"));
    let own =
        nodes().map(|node| Finding { key: Key { subject: Subject::node(&node, Some("uid")), ..web().key }, ..web() });
    let names = |findings: Vec<Finding>| {
        let names = findings.iter().zip(nodes()).map(|(finding, node)| {
            let place = Place { node, ..place() };
            PlannedEvent::of(None, finding, &place).expect("a uid").names.in_hour(Timestamp::UNIX_EPOCH)
        });
        names.collect::<BTreeSet<String>>().len()
    };
    let counts = [names(vec![cluster; 100]), names(vec![web(); 100]), names(own.collect())];
    assert_eq!(counts, [1, 5, 100]);
}

#[test]
fn the_command_names_the_agents_namespace_if_it_is_another() {
    let place = |agents: Option<&str>| Place { agents: agents.map(str::to_owned), ..place() };
    let usual = "kubectl portreeve check -n shop --rule listener-on-node-port/loses -o wide";
    assert_eq!(how_to_see_all(&web().key, &place(None)), usual);
    assert_eq!(how_to_see_all(&web().key, &place(Some("portreeve"))), usual);
    let there = format!("{usual} --agent-namespace monitoring");
    assert_eq!(how_to_see_all(&web().key, &place(Some("monitoring"))), there);
}

#[test]
fn how_to_see_all_nodes_is_cut_from_no_note() {
    let mut finding = web();
    finding.evidence.summary = "long ".repeat(1000);
    let planned = event(&finding);
    for event in [planned.open("a", finding.since), planned.over("a", finding.since)] {
        let note = event.note.expect("a note");
        assert!(
            note.len() <= NOTE
                && note.contains("`kubectl portreeve check -n shop --rule listener-on-node-port/loses -o wide`"),
            "{note}"
        );
    }
}

#[test]
fn the_command_about_the_port_cuts_neither_the_sentence_nor_the_remedy() {
    let noted = |words: usize| {
        let mut finding = web();
        finding.evidence.summary = "long ".repeat(words);
        event(&finding).event.note.expect("a note")
    };
    let command = " Who answers on the port: `kubectl portreeve owner 30080/tcp`. Remedy: stop nginx";
    assert!(noted(140).ends_with(command), "{}", noted(140));
    let long = noted(160);
    assert!(!long.contains("owner") && long.ends_with(" Remedy: stop nginx"), "{long}");
    assert_eq!(long.matches("long").count(), 160, "{long}");
    let place = Place { agents: Some("monitoring".to_owned()), ..place() };
    let key = Key { protocol: None, ..web().key };
    let owner = "kubectl portreeve owner 30080 --agent-namespace monitoring";
    assert_eq!(how_to_see_the_port(&key, &place).as_deref(), Some(owner));
    assert_eq!(how_to_see_the_port(&crowded(Subject::cluster()).key, &place), None);
}

#[test]
fn an_object_without_a_uid_has_no_event() {
    let mut finding = web();
    finding.key.subject.uid = None;
    assert_eq!(PlannedEvent::of(None, &finding, &place()), None);
    let unseen = Place { kubernetes_uid: None, ..place() };
    assert_eq!(PlannedEvent::of(None, &crowded(Subject::cluster()), &unseen), None);
}

#[test]
fn lines_of_a_note_are_joined_by_a_space() {
    assert_eq!(note("a.", Some("b\nc\u{202e}d\u{1b}[31m")), "a. Remedy: b cd[31m");
}

#[test]
fn a_port_that_is_free_in_this_scan_is_in_no_note_and_no_name() {
    let of = |free: u16| {
        let patch = Step::command(format!("kubectl patch {free}")).lasting("give Service shop/web another nodePort");
        let mut finding = web();
        finding.evidence.remedies = vec![patch.into()];
        event(&finding)
    };
    assert_eq!(of(30000), of(30001));
    let note = of(30000).event.note.expect("a note");
    assert!(note.ends_with(" Remedy: give Service shop/web another nodePort"), "{note}");
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
        let planned = PlannedEvent::of(None, &finding, &place).expect("a uid");
        let name = planned.names.in_hour(finding.since);
        for event in [planned.over(&name, finding.since), planned.open(&name, finding.since)] {
            let length = |text: &Option<String>| text.as_ref().expect("it is there").len();
            prop_assert!(length(&event.note) <= NOTE);
            for word in [&event.reporting_instance, &event.reason, &event.action] {
                prop_assert!(length(word) <= WORD);
            }
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.';
            let name = event.metadata.name.expect("a name");
            prop_assert!(name.len() <= 253 && name.bytes().all(plain));
        }
    }
}

/// Long texts. The texts contain invisible characters, characters that reorder text, and characters of four bytes.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,40}", "[a-zäß日🦀\n\t\u{202e}\u{200b}\u{feff}\u{2066}\u{1b}]{0,1500}"]
}
