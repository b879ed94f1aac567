//! The connection to the API server is slow, is cut in the middle of a line, or is dropped by a firewall without an
//! error.

use std::time::Duration;

use serde_json::json;

use super::{FOUND, Node, age, serve, squat, until_found, until_told};
use crate::parts::{Relay, objects, until, until_within};

/// Facts that are older than this number of seconds show an outage.
const LONG: f64 = 20.0;
/// The test's time limit for the end of a silent watch. The agent ends such a watch after 90 s (`idle_timeout`).
const SILENCE: Duration = Duration::from_secs(180);

/// Fault (API server): the connection to the server transfers only 25 KiB a second
/// Does: reads all facts, a little later
/// Right again: with the scan that each change starts
/// Lost: nothing
///
/// Fault (API server): a watch is cut in the middle of a line
/// Does: discards the incomplete line, and continues after the last complete line
/// Right again: with the next watch
/// Lost: nothing
///
/// Fault (API server): a firewall drops all packets of the agent's open connections
/// Does: finds new listeners; ends the silent watches
/// Right again: with the new watches
/// Lost: nothing
#[test]
fn a_way_that_is_slow_torn_or_deaf_delays_and_loses_nothing() {
    let node = Node::enter();
    let relay = Relay::start();
    relay.set_slow(true);
    let agent = node.agent(&["--apiserver", Relay::URL]);
    let mut slow = objects::service("slow", &[objects::port(80, Some(30081))]);
    // The slow connection needs two seconds to transfer this annotation.
    slow["metadata"]["annotations"] = json!({"long": "x".repeat(50_000)});
    node.cluster.api().create(&slow);
    let _slow = squat(30081);
    until_found(&agent, &[30080, 30081]);

    // The slow connection needs ten seconds to transfer this annotation. The test cuts the connection before the last
    // byte.
    let mut torn = objects::service("torn", &[objects::port(80, Some(30082))]);
    torn["metadata"]["annotations"] = json!({"long": "x".repeat(250_000)});
    let before = relay.passed_bytes();
    node.cluster.api().create(&torn);
    let _torn = squat(30082);
    until("beginning of a line", || (relay.passed_bytes() > before + 50_000).then_some(()));
    relay.cut();
    assert_eq!(agent.found(super::RULE), [30080, 30081], "half of a Service is none");
    relay.set_slow(false);
    relay.mend();
    until_found(&agent, &[30080, 30081, 30082]);
    until_told(&node.cluster, &[("web", FOUND), ("slow", FOUND), ("torn", FOUND)]);

    relay.forget();
    serve(&node.cluster, "late", 30083);
    let _late = squat(30083);
    until("old view", || (age(&agent.metrics()) > LONG).then_some(()));
    assert!(
        agent.is_well() && agent.found(super::RULE) == [30080, 30081, 30082],
        "nobody has said that it is a NodePort"
    );
    until_within(SILENCE, "end of a silent watch", || agent.found(super::RULE).contains(&30083).then_some(()));
    assert!(agent.is_well());
}
