//! The agent can get no further descriptor, or can start no further thread.

use std::{process::Command, time::Duration};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Incident, MODE, SQUATTED, after_scans, control_group::ControlGroup, finds_it, is_alive, scans, web};
use crate::agent::{Agent, wait_for};

/// The usual limit of descriptors of an agent.
const USUAL: u64 = 1024;

/// After this time, idle threads have ended: by default, tokio ends an idle thread after ten seconds.
const UNTIL_IDLE_THREADS_END: Duration = Duration::from_secs(12);

fn limit_descriptors(agent: &Agent, number: u64) {
    let limit = format!("--nofile={number}:{USUAL}");
    let prlimit = Command::new("prlimit").args(["--pid", &agent.pid().to_string(), &limit]).status();
    assert!(prlimit.expect("prlimit of util-linux is installed").success());
}

/// Returns the state that the agent logs after a signal, because the agent may be unable to answer requests.
#[track_caller]
fn state(agent: &mut Agent) -> Value {
    agent.signal(Signal::SIGUSR1);
    serde_json::from_str(&agent.says("\"state\"")).expect("a line of JSON")
}

/// Fault (node): the agent runs out of file descriptors
/// Does: reports each source as unread, keeps known findings open, and does not answer requests
/// Right again: within two scans of the first free descriptor
/// Lost: scrapes, and probes
#[test]
fn known_findings_are_held_without_a_descriptor() {
    let Incident { mut agent, squatter, stage: _stage } = Incident::start(&[]);
    let before = scans();
    // The limit is smaller than the number of open descriptors. So the agent cannot open any further descriptor.
    limit_descriptors(&agent, 4);
    let during = loop {
        let state = state(&mut agent);
        if state["scans"].as_u64() >= Some(before + 4) {
            break state;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(during["critical"], 1, "{during}");
    assert!(during["unknown"].as_u64() > Some(0), "{during}");
    drop(squatter);
    limit_descriptors(&agent, USUAL);
    // A scan that ran while the limit changed may have read nothing.
    let metrics = after_scans(2);
    assert!(!metrics.contains(SQUATTED) && is_alive(), "the finding ends: {metrics}");
}

/// Fault (node): the agent cannot start a new thread or process
/// Does: continues with its threads
/// Right again: always
/// Lost: nothing
#[test]
fn it_finds_and_clears_without_another_thread() {
    let stage = web();
    let group = ControlGroup::of("pids");
    let agent = Agent::of(group.within(&stage.command("agent")), &stage, &MODE);
    let incident = Incident::with(agent, stage);
    assert!(finds_it());
    // The agent can start no thread, as if another program used all threads. The agent cannot replace idle threads that
    // have ended. So the test waits until the idle threads have ended.
    group.limit_threads(1);
    std::thread::sleep(UNTIL_IDLE_THREADS_END);
    assert!(finds_it());
    drop(incident.squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
    assert!(is_alive());
    drop(incident.agent);
}

/// Fault (node): the agent cannot start any thread
/// Does: ends, and names the missing resource
/// Right again: with the next start that may start threads
/// Lost: scans meanwhile
#[test]
fn it_reports_and_ends_if_it_may_not_start_a_thread() {
    let stage = web();
    let group = ControlGroup::of("pids");
    group.limit_threads(1);
    let mut agent = Agent::of(group.within(&stage.command("agent")), &stage, &MODE);
    agent.says("starting to log");
    let ended = agent.ended();
    assert_eq!(ended.code(), Some(2), "{ended:?}");
}
