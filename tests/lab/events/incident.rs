//! One problem on several nodes of a voice.

use std::time::Duration;

use portreeve_agent::events::{Counters, VOICE};
use portreeve_rules::findings::Severity;
use serde_json::{Value, json};

use super::{Stage, written};
use crate::parts::until_within;

const RULE: &str = "listener-on-node-port/loses";
/// Nodes of one voice, by the hash of their names.
const NODES: [&str; 2] = ["n0", "n4"];

/// Fault (operator): the node that tells of an incident is repaired, and its Event expires
/// Does: another affected node tells of itself, and then has the place to itself
/// Right again: within a quarter of an hour
/// Lost: nothing
#[test]
fn the_next_node_takes_the_voice_by_the_version_of_its_gate_and_the_gate_when_that_has_expired() {
    let stage = Stage::new(&["--event-ttl=75s"]);
    let finding = stage.finding(RULE, &stage.service, Severity::Critical, "It is wrong.");
    let [first, second] = NODES.map(|node| stage.writer(node));
    first.raise([&finding]);
    first.until(written(1));
    second.raise([&finding]);
    let silent = Counters { deduplicated: 1, ..Counters::default() };
    second.until(silent);
    let gate = stage.warning();
    assert_eq!((&gate["related"]["name"], &gate["metadata"]["annotations"][VOICE]), (&json!("n0"), &json!("open n0")));

    first.clear([&finding]);
    first.until(written(2));
    stage.set(10 * 60);
    second.is_idle();
    stage.set(14 * 60);
    second.until(Counters { written: 1, ..silent });
    let open = stage.events("Warning");
    let about: Vec<&Value> = open.iter().map(|event| &event["related"]["name"]).collect();
    assert_eq!(about, ["n0", "n4"]);
    assert_eq!(open[0]["metadata"]["annotations"][VOICE], "open n4");
    assert_eq!(stage.events("Normal").len(), 1);

    until_within(Duration::from_secs(150), "expiry", || stage.events("Warning").is_empty().then_some(()));
    stage.set(75 * 60);
    second.until(Counters { written: 2, ..silent });
    let gate_again = stage.warning();
    assert_eq!(gate_again["metadata"]["name"], gate["metadata"]["name"]);
    assert_eq!(
        (&gate_again["related"]["name"], &gate_again["metadata"]["annotations"][VOICE]),
        (&json!("n4"), &json!("open n4"))
    );
}
