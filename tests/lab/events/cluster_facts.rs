//! Facts of the cluster, which the agents of all nodes see, and one tells.

use portreeve_agent::events::Counters;
use portreeve_rules::findings::{Finding, Scope, Severity};
use serde_json::Value;

use super::{Stage, Writer, written};
use crate::parts::until;

const RULE: &str = "external-ip-conflict/node-address";

/// The Event of the agents of `n1` and `n2`, of which `n1` was first.
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

/// Fault (operator): two agents report one fact of the cluster
/// Does: one Event, which the first of them tells again
/// Right again: all the time
/// Lost: nothing
#[test]
fn two_agents_on_the_same_fact_of_the_cluster_leave_one_event_that_the_first_tells_again() {
    let stage = Stage::new(&[]);
    let (finding, first, second) = told_by_two(&stage);
    for (told, minutes) in [(2, 5), (3, 15), (4, 70)] {
        let now = stage.set(minutes * 60);
        first.until(written(told));
        assert_eq!(stage.warning()["series"]["lastObservedTime"], now);
    }
    // The second has tried once more by now, and found it there.
    second.until(Counters { deduplicated: 2, ..Counters::default() });
    assert_eq!(stage.warning()["series"]["count"], 4);

    first.clear([&finding]);
    first.until(written(5));
    second.clear([&finding]);
    second.until(Counters { deduplicated: 3, ..Counters::default() });
    let over = stage.events("Normal");
    assert_eq!(over.iter().map(|event| &event["reason"]).collect::<Vec<_>>(), ["ExternalIpConflictResolved"]);
}

/// Fault (operator): the agent that tells an Event again is gone
/// Does: another one takes its place
/// Right again: before the Event expires
/// Lost: nothing
#[test]
fn when_the_first_writer_is_gone_another_takes_its_place_within_70_minutes() {
    let stage = Stage::new(&["--event-ttl=25s"]);
    let (_, first, second) = told_by_two(&stage);
    drop(first);
    until("expiry", || stage.events("Warning").is_empty().then_some(()));
    stage.set(55 * 60 - 1);
    second.is_idle();
    stage.set(70 * 60);
    second.until(Counters { written: 1, deduplicated: 1, ..Counters::default() });
    let event = stage.warning();
    assert_eq!(event["reportingInstance"], "portreeve-n2");
    let now = stage.set(75 * 60);
    second.until(Counters { written: 2, deduplicated: 1, ..Counters::default() });
    assert_eq!(stage.warning()["series"]["lastObservedTime"], now, "from now on it is the second's");
}
