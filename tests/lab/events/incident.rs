//! One problem on two nodes of one slot. In each hour, only one node of a slot reports a problem.

use portreeve_agent::events::Counters;
use portreeve_rules::findings::Severity;
use serde_json::Value;

use super::{Stage, written};
use crate::parts::until;

const RULE: &str = "listener-on-node-port/loses";
/// Two nodes with the same slot, by the hash of their names.
const NODES: [&str; 2] = ["n0", "n4"];

/// Fault (operator): the node that reports an incident is repaired, and the node's Event expires
/// Does: another affected node writes an Event
/// Right again: with the next hour of the incident
/// Lost: nothing
#[test]
fn the_next_node_tells_with_the_next_hour_whether_or_not_the_event_before_has_expired() {
    for (lifetime, expires) in [("1h", false), ("25s", true)] {
        let stage = Stage::new(&[&format!("--event-ttl={lifetime}")]);
        let finding = stage.finding(RULE, &stage.service, Severity::Critical, "It is wrong.");
        let [first, second] = NODES.map(|node| stage.writer(node));
        first.raise([&finding]);
        first.until(written(1));
        second.raise([&finding]);
        let silent = Counters { deduplicated: 1, ..Counters::default() };
        second.until(silent);
        assert_eq!(stage.warning()["related"]["name"], "n0");
        first.clear([&finding]);
        first.until(written(2));
        assert_eq!(stage.events("Normal").len(), 1);
        if expires {
            until("expiry", || stage.events("Warning").is_empty().then_some(()));
        }
        second.is_idle();

        stage.set(3600);
        second.until(Counters { written: 1, ..silent });
        first.is_idle();
        let about: Vec<Value> = stage.events("Warning").iter().map(|event| event["related"]["name"].clone()).collect();
        assert_eq!(about, if expires { vec!["n4"] } else { vec!["n0", "n4"] });
    }
}
