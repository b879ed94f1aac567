//! More findings than an agent can report as Events.

use portreeve_agent::events::Counters;
use portreeve_rules::findings::{Evidence, Finding, Key, RuleId, Severity, Subject, SubjectKind};
use serde_json::Value;

use super::{Stage, written};

fn finding(number: usize, severity: Severity) -> Finding {
    let name = format!("s{number}");
    let uid = Some(format!("00000000-0000-4000-8000-{number:012}"));
    let subject = Subject { kind: SubjectKind::Service, namespace: Some("default".to_owned()), name, uid };
    let key =
        Key { rule: RuleId("listener-on-node-port"), variant: "loses", subject, port: Some(30080), protocol: None };
    let evidence = Evidence::new(severity, format!("Service {number} is wrong."));
    Finding { key, evidence, since: jiff::Timestamp::UNIX_EPOCH }
}

#[test]
fn a_thousand_findings_at_once_are_told_within_budget_and_the_worst_first() {
    let stage = Stage::new(&[]);
    let writer = stage.writer("n1");
    // The 23 critical findings come last. 23 is not a multiple of ten, the number of requests that an agent may send at
    // once.
    let severity = |number: usize| if number < 977 { Severity::Warning } else { Severity::Critical };
    writer.raise(&(0..1000).map(|number| finding(number, severity(number))).collect::<Vec<_>>());
    writer.until(written(10));
    stage.set(9);
    writer.is_idle();
    for more in 1..=30_u32 {
        stage.set(i64::from(more) * 10);
        writer.until(written(10 + u64::from(more)));
    }
    let events = stage.events("Warning");
    assert_eq!(events.len(), 40);
    let worst = |event: &&Value| {
        let name = event["regarding"]["name"].as_str().expect("a name");
        severity(name[1..].parse().expect("a number")) == Severity::Critical
    };
    assert_eq!(events.iter().take_while(worst).count(), 23, "all that are critical before any other");
    assert_eq!(events.iter().filter(worst).count(), 23);
    assert!(events.iter().all(|event| event["series"].is_null()), "what is new comes before what is told again");

    // At most 1024 findings can wait or be reported at the same time.
    writer.raise(&(1000..1100).map(|number| finding(number, Severity::Warning)).collect::<Vec<_>>());
    writer.until(Counters { written: 40, dropped: 76, ..Counters::default() });
}
