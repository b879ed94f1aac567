//! The API server accepts all possible Events: of each rule, about each kind of object.

use portreeve_agent::events::NOTE;
use portreeve_rules::{
    findings::{Finding, Severity, Step, Subject},
    {RULES, Rule},
};
use serde_json::{Value, json};

use super::{Stage, written};
use crate::parts::objects;

fn hostile() -> String {
    let word = "\u{1b}[31m\u{202e}evil\u{200b}\r\n\0\"}{%s $(reboot) 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ";
    word.repeat(200)
}

fn sayings(stage: &Stage, rule: &Rule, objects: &[Value]) -> Vec<Finding> {
    let variants = rule.variants.iter().filter_map(|name| rule.id.variant(name));
    let severities = variants.flat_map(|it| it.severities.iter().map(move |severity| (it.name, *severity)));
    let about = |(variant, severity): (&'static str, Severity)| {
        let finding = |object| {
            let mut finding = stage.finding("a-rule/variant", object, severity, &hostile());
            (finding.key.rule, finding.key.variant) = (rule.name(), variant);
            finding
        };
        let mut findings: Vec<Finding> = objects.iter().map(finding).collect();
        let mut cluster = findings[0].clone();
        cluster.key.subject = Subject::cluster();
        findings.push(cluster);
        findings
    };
    let worth_one = severities.filter(|(_, severity)| *severity > Severity::Info);
    let mut findings: Vec<Finding> = worth_one.flat_map(about).collect();
    for (port, finding) in (1..).zip(&mut findings) {
        finding.evidence.remedies.push(Step::advice(hostile()).into());
        // All Events about the cluster are about the same Service. Each finding has another port, so that the Events
        // differ.
        finding.key.port = Some(port);
    }
    findings
}

#[test]
fn the_server_takes_every_event_of_every_rule_about_every_kind_of_object() {
    let stage = Stage::new(&[]);
    // The longest possible names: 63 and 253 characters.
    let long = |length: usize| "a".repeat(length);
    let objects = [
        objects::service(&long(63), &[objects::port(80, None)]),
        objects::static_pod(&long(63), &["/bin/sleep"]),
        objects::node(&long(253), &["192.0.2.9"]),
    ]
    .map(|object| stage.cluster.api().create(&object));
    let node = long(253);

    let mut told = 0;
    for rule in RULES {
        // Each writer is a new agent and reports at most three findings, because an agent may send at most ten requests
        // at once.
        for findings in sayings(&stage, rule, &objects).chunks(3) {
            let count = u64::try_from(findings.len()).expect("a few");
            told += count;
            let writer = stage.writer(&node);
            writer.raise(findings);
            writer.until(written(count));
            writer.clear(findings);
            writer.until(written(2 * count));
            writer.raise(findings);
            writer.until(written(3 * count));
            stage.set(3600);
            writer.until(written(4 * count));
            writer.clear(findings);
            writer.until(written(5 * count));
            stage.set(0);
        }
    }

    let warnings = stage.events("Warning");
    assert_eq!(u64::try_from(warnings.len()).expect("a few"), 2 * told, "one in each of two hours");
    assert!(told > 100, "{told}");
    for event in &warnings {
        let note = event["note"].as_str().expect("a note");
        assert!((NOTE - 3..=NOTE).contains(&note.len()) && !note.chars().any(char::is_control), "{note:?}");
        assert_eq!(event["reportingInstance"].as_str().expect("a text").len(), 128);
        let is_first = event["eventTime"] == "2026-11-21T12:00:00.000000Z";
        assert_eq!(event["series"]["count"], if is_first { json!(2) } else { Value::Null });
    }
    assert_eq!(stage.events("Normal").len(), warnings.len());
}
