//! When an Event is told again.

use portreeve_agent::events::Counters;
use portreeve_rules::findings::Severity;
use serde_json::{Value, json};

use super::{Stage, written};
use crate::parts::{kubectl, until};

const RULE: &str = "listener-on-node-port/loses";

/// What the API server says of how often an Event was told.
fn series(count: u32, last: &str) -> Value {
    json!({"count": count, "lastObservedTime": last})
}

/// What changes with every write.
fn version(event: &Value) -> &Value {
    &event["metadata"]["resourceVersion"]
}

#[test]
fn a_series_rises_after_5_and_15_and_then_every_55_minutes_over_restarts_and_expiry() {
    let stage = Stage::new(&[]);
    let finding = stage.finding(RULE, &stage.service, Severity::Critical, "It is wrong.");
    let first = stage.writer("n1");
    first.raise([&finding]);
    first.until(written(1));
    let event = stage.warning();
    assert_eq!((&event["eventTime"], &event["series"]), (&json!("2026-11-21T12:00:00.000000Z"), &Value::Null));
    // Written a second early, it would say so.
    for (told, minutes) in [5, 15, 70].into_iter().enumerate() {
        stage.set(minutes * 60 - 1);
        first.is_idle();
        let now = stage.set(minutes * 60);
        let told = u32::try_from(told).expect("a few");
        first.until(written(u64::from(told) + 2));
        assert_eq!(stage.warning()["series"], series(told + 2, &now), "counts start at 2");
    }
    drop(first);

    let before = stage.warning();
    stage.set(90 * 60);
    let second = stage.writer("n1");
    second.raise([&finding]);
    let found = Counters { deduplicated: 1, ..Counters::default() };
    second.until(found);
    stage.set(125 * 60 - 1);
    second.is_idle();
    assert_eq!(version(&stage.warning()), version(&before), "a restart writes nothing");
    let now = stage.set(125 * 60);
    second.until(Counters { written: 1, ..found });
    assert_eq!(stage.warning()["series"], series(5, &now), "it goes on where the other had come to");

    let name = before["metadata"]["name"].as_str().expect("a name");
    kubectl(&stage.cluster, &["delete", "events.events.k8s.io", name]);
    let now = stage.set(180 * 60);
    second.until(Counters { written: 2, ..found });
    let again = stage.warning();
    assert_eq!((&again["eventTime"], &again["series"]), (&json!(now), &Value::Null));
    assert_eq!(again["metadata"]["name"], name);
    assert_ne!(again["metadata"]["uid"], before["metadata"]["uid"]);

    stage.set(181 * 60);
    second.clear([&finding]);
    second.until(Counters { written: 3, ..found });
    let [resolved] = &stage.events("Normal")[..] else { panic!("one Event") };
    assert_eq!(resolved["reason"], "ListenerOnNodePortResolved");
    let note = "On node n1 this was so, and is over: It is wrong. `kubectl portreeve findings -n default \
                --rule listener-on-node-port/loses -o wide` names the nodes that are still affected, if any.";
    assert_eq!(resolved["note"], note);
    assert_eq!(resolved["regarding"], again["regarding"]);
    stage.set(400 * 60);
    second.is_idle();
}

#[test]
fn an_event_that_is_told_again_outlives_one_that_is_not() {
    let stage = Stage::new(&["--event-ttl=25s"]);
    let kept = stage.finding(RULE, &stage.service, Severity::Critical, "It is wrong.");
    let left = stage.finding("proxy-near-fd-limit/near", &stage.node, Severity::Critical, "It is full.");
    let (keeper, leaver) = (stage.writer("n1"), stage.writer("n1"));
    keeper.raise([&kept]);
    keeper.until(written(1));
    leaver.raise([&left]);
    leaver.until(written(1));
    drop(leaver);
    let mut told = 1;
    until("expiry", || {
        told += 1;
        stage.set(told * 55 * 60);
        keeper.until(written(told.unsigned_abs()));
        let reasons: Vec<Value> = stage.events("Warning").iter().map(|event| event["reason"].clone()).collect();
        (reasons == ["ListenerOnNodePort"]).then_some(())
    });
    assert_eq!(stage.warning()["series"]["count"], told, "it was never made anew");
}
