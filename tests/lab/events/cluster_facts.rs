//! Facts about the whole cluster. The agents of all nodes see these facts, and one agent reports them.

use portreeve_agent::events::Counters;
use portreeve_rules::findings::{Finding, Scope, Severity};
use serde_json::Value;

use super::{Stage, Writer, written};

const RULE: &str = "external-ip-conflict/node-address";

/// A finding of the agents of `n1` and `n2`, and the Event writers of both agents. The agent of `n1` reported the
/// finding first.
#[track_caller]
fn told_by_two(stage: &Stage) -> (Finding, Writer<'_>, Writer<'_>) {
    let mut finding = stage.finding(RULE, &stage.service, Severity::Critical, "Its external IP is a node's.");
    finding.evidence.scope = Scope::Cluster;
    let [first, second] = ["n1", "n2"].map(|node| stage.writer(node));
    first.raise([&finding]);
    first.until(written(1));
    second.raise([&finding]);
    second.until(Counters { deduplicated: 1, ..Counters::default() });
    let event = stage.warning();
    assert_eq!(event["reportingInstance"], "portreeve-n1");
    assert_eq!(event["regarding"]["uid"], stage.service["metadata"]["uid"]);
    assert_eq!(event["related"], Value::Null, "it is so on every node");
    (finding, first, second)
}

/// Fault (operator): two agents report the same problem of the cluster
/// Does: writes one Event each hour; the agents take turns
/// Right again: all the time
/// Lost: nothing
#[test]
fn two_agents_on_the_same_fact_of_the_cluster_leave_one_event_an_hour_and_one_end() {
    let stage = Stage::new(&[]);
    let (finding, first, second) = told_by_two(&stage);
    stage.set(3600);
    second.until(Counters { written: 1, deduplicated: 1, ..Counters::default() });
    first.until(Counters { written: 1, deduplicated: 1, ..Counters::default() });
    assert_eq!(stage.events("Warning").len(), 2);

    second.clear([&finding]);
    second.until(Counters { written: 2, deduplicated: 1, ..Counters::default() });
    stage.set(2 * 3600);
    first.until(Counters { written: 2, deduplicated: 1, ..Counters::default() });
    first.clear([&finding]);
    first.until(Counters { written: 3, deduplicated: 1, ..Counters::default() });
    let over = stage.events("Normal");
    assert_eq!(over.iter().map(|event| &event["reason"]).collect::<Vec<_>>(), ["ExternalIpConflictResolved"; 2]);
}

/// Fault (operator): the agent that reported a problem of the cluster is gone
/// Does: another agent reports the problem, and later its end
/// Right again: with the next hour
/// Lost: nothing
#[test]
fn when_the_first_writer_is_gone_another_tells_with_the_next_hour() {
    let stage = Stage::new(&[]);
    let (finding, first, second) = told_by_two(&stage);
    drop(first);
    second.is_idle();
    stage.set(3600);
    second.until(Counters { written: 1, deduplicated: 1, ..Counters::default() });
    let reporters: Vec<Value> =
        stage.events("Warning").iter().map(|event| event["reportingInstance"].clone()).collect();
    assert_eq!(reporters, ["portreeve-n1", "portreeve-n2"]);
    second.clear([&finding]);
    second.until(Counters { written: 2, deduplicated: 1, ..Counters::default() });
    assert_eq!(stage.events("Normal").len(), 1);
}
