//! Tests of one report about several agents.

mod incidents;

use std::io::{self, Write};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::{CheckResult, Style, findings_document::Problem, findings_schema, write_fleet_rows, write_fleet_table};
use portreeve_facts::{Gap, Source, Why};
use portreeve_rules::{
    findings::{Scope, Severity},
    ids::Named,
};

fn finding(name: &str, severity: &str, subject: &Value) -> Value {
    let (rule, variant) = name.split_once('/').expect("an id and a variant");
    json!({
        "rule": rule, "variant": variant, "severity": severity, "scope": "node", "subject": subject, "port": 30080, "protocol": "tcp",
        "summary": "Something listens here.", "evidence": [{"name": "listener", "value": "0.0.0.0:30080"}],
        "affects": ["remote", "node"], "remedy": ["kubectl -n shop edit service web"], "since": "2026-11-21T12:00:00Z",
        "remedies": [{"steps": [{"kind": "command", "text": "kubectl -n shop edit service web"}]}],
    })
}

fn named(text: &str) -> Named {
    Named::parse(text).expect("a rule")
}

fn service(namespace: &str) -> Value {
    json!({"kind": "Service", "namespace": namespace, "name": "web", "uid": "u"})
}

fn listener(severity: &str) -> Value {
    finding("listener-on-node-port/loses", severity, &service("shop"))
}

fn reporting(node: &str, findings: &[Value]) -> AgentAnswer {
    let unknown = json!([{"source": "netfilter", "why": "not-permitted", "detail": "nft: needs NET_ADMIN"}]);
    answering(
        node,
        &json!({
            "schema": "portreeve.findings/v1", "findings": findings, "unknown": unknown,
            "nodes": [{"node": node, "version": "0.1.0", "lookedAt": "2026-11-21T12:00:00Z"}],
        }),
    )
}

fn answering(node: &str, answer: &Value) -> AgentAnswer {
    AgentAnswer { node: node.to_owned(), pod: format!("portreeve-{node}"), answer: Ok(answer.to_string().into_bytes()) }
}

fn without_answer(node: &str) -> AgentAnswer {
    let gap = Gap::new(Source::Agent, Why::Unreachable, "its pod is not Ready");
    AgentAnswer { node: node.to_owned(), pod: format!("portreeve-{node}"), answer: Err(gap) }
}

fn names(incident: &Incident) -> Vec<&str> {
    incident.nodes.iter().map(|node| &**node).collect()
}

fn now() -> Timestamp {
    "2026-11-21T12:00:30Z".parse().expect("a time")
}

fn fleet(answers: Vec<AgentAnswer>) -> Fleet {
    Fleet::of("portreeve", answers, &Wanted { document: true, ..Wanted::default() }, now())
}

fn text(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    write(&mut out).expect("memory can be written to");
    String::from_utf8(out).expect("UTF-8")
}

fn style() -> Style {
    Style { width: 100, colour: false, program: "kubectl portreeve".to_owned() }
}

#[test]
fn findings_count_more_than_silence_and_silence_more_than_nothing() {
    assert_eq!(
        fleet(vec![reporting("n1", &[listener("critical")]), without_answer("n2")]).result(),
        CheckResult::Findings
    );
    assert_eq!(
        fleet(vec![reporting("n1", &[listener("info")]), without_answer("n2")]).result(),
        CheckResult::NotChecked
    );
    assert_eq!(fleet(vec![reporting("n1", &[listener("info")])]).result(), CheckResult::Clear);
    assert_eq!(fleet(vec![]).result(), CheckResult::NotChecked, "no agent, no knowledge");
    let mut blind = reporting("n1", &[]);
    blind.answer = blind.answer.map(|answer| {
        let text = String::from_utf8(answer).expect("JSON");
        text.replace("netfilter", "services").replace("not-permitted", "unreachable").into_bytes()
    });
    assert_eq!(fleet(vec![blind]).result(), CheckResult::NotChecked, "an agent that does not see its cluster");
}

#[test]
fn what_is_filtered_neither_counts_nor_is_forgotten() {
    let all = || {
        vec![reporting(
            "n1",
            &[
                listener("critical"),
                finding("host-network-port-taken/agent", "warning", &json!({"kind": "Node", "name": "n1"})),
            ],
        )]
    };
    let of = |namespace: Option<&str>, min_severity| {
        let namespace = namespace.map(str::to_owned);
        Fleet::of("portreeve", all(), &Wanted { namespace, min_severity, ..Wanted::default() }, now())
    };
    let shop = of(Some("shop"), None);
    assert_eq!((shop.incidents.len(), shop.hidden, shop.result()), (1, 1, CheckResult::Findings));
    let elsewhere = of(Some("office"), None);
    assert_eq!((elsewhere.incidents.len(), elsewhere.hidden, elsewhere.result()), (0, 2, CheckResult::Clear));
    assert!(
        text(|out| write_fleet_table(&elsewhere, false, &style(), out))
            .starts_with("no port conflicts (2 not shown); 1 agent")
    );
    assert_eq!(of(None, Some(Severity::Critical)).incidents.len(), 1);
    let of_a_rule = Wanted { rules: vec![named("host-network-port-taken/agent")], ..Wanted::default() };
    let of_a_rule = Fleet::of("portreeve", all(), &of_a_rule, now());
    assert_eq!((of_a_rule.incidents.len(), of_a_rule.hidden), (1, 1));
}

#[test]
fn a_rule_that_was_not_judged_is_in_the_first_line() {
    let first = |rule: Option<&str>| {
        let mut answer = json!({
            "schema": "portreeve.findings/v1", "findings": [], "nodes": [{"node": "n1", "lookedAt": "2026-11-21T12:00:00Z"}],
            "unknown": [{"source": "pods", "why": "not-permitted", "detail": "forbidden", "variants": ["workload"]}],
        });
        if let Some(rule) = rule {
            answer["unknown"][0]["rule"] = json!(rule);
        }
        let fleet = fleet(vec![answering("n1", &answer)]);
        assert_eq!(fleet.result(), CheckResult::Clear, "a right that the profile lacks");
        text(|out| write_fleet_table(&fleet, false, &style(), out)).lines().next().map(str::to_owned).expect("a line")
    };
    let unread = first(Some("host-network-port-taken"));
    assert!(unread.starts_with("no port conflicts found, but some input was not read; 1 agent queried"), "{unread}");
    let evidence = first(None);
    assert!(evidence.starts_with("no port conflicts; 1 agent queried"), "{evidence}");
}

#[test]
fn the_first_line_has_the_number_of_ports_that_the_nodes_did_not_judge() {
    let answer = |node: &str, claims: usize, findings: &[Value], why: &str| {
        let unknown = json!([{
            "rule": "host-network-port-taken", "variants": ["listener"], "claims": claims, "source": "pods",
            "why": why, "detail": "no answer",
        }]);
        answering(
            node,
            &json!({
                "schema": "portreeve.findings/v1", "findings": findings, "unknown": unknown,
                "nodes": [{"node": node, "lookedAt": "2026-11-21T12:00:00Z"}],
            }),
        )
    };
    let late = ("timed-out", "the cluster: took too long");
    let forbidden = ("not-permitted", "Pods: not permitted");
    for (findings, (why, reason), start) in [
        (vec![], late, "not checked: no port conflicts found"),
        (vec![listener("info")], late, "1 info"),
        (vec![], forbidden, "no port conflicts found"),
        (vec![listener("critical")], forbidden, "1 critical"),
    ] {
        let fleet = fleet(vec![answer("n1", 2, &findings, why), answer("n2", 3, &findings, why)]);
        let table = text(|out| write_fleet_table(&fleet, false, &style(), out));
        let first = table.lines().next().expect("a line");
        let open = format!("; 5 ports or objects were not judged: {reason}");
        assert!(first.starts_with(start) && first.ends_with(&open), "{first}");
    }
}

#[test]
fn a_finding_of_the_cluster_is_there_once_with_the_nodes_that_report_it_and_the_words_of_the_worst() {
    let external = |severity: &str| {
        let mut finding = finding("external-ip-conflict/node-address", severity, &service("shop"));
        finding["scope"] = json!("cluster");
        finding["summary"] = json!(format!("It is {severity}."));
        finding
    };
    let severities = ["warning", "critical", "info"];
    let nodes = ["n1", "n2", "n3"];
    let fleet = fleet(nodes.into_iter().zip(severities).map(|(node, it)| reporting(node, &[external(it)])).collect());
    assert_eq!(fleet.incidents.len(), 1);
    assert_eq!(names(&fleet.incidents[0]), nodes);
    let Problem { severity, summary, .. } = &fleet.incidents[0].problem;
    assert_eq!((*severity, summary.as_str()), (Severity::Critical, "It is critical."));
    assert!(fleet.nodes.iter().all(|node| node.findings.as_ref().is_some_and(Vec::is_empty)));
}

#[test]
fn a_finding_of_a_node_is_each_nodes_own() {
    let local = finding("external-ip-conflict/node-address", "critical", &service("shop"));
    let other = finding("node-port-range-crowded/crowded", "warning", &json!({"kind": "Cluster", "name": "cluster"}));
    let fleet = fleet(["n1", "n2"].map(|node| reporting(node, &[local.clone(), other.clone()])).into());
    assert!(fleet.incidents.iter().all(|it| it.problem.scope == Scope::Node));
    for node in &fleet.nodes {
        let scopes: Vec<Scope> = node.findings.iter().flatten().map(|it| it.scope).collect();
        assert_eq!(scopes, [Scope::Node, Scope::Node]);
    }
    let rows = text(|out| write_fleet_rows(&fleet, &style(), out));
    assert_eq!(rows.lines().filter(|row| row.ends_with("n1,n2")).count(), 2, "and the table has it once: {rows}");
}

#[test]
fn a_table_says_what_where_and_who_was_silent() {
    let reported = fleet(vec![
        reporting("n1", &[listener("critical")]),
        reporting("n2", &[listener("critical")]),
        without_answer("n3"),
    ]);
    insta::assert_snapshot!(text(|out| write_fleet_table(&reported, false, &style(), out)), @r"
    1 critical; 2 agents queried, 1 could not be queried, oldest scan 30 s ago (n1); some ports or rules not judged

    SEVERITY  RULE                         SUBJECT           PORT       AFFECTS      NODES
    critical  listener-on-node-port/loses  Service shop/web  30080/tcp  remote,node  2 of 2 nodes: n1, n2

    CRITICAL  Service shop/web, port 30080/tcp, on 2 of 2 nodes: n1, n2
      Something listens here.

      Evidence  listener  0.0.0.0:30080
      Affects   remote clients, this node
      Since     2026-11-21T12:00:00Z, first on n1
      Remedy    kubectl -n shop edit service web
      Why       kubectl portreeve explain listener-on-node-port

    Could not be queried
      n3                    no answer: its pod is not Ready (pod portreeve-n3)

    Not read on these nodes
      2 less important inputs were not read; -o wide lists them

    This report is about 3 agents of namespace portreeve. Other nodes are not included.
    ");
    let rows = text(|out| write_fleet_rows(&reported, &style(), out));
    assert_eq!(rows, "critical  listener-on-node-port/loses  Service shop/web  30080/tcp  remote,node  n1,n2\n");
    let wide = text(|out| write_fleet_table(&reported, true, &style(), out));
    assert!(
        wide.contains("2 of 3 agents: n1, n2\n                        not permitted: nft: needs NET_ADMIN"),
        "{wide}"
    );
    assert_eq!(text(|out| reported.write_names(out)), "service/web\n");
}

#[test]
fn without_an_agent_nothing_is_well() {
    let table = text(|out| write_fleet_table(&fleet(vec![]), false, &style(), out));
    assert!(table.starts_with("Nothing is known: no agent is listed."), "{table}");
    assert!(table.contains("0 agents of namespace portreeve"), "{table}");
}

#[test]
fn the_document_is_what_its_schema_says() {
    let mut of_the_cluster = finding("external-ip-conflict/node-address", "warning", &service("shop"));
    of_the_cluster["scope"] = json!("cluster");
    let reported = fleet(vec![
        reporting("n1", &[listener("critical"), of_the_cluster]),
        without_answer("n2"),
        answering("n3", &json!("nonsense")),
    ]);
    let schema = findings_schema().to_value();
    let document: Value = serde_json::from_str(&text(|out| reported.write_json(out))).expect("JSON");
    jsonschema::validate(&schema, &document).unwrap_or_else(|error| panic!("{error}: {document:#}"));
    assert_eq!(document["findings"][1]["scope"], "cluster");
    assert_eq!(document["nodes"][0]["findings"][0]["scope"], "node");
    assert_eq!(document["nodes"][1].get("findings"), None, "not asked is not well");
    let unknown = document["unknown"].as_array().expect("a list");
    let of_n3: Vec<_> = unknown.iter().filter(|it| it["node"] == "n3").map(|it| &it["why"]).collect();
    assert_eq!(of_n3, ["malformed"]);
    let yaml: Value = serde_saphyr::from_str(&text(|out| reported.write_yaml(out))).expect("YAML");
    assert_eq!(yaml, document);
}

#[test]
fn only_the_time_of_a_look_is_no_change() {
    let at = |time: &str| {
        let mut answer = reporting("n1", &[listener("critical")]);
        answer.answer = answer.answer.map(|bytes| {
            String::from_utf8(bytes)
                .expect("JSON")
                .replace("\"lookedAt\":\"2026-11-21T12:00", &format!("\"lookedAt\":\"{time}"))
                .into_bytes()
        });
        fleet(vec![answer])
    };
    assert!(at("2026-11-21T12:00").reports_the_same_as(&at("2026-11-21T12:01")));
    assert!(!at("2026-11-21T12:00").reports_the_same_as(&fleet(vec![without_answer("n1")])));
}

#[test]
fn a_look_that_is_old_or_of_another_time_is_unknown_and_what_it_found_is_still_there() {
    let with = |findings: &[Value], fields: &Value| {
        let mut document = json!({
            "schema": "portreeve.findings/v1", "findings": findings, "unknown": [],
            "nodes": [{"node": "n1", "lookedAt": "2026-11-21T12:00:00Z"}],
        });
        let fields = fields.as_object().expect("fields").iter();
        fields.for_each(|(name, value)| document["nodes"][0][name] = value.clone());
        fleet(vec![answering("n1", &document)])
    };
    let fresh = json!({"ageSeconds": 30, "oldAfterSeconds": 50});
    assert_eq!(with(&[], &fresh).result(), CheckResult::Clear);
    for old in [
        json!({"ageSeconds": 3600, "oldAfterSeconds": 50}),
        json!({"ageSeconds": 30, "oldAfterSeconds": 50, "lookedAt": "9999-12-30T00:00:00Z"}),
        json!({"ageSeconds": 30, "oldAfterSeconds": 50, "lookedAt": "1970-01-01T00:00:00Z"}),
        json!({"lookedAt": "9999-12-30T00:00:00Z"}),
        json!({"lookedAt": "1970-01-01T00:00:00Z"}),
        json!({"lookedAt": "2026-11-21T09:00:00Z"}),
    ] {
        let (nothing, something) = (with(&[], &old), with(&[listener("critical")], &old));
        assert_eq!(nothing.result(), CheckResult::NotChecked, "{old}");
        assert_eq!((something.result(), something.is_whole()), (CheckResult::Findings, false), "{old}");
        let table = text(|out| write_fleet_table(&nothing, false, &style(), out));
        assert!(
            table.starts_with("not checked: no port conflicts found, but some ports or rules were not judged")
                && table.contains("too old"),
            "{table}"
        );
    }
}

#[test]
fn an_impossible_number_of_one_agent_is_not_the_first_line_of_all() {
    let document = json!({
        "schema": "portreeve.findings/v1", "findings": [],
        "unknown": [{
            "rule": "listener-on-node-port", "variants": ["loses"], "claims": u64::MAX,
            "source": "proxy-mode", "why": "timed-out", "detail": "x",
        }],
        "nodes": [{
            "node": "n1", "lookedAt": "2026-11-21T12:00:00Z", "ageSeconds": u64::MAX, "oldAfterSeconds": u64::MAX,
        }],
    });
    let table = text(|out| write_fleet_table(&fleet(vec![answering("n1", &document)]), false, &style(), out));
    let first = table.lines().next().unwrap_or_default();
    assert!(first.contains("oldest scan 1000000000 s ago (n1)"), "{first}");
    assert!(
        first.contains("1000000 or more ports or objects were not judged") && !first.contains("18446744"),
        "{first}"
    );
}

fn stopped(answers: Vec<AgentAnswer>, left_out: &[&str], why: Stopped) -> Fleet {
    let mut gathering = Gathering::new("portreeve", Wanted { document: true, ..Wanted::default() });
    answers.into_iter().for_each(|answer| gathering.take(answer, now()));
    left_out.iter().for_each(|node| gathering.leave_out(node, &format!("portreeve-{node}"), why));
    gathering.finish(Some(why))
}

#[test]
fn what_is_there_is_told_as_partial_and_never_as_well() {
    let nothing = stopped(vec![reporting("n1", &[])], &["n2", "n3", "n4", "n5"], Stopped::Interrupted);
    assert_eq!((nothing.result(), nothing.is_whole()), (CheckResult::NotChecked, false));
    let table = text(|out| write_fleet_table(&nothing, false, &style(), out));
    let head = "partial: 1 of 5 agents was queried; you stopped the command\nnot checked: no port conflicts found, but some ports or rules were not judged; 1 agent queried, 4 could not be queried, oldest scan ";
    assert!(table.starts_with(head), "{table}");
    assert!(table.contains("  4 of 5 agents: n2, n3, n4 and 1 more\n"), "{table}");
    let something = stopped(vec![reporting("n1", &[listener("critical")])], &["n2"], Stopped::TimeLimit);
    assert_eq!((something.result(), something.is_whole()), (CheckResult::Findings, false));
    assert_eq!(
        something.partial_words().as_deref(),
        Some("partial: 1 of 2 agents was queried; the time limit for all queries ended")
    );
}

#[test]
fn the_document_says_how_much_it_is_of_the_whole() {
    let partial = stopped(vec![reporting("n1", &[]), without_answer("n2")], &["n3"], Stopped::Interrupted);
    let document: Value = serde_json::from_str(&text(|out| partial.write_json(out))).expect("JSON");
    assert_eq!(document["partial"], json!({"listed": 3, "queried": 2, "why": "interrupted"}));
    assert_eq!(document["nodes"].as_array().map(Vec::len), Some(3), "one entry for each agent");
    let last = document["unknown"].as_array().and_then(|it| it.last()).expect("what is not known");
    assert_eq!((&last["node"], &last["why"]), (&json!("n3"), &json!("not-requested")));
    jsonschema::validate(&findings_schema().to_value(), &document).unwrap_or_else(|error| panic!("{error}"));
    let whole: Value = serde_json::from_str(&text(|out| fleet(vec![]).write_json(out))).expect("JSON");
    assert_eq!(whole.get("partial"), None);
}

#[test]
fn a_port_that_an_agent_could_not_judge_is_a_doubt_where_its_finding_would_be_wanted() {
    let unknown = json!({
        "rule": "listener-on-node-port", "variants": ["loses", "trap"], "source": "proxy-mode", "why": "unreachable", "detail": "no answer", "claims": 2,
        "subject": {"kind": "Service", "namespace": "shop", "name": "web"},
    });
    let document = json!({
        "schema": "portreeve.findings/v1", "findings": [], "unknown": [unknown],
        "nodes": [{"node": "n1", "lookedAt": "2026-11-21T12:00:00Z"}],
    });
    let result = |wanted: Wanted| {
        let answers = vec![answering("n1", &document)];
        Fleet::of("portreeve", answers, &wanted, now()).result()
    };
    assert_eq!(result(Wanted::default()), CheckResult::NotChecked);
    let mut of_node = document.clone();
    of_node["unknown"][0]["subject"] = json!({"kind": "Node", "name": "n1"});
    of_node["unknown"][0]["claims"] = json!(0);
    of_node["unknown"][0]["source"] = json!("listeners");
    of_node["unknown"][0]["why"] = json!("timed-out");
    for variants in [json!(["loses"]), json!([])] {
        of_node["unknown"][0]["variants"] = variants;
        let office = Wanted {
            namespace: Some("office".to_owned()),
            rules: vec![named("listener-on-node-port")],
            ..Wanted::default()
        };
        let whole = Fleet::of("portreeve", vec![answering("n1", &of_node)], &office, now());
        assert_eq!(whole.result(), CheckResult::NotChecked, "findings of each namespace may be hidden");
    }
    of_node["unknown"][0]["rule"] = json!("proxy-near-fd-limit");
    of_node["unknown"][0]["variants"] = json!(["near"]);
    for (namespace, wanted) in [(Some("office"), CheckResult::Clear), (None, CheckResult::NotChecked)] {
        let asked = Wanted { namespace: namespace.map(str::to_owned), ..Wanted::default() };
        let whole = Fleet::of("portreeve", vec![answering("n1", &of_node)], &asked, now());
        assert_eq!(whole.result(), wanted, "no finding of this rule is about an object of a namespace");
    }
    for (rules, namespace, wanted) in [
        (vec![named("listener-on-node-port/loses")], Some("shop"), CheckResult::NotChecked),
        (vec![named("listener-on-node-port/latent")], None, CheckResult::Clear),
        (vec![named("node-port-range-crowded")], None, CheckResult::Clear),
        (Vec::new(), Some("office"), CheckResult::Clear),
    ] {
        let asked = Wanted { rules, namespace: namespace.map(str::to_owned), ..Wanted::default() };
        assert_eq!(result(asked.clone()), wanted, "{asked:?}");
    }
}

#[test]
fn an_open_report_has_each_finding_and_each_unread_input_and_counts_both() {
    let cluster = json!({"kind": "Cluster", "name": "cluster"});
    let answers = vec![
        reporting("n1", &[listener("critical"), finding("ephemeral-range-overlap/workload", "info", &cluster)]),
        reporting("n2", &[listener("critical")]),
        without_answer("n3"),
    ];
    let report: Value = serde_json::from_str(&text(|out| fleet(answers).write_open_reports(out))).expect("JSON");
    assert_eq!((&report["kind"], &report["apiVersion"]), (&json!("ClusterReport"), &json!("openreports.io/v1alpha1")));
    assert_eq!(report["summary"], json!({"pass": 0, "fail": 1, "warn": 1, "error": 1, "skip": 0}));
    let results = report["results"].as_array().expect("results");
    let brief = |it: &Value| format!("{} {} {} {}", it["policy"], it["rule"], it["result"], it["properties"]["nodes"]);
    assert_eq!(
        results.iter().map(brief).collect::<Vec<_>>(),
        [
            r#""listener-on-node-port" "loses" "fail" "n1, n2""#,
            r#""ephemeral-range-overlap" "workload" "warn" "n1""#,
            r#""not-read" null "error" "n3""#,
        ]
    );
    let object = json!([{"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "u"}]);
    assert_eq!((&results[0]["resources"], &results[1]["resources"]), (&object, &Value::Null));
    assert_eq!(results[0]["timestamp"], json!({"seconds": 1_795_262_400, "nanos": 0}));
    assert_eq!(results[0]["properties"]["port"], "30080/tcp");
}

#[test]
fn an_open_report_is_as_long_as_the_api_server_takes_and_counts_the_rest() {
    let of = |number: usize| {
        let subject = json!({"kind": "Service", "namespace": "shop", "name": format!("web-{number}")});
        finding("listener-on-node-port/loses", "critical", &subject)
    };
    let findings: Vec<Value> = (0..5_000).map(of).collect();
    let report = text(|out| fleet(vec![reporting("n1", &findings)]).write_open_reports(out));
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let left_out: usize = report["metadata"]["annotations"]["portreeve/results-left-out"]
        .as_str()
        .and_then(|it| it.parse().ok())
        .expect("a number");
    assert_eq!(report["summary"]["fail"], 5_000);
    assert_eq!(report["results"].as_array().map(Vec::len), Some(5_000 - left_out));
    assert!(report.to_string().len() < 3 << 19, "etcd takes 1.5 MiB");
}
