//! Claims before and after a change, and on many nodes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::ports_schema;
use portreeve_dataplane::{Answered, ClaimKind, Claimant, Outcome, Stratum};
use portreeve_facts::{Vantage, healthy::ip};
use portreeve_rules::findings::{Evidence, RuleId, SubjectKind};

fn service(name: &str) -> Subject {
    Subject { kind: SubjectKind::Service, namespace: Some("shop".to_owned()), name: name.to_owned(), uid: None }
}

fn finding(named: &str, subject: Subject, severity: Severity, affects: &[Vantage]) -> Finding {
    let named: &'static str = Box::leak(named.to_owned().into_boxed_str());
    let (rule, variant) = named.split_once('/').expect("an id and a variant");
    let port = subject.kind.is_object().then_some(30080);
    let key = Key { rule: RuleId(rule), variant, subject, port, protocol: port.map(|_| Protocol::Tcp) };
    let evidence = Evidence::new(severity, format!("{variant} is wrong")).affects(affects.iter().copied());
    Finding { key, evidence, since: Snapshot::healthy().at }
}

fn of_web(named: &str, severity: Severity) -> Finding {
    finding(named, service("web"), severity, &[])
}

type World = (Vec<Finding>, Vec<Finding>);

/// The findings of one state, and the keys of the findings that the rules could not judge in this state.
fn judged((findings, held): World) -> (Board, BTreeSet<Key>) {
    (Board { findings, unknown: Vec::new() }, held.into_iter().map(|it| it.key).collect())
}

fn answered(outcome: Result<Outcome, Gap>) -> Ownership {
    let by = |outcome: &Outcome| usize::from(*outcome == Outcome::Listener);
    let claimant = |claim, name: &str| Claimant { claim, name: name.to_owned(), detail: String::new() };
    Ownership {
        protocol: Protocol::Tcp,
        port: 30080,
        beside: Vec::new(),
        claimants: vec![
            claimant(ClaimKind::NodePort, "Service shop/web port http"),
            claimant(ClaimKind::Listener, "process python3 on 0.0.0.0:30080/tcp"),
        ],
        answers: vec![Answered {
            from: Vantage::Loopback,
            to: ip("127.0.0.1"),
            by: outcome.as_ref().ok().map(by),
            outcome,
            losers: Vec::new(),
            assumed: Stratum::Any,
        }],
        proxy_mode: None,
        mode: String::new(),
        unread: Vec::new(),
        redirections: None,
        no_proxy: None,
    }
}

fn take(what_if: &mut WhatIf, node: &str, worlds: [World; 2], ports: &[(Subject, [Ownership; 2])]) {
    let mut snapshot = Snapshot::healthy();
    snapshot.cluster.node_name = Some(node.to_owned());
    what_if.take([&snapshot; 2], &worlds.map(judged), ports);
}

fn document(what_if: WhatIf) -> (WhatIfDocument, Value) {
    let document = what_if.finish(vec!["proxy_mode=nftables".to_owned()], Vec::new());
    let mut out = Vec::new();
    document.write_json(&mut out).expect("a document");
    let json: Value = serde_json::from_slice(&out).expect("JSON");
    let schema = jsonschema::validator_for(&ports_schema().to_value()).expect("a schema");
    let wrong: Vec<String> = schema.iter_errors(&json).take(3).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    (document, json)
}

fn difference(now: World, then: World, ports: &[(Subject, [Ownership; 2])]) -> (WhatIfDocument, Value) {
    let mut what_if = WhatIf::default();
    take(&mut what_if, "n1", [now, then], ports);
    document(what_if)
}

fn ports(now: Outcome, then: Outcome) -> [(Subject, [Ownership; 2]); 1] {
    [(service("web"), [answered(Ok(now)), answered(Ok(then))])]
}

#[test]
fn a_claim_is_one_row_with_its_findings_and_its_answers() {
    let now = (vec![of_web("listener-on-node-port/loses", Severity::Critical)], Vec::new());
    let then = (vec![of_web("listener-on-node-port/trap", Severity::Info)], Vec::new());
    let (document, json) = difference(now, then, &ports(Outcome::Pod, Outcome::Listener));
    assert_eq!(json["claims"].as_array().map(Vec::len), Some(1), "{json:#}");
    let row = &json["claims"][0];
    assert_eq!((&row["how"], &row["claim"]["port"], &row["nodes"]), (&json!("stays"), &json!(30080), &json!(["n1"])));
    let change = &row["findings"][0];
    assert_eq!(
        change["difference"],
        "info listener-on-node-port/trap: trap instead of loses; info instead of critical"
    );
    assert!(change["now"]["since"].is_string() && change["then"].get("since").is_none(), "{json:#}");
    let answer = &row["answers"][0];
    assert_eq!((&answer["now"], &answer["then"]), (&json!("pod"), &json!("process")));
    assert_eq!(document.result(), CheckResult::Findings, "a client is answered by another one");
}

#[test]
fn what_is_the_same_in_both_worlds_is_no_row() {
    let world = || (vec![of_web("listener-on-node-port/loses", Severity::Critical)], Vec::new());
    let (document, json) = difference(world(), world(), &ports(Outcome::Pod, Outcome::Pod));
    assert_eq!((&json["claims"], document.result()), (&json!([]), CheckResult::Clear));
}

#[test]
fn another_sentence_is_a_difference_and_nodes_with_the_same_sentence_are_one_row() {
    let (mut what_if, named) = (WhatIf::default(), "external-ip-conflict/node-address");
    for (node, words) in [("n1", "n1 is cut off"), ("n2", "n2 is cut off"), ("n3", "only the ports are redirected")] {
        let mut then = (vec![of_web(named, Severity::Info)], vec![]);
        then.0[0].evidence.summary = words.to_owned();
        take(&mut what_if, node, [(vec![of_web(named, Severity::Info)], vec![]), then], &[]);
    }
    let (document, json) = document(what_if);
    let rows: Vec<_> = document.claims.iter().map(|it| it.nodes.join(" ")).collect();
    assert_eq!(rows, ["n1 n2", "n3"], "{json:#}");
    let change = &json["claims"][0]["findings"][0];
    assert_eq!(change["difference"], "info external-ip-conflict/node-address: another sentence");
    assert_eq!((&change["how"], &change["then"]["summary"]), (&json!("stays"), &json!("n1 is cut off")));
    assert_eq!(document.result(), CheckResult::Clear, "no finding is worse");
}

#[test]
fn a_claim_begins_or_ends_with_the_first_and_the_last_of_its_findings() {
    let (loses, taken) = ("listener-on-node-port/loses", "connection-on-port/answers-taken");
    let one = || (vec![of_web(loses, Severity::Warning)], Vec::new());
    let two = || (vec![of_web(loses, Severity::Warning), of_web(taken, Severity::Info)], Vec::new());
    for (now, then, how, of_finding, result) in [
        (World::default(), one(), "begins", "begins", CheckResult::Findings),
        (one(), World::default(), "ends", "ends", CheckResult::Clear),
        (one(), two(), "stays", "begins", CheckResult::Clear),
        (two(), one(), "stays", "ends", CheckResult::Clear),
    ] {
        let (document, json) = difference(now, then, &[]);
        let row = &json["claims"][0];
        assert_eq!((&row["how"], &row["findings"][0]["how"]), (&json!(how), &json!(of_finding)), "{json:#}");
        assert_eq!(row["findings"].as_array().map(Vec::len), Some(1), "the other one does not change");
        assert_eq!(document.result(), result, "{json:#}");
    }
}

#[test]
fn settings_of_a_node_are_a_row_each() {
    let of_node = |named: &str| finding(named, Subject::node("n1", None), Severity::Info, &[]);
    let then = (vec![of_node("ephemeral-range-overlap/servers"), of_node("node-port-range-mismatch/daemons")], vec![]);
    let (_, json) = difference(World::default(), then, &[]);
    let rules: Vec<&Value> = json["claims"].as_array().expect("rows").iter().map(|it| &it["claim"]["rule"]).collect();
    assert_eq!(rules, ["ephemeral-range-overlap", "node-port-range-mismatch"]);
}

#[test]
fn what_could_not_be_judged_neither_ends_nor_surely_begins() {
    let one = || vec![of_web("listener-on-node-port/loses", Severity::Critical)];
    let (document, json) = difference((one(), vec![]), (vec![], one()), &[]);
    let row = &json["claims"][0];
    assert_eq!((&row["how"], &row["findings"][0]["judged"]), (&json!("stays"), &json!(false)), "{json:#}");
    assert_eq!(document.result(), CheckResult::NotChecked);
    let (document, json) = difference((vec![], one()), (one(), vec![]), &[]);
    let row = &json["claims"][0];
    assert_eq!((&row["how"], &row["findings"][0]["judged"]), (&json!("begins"), &json!(false)), "{json:#}");
    assert!(row["findings"][0]["difference"].as_str().expect("words").ends_with("may exist already"), "{json:#}");
    assert_eq!(document.result(), CheckResult::Findings);
}

#[test]
fn who_is_affected_is_compared_where_answers_are_known() {
    let loses = |affects: &[Vantage]| {
        (vec![finding("listener-on-node-port/loses", service("web"), Severity::Critical, affects)], vec![])
    };
    let (both, one) = ([Vantage::Remote, Vantage::Loopback], [Vantage::Remote]);
    let words = |now: &[Vantage], then: &[Vantage], ports: &[_]| {
        let (_, json) = difference(loses(now), loses(then), ports);
        json["claims"][0]["findings"][0]["difference"].as_str().map(str::to_owned)
    };
    let sentence = |end: &str| Some(format!("critical listener-on-node-port/loses: {end}"));
    assert_eq!(words(&both, &one, &[]), sentence("its loopback is not affected any more"));
    assert_eq!(words(&one, &both, &[]), sentence("its loopback is affected, too"));
    assert_eq!(words(&[], &both, &[]), sentence("remote clients and its loopback are affected"));
    let gap = || Gap::new(Source::ProxyConfig, Why::Ambiguous, "two are possible");
    for worlds in [[Err(gap()), Ok(Outcome::Pod)], [Ok(Outcome::Pod), Err(gap())]] {
        let open = [(service("web"), worlds.map(answered))];
        assert_eq!(words(&both, &one, &open), None);
        assert_eq!(words(&[Vantage::Remote], &[], &open), sentence("remote clients are not affected any more"));
    }
}

#[test]
fn nodes_of_which_the_same_changes_are_one_row() {
    let mut what_if = WhatIf::default();
    for (node, pod, severity) in [
        ("n2", "edge-7d9c5b6f4-bbbbb", Severity::Warning),
        ("n1", "edge-7d9c5b6f4-xxxxx", Severity::Warning),
        ("n3", "edge-7d9c5b6f4-ccccc", Severity::Critical),
    ] {
        let subject = Subject { kind: SubjectKind::Pod, ..service(pod) };
        let then = (vec![finding("host-port-conflict/node-port", subject, severity, &[])], vec![]);
        take(&mut what_if, node, [World::default(), then], &ports(Outcome::Refused, Outcome::Pod));
    }
    what_if.leave_out("n4", &Gap::new(Source::Agent, Why::TimedOut, "no answer"));
    let (document, json) = document(what_if);
    let rows: Vec<_> = document.claims.iter().map(|it| it.nodes.join(" ")).collect();
    assert_eq!(rows, ["n3", "n1 n2", "n1 n2 n3"], "{json:#}");
    assert_eq!(json["claims"][1]["findings"][0]["then"]["subject"]["name"], "edge-7d9c5b6f4-xxxxx", "as n1 has it");
    assert_eq!(json["claims"][1]["subjects"].as_array().map(Vec::len), Some(2), "{json:#}");
    assert_eq!(json["claims"][2]["answers"][0]["nodes"], json!(["n1", "n2", "n3"]));
    assert_eq!((&json["agents"], &json["judged"]), (&json!(4), &json!(3)));
    assert_eq!(json["unknown"][0]["nodes"], json!(["n4"]));
}

#[test]
fn more_claims_than_are_kept_are_counted() {
    let mut what_if = WhatIf::default();
    let of = |number: usize| finding("a-rule/a-variant", service(&format!("s{number}")), Severity::Info, &[]);
    take(&mut what_if, "n1", [World::default(), ((0..MOST + 2).map(of).collect(), vec![])], &[]);
    let (document, json) = document(what_if);
    assert_eq!((document.claims.len(), document.result()), (MOST, CheckResult::NotChecked));
    let detail = json["unknown"][0]["detail"].as_str().expect("words");
    assert!(detail.starts_with("2 claims of this node are not included"), "{detail}");
}

#[test]
fn addresses_in_the_settings_are_no_cure_for_an_answer_that_is_not_known() {
    let at = |outcome: Result<Outcome, Gap>| {
        let mut ownership = answered(outcome);
        (ownership.answers[0].from, ownership.answers[0].to) = (Vantage::Remote, ip("192.0.2.2"));
        ownership
    };
    let gap = Gap::new(Source::ProxyConfig, Why::Ambiguous, "two are possible");
    for (then, cured) in [(Ok(Outcome::TimedOut), Some(Mode::Nftables)), (Err(gap), None)] {
        let mut what_if = WhatIf::default();
        let (now, then) = (at(Ok(Outcome::Listener)), at(then));
        let served = || Ok(at(Ok(Outcome::Pod)));
        what_if.take_cure(&Snapshot::healthy(), [&now, &then], Mode::Nftables, served).expect("answers");
        assert_eq!(document(what_if).0.kept_by_addresses, cured);
    }
}
