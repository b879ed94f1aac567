//! Parses the answer of one agent at `/findings`. The code does not trust this answer, because an attacker may control
//! the node.

use std::{fmt, marker::PhantomData, time::Duration};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny, SeqAccess, Visitor},
};

use crate::{
    ScanAge,
    findings_document::{Problem, SCHEMA, Unknown},
};
use portreeve_facts::{Gap, Source, Why, text};
use portreeve_rules::findings::SubjectKind;

/// The largest length of the text that describes a wrong answer, in bytes.
const DETAIL: usize = 256;
/// The largest number of findings, and the largest number of unknown results, that are read from one agent.
const ENTRIES: usize = 10_000;
/// The upper limit for the age of a scan, in seconds: longer than a node runs. An agent can report any age.
const MOST_SECONDS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct NodeReport {
    pub(super) version: Option<String>,
    pub(super) at: Timestamp,
    /// The age of the scan in whole seconds, by the agent's clock.
    pub(super) age: u64,
    pub(super) findings: Vec<Problem>,
    /// The unjudged rules, and the parts of the answer that could not be used.
    pub(super) unknown: Vec<Unknown>,
}

#[derive(Deserialize)]
struct Header {
    schema: Option<String>,
}

#[derive(Deserialize)]
struct Wire {
    findings: Entries<Problem>,
    unknown: Entries<Unknown>,
    nodes: [WireNode; 1],
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireNode {
    node: String,
    version: Option<String>,
    looked_at: Timestamp,
    age_seconds: Option<u64>,
    old_after_seconds: Option<u64>,
}

impl NodeReport {
    /// Reads the answer of the agent on `node`.
    ///
    /// # Errors
    /// Fails if the answer is not a findings document, or is about another node. An agent may only report its own node.
    pub(super) fn read(node: &str, answer: &[u8], now: Timestamp) -> Result<Self, Gap> {
        let wrong = |what: &str| Err(Gap::new(Source::Agent, Why::Malformed, text::clean(what, DETAIL)));
        match serde_json::from_slice::<Header>(answer) {
            Ok(Header { schema: Some(schema) }) if schema == SCHEMA => {}
            Ok(Header { schema: Some(other) }) => {
                return wrong(&format!("its answer has the schema {other:?}, wanted {SCHEMA:?}"));
            }
            Ok(Header { schema: None }) => return wrong(&format!("its answer has no schema, wanted {SCHEMA:?}")),
            Err(error) => return wrong(&format!("its answer is not a JSON object: {error}")),
        }
        let Wire { findings, unknown, nodes: [wire] } = match serde_json::from_slice::<Wire>(answer) {
            Ok(wire) => wire,
            Err(error) => return wrong(&format!("its answer is not {SCHEMA}: {error}")),
        };
        if wire.node != node {
            return wrong(&format!(
                "the agent runs on {node} but reports about the node {:?}",
                text::clean(&wire.node, text::NAME)
            ));
        }
        let odd = findings.odd + unknown.odd;
        let too_many = findings.left_out + unknown.left_out;
        let (findings, foreign): (Vec<Problem>, Vec<Problem>) =
            findings.known.into_iter().map(Problem::tidied).partition(|it| is_of_this_node(it, node));
        let mut unknown: Vec<Unknown> = unknown.known.into_iter().map(Unknown::tidied).collect();
        let remarks = [
            (too_many, "of its entries are not included: its answer has too many"),
            (odd, "of its entries were not understood: the agent has another version"),
            (foreign.len(), "of its findings are about other nodes, and are not included"),
        ];
        for (count, what) in remarks.into_iter().filter(|(count, _)| *count > 0) {
            unknown.push(Unknown::of(&Gap::new(Source::Agent, Why::Malformed, format!("{count} {what}"))));
        }
        let age = wire.age_seconds.zip(wire.old_after_seconds).map(|(age, old_after)| ScanAge {
            age: Duration::from_secs(age),
            old_after: Duration::from_secs(old_after),
        });
        unknown.extend(ScanAge::gap(wire.looked_at, age, now).map(|gap| Unknown::of(&gap)));
        let by_clocks = u64::try_from(now.duration_since(wire.looked_at).as_secs()).unwrap_or(0);
        let version = wire.version.map(|it| text::clean(&it, text::NAME));
        let age = wire.age_seconds.unwrap_or(by_clocks).min(MOST_SECONDS);
        Ok(Self { version, at: wire.looked_at, age, findings, unknown })
    }
}

fn is_of_this_node(problem: &Problem, node: &str) -> bool {
    problem.subject.kind != SubjectKind::Node || problem.subject.name == node
}

/// A list from an agent. Entries that can be parsed are kept, up to [`ENTRIES`]. All other entries are only counted.
struct Entries<T> {
    known: Vec<T>,
    odd: usize,
    left_out: usize,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Entry<T> {
    Known(T),
    Odd(IgnoredAny),
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Each(PhantomData))
    }
}

struct Each<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned> Visitor<'de> for Each<T> {
    type Value = Entries<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entries<T>, A::Error> {
        let mut entries = Entries { known: Vec::new(), odd: 0, left_out: 0 };
        while entries.known.len() < ENTRIES
            && let Some(entry) = list.next_element::<Entry<T>>()?
        {
            match entry {
                Entry::Known(it) => entries.known.push(it),
                Entry::Odd(_) => entries.odd += 1,
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {
            entries.left_out += 1;
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn finding(subject: &Value) -> Value {
        json!({
            "rule": "listener-on-node-port", "variant": "loses", "severity": "critical", "scope": "node",
            "subject": subject, "port": 30080, "protocol": "tcp", "summary": "a\u{1b}[31m\u{202e}b", "evidence": [{"name": "n\n", "value": "v\u{7}"}],
            "affects": ["remote"], "remedy": ["kubectl\u{200b} x"], "since": "2026-11-21T12:00:00Z",
            "remedies": [{"steps": [{"kind": "command", "text": "kubectl\u{200b} x\r\n"}]}],
        })
    }

    fn read(node: &str, answer: &[u8]) -> Result<NodeReport, Gap> {
        NodeReport::read(node, answer, "2026-11-21T12:00:30Z".parse().expect("a time"))
    }

    fn answer(findings: &[Value], unknown: &[Value]) -> Vec<u8> {
        let answer = json!({
            "schema": SCHEMA, "findings": findings, "unknown": unknown,
            "nodes": [{"node": "n1", "version": "0.1.0", "lookedAt": "2026-11-21T12:00:00Z"}],
        });
        answer.to_string().into_bytes()
    }

    #[test]
    fn what_an_agent_writes_cannot_reach_a_terminal() {
        let service = json!({"kind": "Service", "namespace": "a\u{9b}", "name": "web\r"});
        let report = read("n1", &answer(&[finding(&service)], &[])).expect("a report");
        let reported = format!("{:?}", serde_json::to_string(&report.findings).expect("JSON"));
        for escape in ["u001b", "u{1b}", "u{202e}", "u{9b}", "u{200b}", "\\\\r", "\\\\n", "u0007"] {
            assert!(!reported.contains(escape), "{escape}: {reported}");
        }
        assert_eq!(report.findings[0].summary, "a[31mb");
    }

    #[test]
    fn an_agent_speaks_for_its_own_node_only() {
        let error = read("n2", &answer(&[], &[])).expect_err("another node");
        assert_eq!(
            (error.why, error.detail.as_str()),
            (Why::Malformed, "the agent runs on n2 but reports about the node \"n1\"")
        );
        let findings = ["n1", "n2"].map(|name| finding(&json!({"kind": "Node", "name": name})));
        let report = read("n1", &answer(&findings, &[])).expect("a report");
        assert_eq!(report.findings.len(), 1);
        assert!(report.unknown[0].detail.starts_with("1 of its findings are about other nodes"));
    }

    #[test]
    fn what_a_newer_agent_adds_is_counted_and_the_rest_is_kept() {
        let service = json!({"kind": "Service", "namespace": "d", "name": "web"});
        let mut newer = finding(&service);
        newer["more"] = json!({"deep": [1]});
        let mut odd = finding(&service);
        odd["severity"] = json!("apocalyptic");
        let known = json!({"source": "netfilter", "why": "not-permitted", "detail": "x"});
        let of_unknown_source = json!({"source": "crystal-ball", "why": "foggy", "detail": "x"});
        let report = read("n1", &answer(&[newer, odd], &[known, of_unknown_source, json!(7)])).expect("a report");
        assert_eq!(report.findings.len(), 1);
        let details: Vec<&str> = report.unknown.iter().map(|it| it.detail.as_str()).collect();
        assert_eq!(details, ["x", "3 of its entries were not understood: the agent has another version"]);
    }

    #[test]
    fn every_finding_has_a_scope_and_remedies_and_may_lack_an_outcome_and_a_time() {
        let lacking = |field: &str| {
            let mut finding = finding(&json!({"kind": "Service", "namespace": "d", "name": "web"}));
            finding.as_object_mut().expect("a finding").remove(field);
            read("n1", &answer(&[finding], &[])).expect("a report").findings.len()
        };
        assert_eq!(["scope", "remedies"].map(lacking), [0, 0]);
        assert_eq!(["outcome", "since"].map(lacking), [1, 1]);
    }

    #[test]
    fn what_is_no_report_is_named_by_its_kind() {
        for (answer, wanted) in [
            (&b"<html>"[..], "not a JSON object"),
            (b"[]", "not a JSON object"),
            (br#"{"schema":"portreeve.findings/v2"}"#, "portreeve.findings/v2"),
            (br#"{"kind":"Status"}"#, "no schema"),
            (br#"{"schema":"portreeve.findings/v1","nodes":[]}"#, "is not portreeve.findings/v1"),
            (
                br#"{"schema":"portreeve.findings/v1","findings":[],"unknown":[],"nodes":[{"node":"n1","lookedAt":"yesterday"}]}"#,
                "is not portreeve.findings/v1",
            ),
            (b"\xff\xfe", "not a JSON object"),
        ] {
            let error = read("n1", answer).expect_err("no report");
            assert!(error.why == Why::Malformed && error.detail.contains(wanted), "{error:?}");
        }
    }
}
