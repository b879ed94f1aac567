//! Events of another program under the names that agents use.

use portreeve_agent::events::Counters;
use portreeve_rules::findings::Severity;
use serde_json::{Value, json};

use super::{Stage, written};
use crate::parts::kubectl;

/// The length of the longest annotation that the API server accepts. An Event with this annotation exceeds the agent's
/// read limit.
const LONG: usize = (256 << 10) - "long".len();

#[test]
fn an_event_that_cannot_be_read_silences_nobody_about_anything_else() {
    let long = json!({"metadata": {"annotations": {"long": "x".repeat(LONG)}}});
    let odd = json!({"series": {"count": 3}});
    for (mut event, failed) in [(odd, 0), (long, 1)] {
        let stage = Stage::new(&[]);
        let wanted = stage.finding("listener-on-node-port/loses", &stage.service, Severity::Critical, "It is wrong.");
        let other =
            stage.finding("connection-on-port/answers-taken", &stage.service, Severity::Warning, "It is wrong too.");
        let first = stage.writer("n1");
        first.raise([&wanted]);
        first.until(written(1));
        drop(first);
        let name = stage.warning()["metadata"]["name"].as_str().expect("a name").to_owned();
        kubectl(&stage.cluster, &["delete", "events.events.k8s.io", &name]);
        event["metadata"]["name"] = json!(name);
        event["metadata"]["namespace"] = json!("default");
        event["involvedObject"] = json!({"kind": "Service", "namespace": "default", "name": "web"});
        stage.cluster.api().post("/api/v1/namespaces/default/events", &event).expect("the server takes it");

        let agent = stage.writer("n1");
        agent.raise([&wanted, &other]);
        let found = Counters { written: 1, deduplicated: 1, ..Counters::default() };
        agent.until(found);
        let told: Vec<Value> = stage.events("Warning").iter().map(|event| event["reason"].clone()).collect();
        assert_eq!(told, ["ConnectionOnPort"]);
        // The agent cannot read the forged Event. So the agent does not report the end of the problem `wanted`.
        agent.clear([&wanted, &other]);
        agent.until(Counters { written: 2, failed, ..found });
        agent.is_idle();
        let over: Vec<Value> = stage.events("Normal").iter().map(|event| event["reason"].clone()).collect();
        assert_eq!(over, ["ConnectionOnPortResolved"]);
    }
}
