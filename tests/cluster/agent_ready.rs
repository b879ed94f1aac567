//! An agent can be ready before the API server has answered. The findings of this agent name each kind of object that
//! the agent has not read yet.

use serde_json::Value;

use crate::{
    agent_memory::Agent,
    fake::{Fake, Reply},
    watch::calm,
};

/// Returns the findings of a ready agent. The API server never answers the agent's list requests for `unread`.
fn ready_without(unread: &'static str) -> Value {
    let fake = Fake::new(move |path, _| match path.starts_with(unread) {
        true => Reply::Silence,
        false => calm(path),
    });
    let agent = Agent::of(&fake);
    agent.wait_for("/readyz", |body| body == "ok\n");
    serde_json::from_str(&agent.wait_for("/findings", |_| true)).expect("JSON")
}

#[test]
fn a_ready_agent_names_the_objects_that_it_has_not_read_yet() {
    for (unread, source) in [("/api/v1/services?", "services"), ("/api/v1/pods?", "pods"), ("/api/v1/nodes", "nodes")] {
        let findings = ready_without(unread);
        let unknown = findings["unknown"].as_array().expect("a list");
        // If a list request took too long, the reason is a time-out.
        let is_named = |it: &Value| it["source"] == source && (it["why"] == "not-yet" || it["why"] == "timed-out");
        assert!(unknown.iter().any(is_named), "{source}: {findings:#}");
        // Without Services, no rule can judge.
        assert!(source != "services" || findings["result"] == "not-checked", "{findings:#}");
    }
}
