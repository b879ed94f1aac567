//! Descriptors and threads that run out.

use std::{process::Command, time::Duration};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Incident, MODE, SQUATTED, after_looks, control_group::ControlGroup, finds_it, is_alive, looks, web};
use crate::agent::{Agent, wait_for};

/// As many descriptors as an agent has by default.
const USUAL: u64 = 1024;

/// Within this a thread that has nothing to do ends by default: ten seconds, in tokio.
const UNTIL_IDLE_THREADS_END: Duration = Duration::from_secs(12);

/// Lets an agent that runs have so many descriptors.
fn limit_descriptors(agent: &Agent, number: u64) {
    let limit = format!("--nofile={number}:{USUAL}");
    let prlimit = Command::new("prlimit").args(["--pid", &agent.pid().to_string(), &limit]).status();
    assert!(prlimit.expect("prlimit of util-linux is installed").success());
}

/// What an agent that cannot answer says of itself.
#[track_caller]
fn state(agent: &mut Agent) -> Value {
    agent.signal(Signal::SIGUSR1);
    serde_json::from_str(&agent.says("\"state\"")).expect("a line of JSON")
}

/// Fault (node): it runs out of file descriptors
/// Does: nothing can be read or answered; each source is a gap, and what was found is held
/// Right again: within two looks of the first free descriptor
/// Lost: scrapes, and probes
#[test]
fn without_a_descriptor_what_was_found_is_held() {
    let Incident { mut agent, squatter, stage: _stage } = Incident::start(&[]);
    let before = looks();
    // Less than it has open: not one more.
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
    // One that was under way may have read nothing.
    let metrics = after_looks(2);
    assert!(!metrics.contains(SQUATTED) && is_alive(), "its end is seen: {metrics}");
}

/// Fault (node): no further thread or process may be started
/// Does: goes on with those it has
/// Right again: all the time
/// Lost: nothing
#[test]
fn without_another_thread_it_finds_and_clears() {
    let stage = web();
    let group = ControlGroup::of("pids");
    let agent = Agent::of(group.within(&stage.command("agent")), &stage, &MODE);
    let incident = Incident::with(agent, stage);
    assert!(finds_it());
    // None, not even in the place of one that ends: a neighbour took all. Whoever ends for want of work has ended by then.
    group.limit_threads(1);
    std::thread::sleep(UNTIL_IDLE_THREADS_END);
    assert!(finds_it());
    drop(incident.squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
    assert!(is_alive());
    drop(incident.agent);
}

/// Fault (node): it may not start a single thread
/// Does: ends, and says what it lacked
/// Right again: with the next start that may
/// Lost: looks meanwhile
#[test]
fn where_it_may_not_start_a_thread_it_says_so_and_ends() {
    let stage = web();
    let group = ControlGroup::of("pids");
    group.limit_threads(1);
    let mut agent = Agent::of(group.within(&stage.command("agent")), &stage, &MODE);
    agent.says("starting to log");
    let ended = agent.ended();
    assert_eq!(ended.code(), Some(2), "{ended:?}");
}
