//! Several agents, told together.

use serde_json::{Value, json};

use super::*;
use crate::sinks::{Style, write_fleet_rows, write_fleet_table, write_fleet_wide};

fn finding(rule: &str, severity: &str, subject: &Value) -> Value {
    json!({
        "rule": rule, "severity": severity, "subject": subject, "port": 30080, "protocol": "tcp",
        "summary": "Something listens here.", "evidence": [{"name": "listener", "value": "0.0.0.0:30080"}],
        "affects": ["remote", "node"], "remedy": ["kubectl -n shop edit service web"], "since": "2026-11-21T12:00:00Z",
    })
}

fn service(namespace: &str) -> Value {
    json!({"kind": "Service", "namespace": namespace, "name": "web", "uid": "u"})
}

fn listener(severity: &str) -> Value {
    finding("listener-on-node-port", severity, &service("shop"))
}

fn heard(node: &str, findings: &[Value]) -> Heard {
    let unknown = json!([{"source": "netfilter", "why": "not-permitted", "detail": "nft: needs NET_ADMIN"}]);
    answering(
        node,
        &json!({
            "schema": "portreeve/v1", "node": node, "at": "2026-11-21T12:00:00Z", "findings": findings, "unknown": unknown,
        }),
    )
}

fn answering(node: &str, answer: &Value) -> Heard {
    Heard { node: node.to_owned(), pod: format!("portreeve-{node}"), said: Ok(answer.to_string().into_bytes()) }
}

fn silent(node: &str) -> Heard {
    let gap = Gap::new(Source::Agent, Why::Unreachable, "its pod is not Ready");
    Heard { node: node.to_owned(), pod: format!("portreeve-{node}"), said: Err(gap) }
}

fn fleet(heard: Vec<Heard>) -> Fleet {
    Fleet::of("portreeve", heard, &Wanted::default())
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
    assert_eq!(fleet(vec![heard("n1", &[listener("critical")]), silent("n2")]).result(), CheckResult::Findings);
    assert_eq!(fleet(vec![heard("n1", &[listener("info")]), silent("n2")]).result(), CheckResult::NotChecked);
    assert_eq!(fleet(vec![heard("n1", &[listener("info")])]).result(), CheckResult::Clear);
    assert_eq!(fleet(vec![]).result(), CheckResult::NotChecked, "no agent, no knowledge");
    let mut blind = heard("n1", &[]);
    blind.said = blind.said.map(|said| {
        let said = String::from_utf8(said).expect("JSON");
        said.replace("netfilter", "services").replace("not-permitted", "unreachable").into_bytes()
    });
    assert_eq!(fleet(vec![blind]).result(), CheckResult::NotChecked, "an agent that does not see its cluster");
}

#[test]
fn what_is_filtered_neither_counts_nor_is_forgotten() {
    let all = || {
        vec![heard(
            "n1",
            &[listener("critical"), finding("own-port-taken", "warning", &json!({"kind": "Node", "name": "n1"}))],
        )]
    };
    let of = |namespace: Option<&str>, min_severity| {
        Fleet::of("portreeve", all(), &Wanted { namespace: namespace.map(str::to_owned), min_severity })
    };
    let shop = of(Some("shop"), None);
    assert_eq!((shop.problems().count(), shop.hidden, shop.result()), (1, 1, CheckResult::Findings));
    let elsewhere = of(Some("office"), None);
    assert_eq!((elsewhere.problems().count(), elsewhere.hidden, elsewhere.result()), (0, 2, CheckResult::Clear));
    assert!(
        text(|out| write_fleet_table(&elsewhere, &style(), out))
            .starts_with("no port conflicts (2 not shown); 1 agent")
    );
    assert_eq!(of(None, Some(Severity::Critical)).problems().count(), 1);
}

#[test]
fn a_finding_of_the_cluster_is_told_once_with_everybody_who_tells_it() {
    let external = |severity| finding("external-ip-is-node-address", severity, &service("shop"));
    let told = fleet(vec![heard("n1", &[external("warning")]), heard("n2", &[external("critical")])]);
    assert_eq!(told.cluster.len(), 1);
    assert_eq!(told.cluster[0].nodes, ["n1", "n2"]);
    assert_eq!(told.cluster[0].problem.severity, Severity::Critical, "the worst");
    assert!(told.nodes.iter().all(|node| node.findings.as_ref().is_some_and(Vec::is_empty)));
    let disagreement =
        |name: &str| finding("node-port-range-disagreement", "warning", &json!({"kind": "Node", "name": name}));
    let own = fleet(vec![heard("n1", &[disagreement("n1")]), heard("n2", &[disagreement("n2")])]);
    assert!(own.cluster.is_empty(), "what is said of a Node is that Node's own");
}

#[test]
fn a_table_says_what_where_and_who_was_silent() {
    let told = fleet(vec![heard("n1", &[listener("critical")]), heard("n2", &[listener("critical")]), silent("n3")]);
    insta::assert_snapshot!(text(|out| write_fleet_table(&told, &style(), out)), @r"
    1 critical; 2 agents asked, 1 could not be asked

    SEVERITY  RULE                   SUBJECT           PORT       AFFECTS      NODES
    critical  listener-on-node-port  Service shop/web  30080/tcp  remote,node  n1,n2

    CRITICAL  Service shop/web, port 30080/tcp, on n1,n2
      Something listens here.

      Evidence  listener  0.0.0.0:30080
      Affects   remote clients, this node
      Remedy    kubectl -n shop edit service web
      Why       kubectl portreeve rules explain listener-on-node-port

    Could not be asked
      n3                    no answer: its pod is not Ready (pod portreeve-n3)

    Could not be seen there
      2 lesser things, with -o wide

    This speaks of the 3 agents listed in namespace portreeve. Nodes without one cannot be known from
    here.
    ");
    let rows = text(|out| write_fleet_rows(&told, &style(), out));
    assert_eq!(rows, "critical  listener-on-node-port  Service shop/web  30080/tcp  remote,node  n1,n2\n");
    let wide = text(|out| write_fleet_wide(&told, &style(), out));
    assert!(wide.contains("n1,n2                 not permitted: nft: needs NET_ADMIN"), "{wide}");
    assert_eq!(text(|out| told.write_names(out)), "service/web\n");
}

#[test]
fn without_an_agent_nothing_is_well() {
    let table = text(|out| write_fleet_table(&fleet(vec![]), &style(), out));
    assert!(table.starts_with("Nothing is known: no agent is listed."), "{table}");
    assert!(table.contains("the 0 agents listed in namespace portreeve"), "{table}");
}

#[test]
fn the_document_is_what_its_schema_says() {
    let told = fleet(vec![
        heard("n1", &[listener("critical"), finding("external-ip-is-node-address", "warning", &service("shop"))]),
        silent("n2"),
        answering("n3", &json!("nonsense")),
    ]);
    let schema = fleet_schema().to_value();
    let document: Value = serde_json::from_str(&text(|out| told.write_json(out))).expect("JSON");
    jsonschema::validate(&schema, &document).unwrap_or_else(|error| panic!("{error}: {document:#}"));
    assert_eq!(document["nodes"][1].get("findings"), None, "not asked is not well");
    assert_eq!(document["nodes"][2]["unknown"][0]["why"], "malformed");
    let yaml: Value = serde_saphyr::from_str(&text(|out| told.write_yaml(out))).expect("YAML");
    assert_eq!(yaml, document);
}

#[test]
fn only_the_time_of_a_look_is_no_change() {
    let at = |time: &str| {
        let mut heard = heard("n1", &[listener("critical")]);
        heard.said = heard.said.map(|said| {
            String::from_utf8(said)
                .expect("JSON")
                .replace("\"at\":\"2026-11-21T12", &format!("\"at\":\"{time}"))
                .into_bytes()
        });
        fleet(vec![heard])
    };
    assert!(at("2026-11-21T12").tells_the_same_as(&at("2026-11-21T13")));
    assert!(!at("2026-11-21T12").tells_the_same_as(&fleet(vec![silent("n1")])));
}
