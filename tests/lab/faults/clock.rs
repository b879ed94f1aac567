//! The node's clock is so wrong that certificates are not valid.

use std::fs;

use super::{FOUND, MODE, Node, RULE, errors, serve, squat, until_found, until_told, until_young};
use crate::parts::{Agent, Directory, Relay, until};

/// Fault (clock): the clock is so far ahead that the API server's certificate has expired
/// Does: refuses the server; finds new listeners
/// Right again: once the clock is right, its facts are current and Events are written
/// Lost: nothing
#[test]
fn a_clock_by_which_no_certificate_is_valid_costs_the_view_its_youth_and_nothing_else() {
    let node = Node::enter();
    let relay = Relay::start();
    serve(&node.cluster, "late", 30081);
    let directory = Directory::new();
    let set = |clock: &str| {
        let next = directory.write("clock.next", &format!("{clock}\n"));
        fs::rename(next, directory.path().join("clock")).expect("a swap");
    };
    set("+0");
    // libfaketime changes only the time of day. Clocks that measure time spans run normally.
    let library = "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1";
    let file = format!("FAKETIME_TIMESTAMP_FILE={}", directory.path().join("clock").display());
    let words =
        ["/usr/bin/env", library, &file, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1"];
    let agent = Agent::by(&words, &node.cluster, &[&MODE[..], &["--apiserver", Relay::URL]].concat());
    until_found(&agent, &[30080]);
    until_told(&node.cluster, &[("web", FOUND)]);

    set("+50y");
    // A connection checks the certificate only when it opens, so the test cuts the open connections.
    relay.cut();
    let refused = errors(&agent, "unreachable");
    relay.mend();
    until("certificate that is refused", || (errors(&agent, "unreachable") >= refused + 2.0).then_some(()));
    let _late = squat(30081);
    until_found(&agent, &[30080, 30081]);
    set("+0");
    until_young(&agent);
    until_told(&node.cluster, &[("web", FOUND), ("late", FOUND)]);
    assert_eq!(agent.found(RULE), [30080, 30081]);
    assert!(agent.is_well());
}
