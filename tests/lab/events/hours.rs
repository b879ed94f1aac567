//! The times at which agents report a problem and the end of the problem.

use std::collections::BTreeSet;

use portreeve_agent::events::Counters;
use portreeve_rules::findings::Severity;
use serde_json::{Value, json};

use super::{Stage, written};

const RULE: &str = "listener-on-node-port/loses";

#[test]
fn what_lasts_is_told_each_hour_over_restarts_again_if_it_comes_back_and_its_end_once() {
    let stage = Stage::new(&[]);
    let finding = stage.finding(RULE, &stage.service, Severity::Critical, "It is wrong.");
    let first = stage.writer("n1");
    first.raise([&finding]);
    first.until(written(1));
    let event = stage.warning();
    assert_eq!((&event["eventTime"], &event["series"]), (&json!("2026-11-21T12:00:00.000000Z"), &Value::Null));
    first.is_idle();
    drop(first);

    let second = stage.writer("n1");
    second.raise([&finding]);
    let found = Counters { deduplicated: 1, ..Counters::default() };
    second.until(found);
    assert_eq!(stage.warning(), event, "a restart writes nothing");
    for hour in 1..=2_u32 {
        let now = stage.set(i64::from(hour) * 3600);
        second.until(Counters { written: hour.into(), ..found });
        let all = stage.events("Warning");
        assert_eq!((all.len(), &all[hour as usize]["eventTime"]), (hour as usize + 1, &json!(now)));
        assert_eq!(all[hour as usize]["note"], event["note"]);
        second.is_idle();
    }

    second.clear([&finding]);
    second.until(Counters { written: 3, ..found });
    let [resolved] = &stage.events("Normal")[..] else { panic!("one Event") };
    assert_eq!(resolved["reason"], "ListenerOnNodePortResolved");
    let note = "Resolved on node n1: It is wrong. Nodes that are still affected: `kubectl portreeve check -n default \
                --rule listener-on-node-port/loses -o wide`";
    assert_eq!(resolved["note"], note);
    assert_eq!(resolved["regarding"], event["regarding"]);

    second.raise([&finding]);
    second.until(Counters { written: 4, ..found });
    second.clear([&finding]);
    second.until(Counters { written: 5, ..found });
    let series = json!({"count": 2, "lastObservedTime": "2026-11-21T14:00:00.000000Z"});
    let of = |kind| stage.events(kind).into_iter().map(|event| event["series"].clone()).collect::<Vec<_>>();
    assert_eq!((of("Warning"), of("Normal")), (vec![Value::Null, Value::Null, series.clone()], vec![series]));
    stage.set(6 * 3600);
    second.is_idle();
}

#[test]
fn a_restarted_agent_learns_from_the_server_that_it_has_told_and_tells_the_end() {
    let stage = Stage::new(&[]);
    let finding = stage.finding(RULE, &stage.service, Severity::Critical, "It is wrong.");
    let first = stage.writer("n1");
    first.raise([&finding]);
    first.until(written(1));
    drop(first);
    let found = Counters { deduplicated: 1, ..Counters::default() };
    // `n0` and `n4` are in one slot. In an hour, only one node of a slot reports, so the agent of `n4` finds the Event
    // of `n0`. `n1` is in another slot.
    for (node, told) in [("n1", 1), ("n0", 1), ("n4", 0)] {
        let agent = stage.writer(node);
        agent.raise([&finding]);
        agent.until(if node == "n0" { written(1) } else { found });
        agent.clear([&finding]);
        agent.until(if node == "n0" { written(2) } else { Counters { written: told, ..found } });
        agent.is_idle();
    }
    let about = stage.events("Normal").into_iter().map(|event| event["related"]["name"].as_str().map(str::to_owned));
    assert_eq!(about.collect::<BTreeSet<_>>(), ["n0", "n1"].map(|node| Some(node.to_owned())).into());
}
