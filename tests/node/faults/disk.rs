//! A program deletes the file of the agent's socket.

use std::fs;

use super::{Incident, finds_it};
use crate::agent::{Agent, probe, socket, until};

/// Fault (disk): the agent's socket file is removed
/// Does: continues to scan, and answers at its port; fails the liveness probe
/// Right again: with its next start
/// Lost: nothing; kubelet restarts the agent
#[test]
fn it_continues_to_scan_without_the_file_of_its_socket_and_the_probe_fails() {
    let Incident { agent, squatter: _squatter, stage } = Incident::start(&[]);
    let first = socket();
    assert_eq!(probe(&first), Some(0));
    fs::remove_file(&first).expect("the file exists");
    assert_eq!(probe(&first), Some(2));
    assert!(finds_it());
    drop(agent);
    let _next = Agent::start(&stage, &super::MODE);
    until(|| (probe(&socket()) == Some(0)).then_some(())).expect("the agent is alive");
}
