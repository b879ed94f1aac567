//! The agent gets no processor time, or the thread that reads the node hangs.

use std::{thread::sleep, time::Duration};

use nix::sys::signal::Signal;

use super::{
    Incident, MODE, SQUATTED, after_scans, control_group::ControlGroup, finds_it, is_alive, scans, scans_in,
    threads::Stopped, web,
};
use crate::agent::{Agent, ask, probe, socket, until, wait_for};

/// Fault (node): the agent is stopped for a while (SIGSTOP)
/// Does: scans once for all missed intervals
/// Right again: within two scans
/// Lost: changes that began and ended meanwhile
#[test]
fn it_is_right_within_two_scans_after_a_pause_and_repeats_no_missed_scan() {
    let Incident { agent, squatter, stage: _stage } = Incident::start(&["--interval", "1s"]);
    let before = scans();
    agent.signal(Signal::SIGSTOP);
    drop(squatter);
    // Long enough for eight scans.
    sleep(Duration::from_secs(8));
    agent.signal(Signal::SIGCONT);
    let metrics = wait_for("/metrics", |text| !text.contains(SQUATTED));
    assert!(
        scans_in(&metrics) <= before + 4,
        "one scan may have been running, and one may have been due: {before}, {metrics}"
    );
    assert!(is_alive());
}

/// Fault (node): the agent gets a twentieth of a core
/// Does: continues to scan, less often
/// Right again: within two scans
/// Lost: nothing
#[test]
fn with_a_twentieth_of_a_core_it_finds_and_clears() {
    let stage = web();
    let group = ControlGroup::of("cpu");
    group.limit_processor(5);
    let agent = Agent::of(group.within(&stage.command("agent")), &stage, &MODE);
    let incident = Incident::with(agent, stage);
    assert!(finds_it());
    drop(incident.squatter);
    let metrics = after_scans(2);
    assert!(!metrics.contains(SQUATTED), "the finding ends: {metrics}");
    drop(incident.agent);
}

/// Fault (node): the agent's thread that reads the node hangs
/// Does: continues to answer; after a minute, the liveness probe fails, and the kubelet restarts the agent
/// Right again: within two scans, if the thread continues by itself
/// Lost: scans meanwhile
#[test]
fn a_reader_that_hangs_counts_as_dead_and_is_right_when_it_continues() {
    let Incident { agent, squatter, stage: _stage } = Incident::start(&[]);
    // A thread that is stopped inside the memory allocator blocks all threads, but a thread that hangs in a read blocks
    // no other thread. So the test repeats the stop until the agent answers while the thread is stopped.
    let scanner = until(|| Some(Stopped::at_work("scanner", agent.pid())).filter(|_| ask("/livez", "").is_some()));
    let scanner = scanner.expect("the thread is stopped, and the others run");
    let before = scans();
    drop(squatter);
    let dead = || ask("/livez", "").filter(|(status, _)| *status == 503).map(drop);
    // The agent counts as dead after a minute. One call of `until` waits about a minute. On a busy machine, the test
    // may need three calls.
    until(dead).or_else(|| until(dead)).or_else(|| until(dead)).expect("the agent is treated as dead");
    assert_eq!(probe(&socket()), Some(2));
    let metrics = wait_for("/metrics", |_| true);
    assert!(metrics.contains(SQUATTED) && scans_in(&metrics) <= before + 1, "a known finding stays: {metrics}");
    drop(scanner);
    let metrics = after_scans(2);
    assert!(!metrics.contains(SQUATTED), "the finding ends: {metrics}");
    assert!(is_alive());
}
