//! The agent gets no processor time, or its reader hangs.

use std::{thread::sleep, time::Duration};

use nix::sys::signal::Signal;

use super::{
    Incident, MODE, SQUATTED, after_looks, control_group::ControlGroup, finds_it, is_alive, looks, looks_in,
    threads::Stopped, web,
};
use crate::agent::{Agent, ask, probe, socket, until, wait_for};

/// Fault (node): it is stopped for a while (SIGSTOP), and goes on
/// Does: looks once, and not as often as it was due meanwhile
/// Right again: within two looks
/// Lost: what came and went meanwhile
#[test]
fn after_a_pause_it_is_right_within_two_looks_and_catches_none_up() {
    let Incident { agent, squatter, stage: _stage } = Incident::start(&["--interval", "1s"]);
    let before = looks();
    agent.signal(Signal::SIGSTOP);
    drop(squatter);
    // Eight looks are due meanwhile.
    sleep(Duration::from_secs(8));
    agent.signal(Signal::SIGCONT);
    let metrics = wait_for("/metrics", |text| !text.contains(SQUATTED));
    assert!(looks_in(&metrics) <= before + 4, "one may have been under way, and one due: {before}, {metrics}");
    assert!(is_alive());
}

/// Fault (node): others leave it a twentieth of a core
/// Does: looks on, as often as it can
/// Right again: within two looks
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
    let metrics = after_looks(2);
    assert!(!metrics.contains(SQUATTED), "its end is seen: {metrics}");
    drop(incident.agent);
}

/// Fault (node): the thread that reads the node hangs, as in a read that never returns
/// Does: answers on; after a minute it counts as dead (`/livez`, the probe), so that kubelet restarts it
/// Right again: within two looks, where the thread goes on by itself
/// Lost: looks meanwhile
#[test]
fn a_reader_that_hangs_counts_as_dead_and_is_right_when_it_goes_on() {
    let Incident { agent, squatter, stage: _stage } = Incident::start(&[]);
    // One that is stopped inside the allocator stops everybody, which no hanging reader does.
    let scanner = until(|| Some(Stopped::at_work("scanner", agent.pid())).filter(|_| ask("/livez", "").is_some()));
    let scanner = scanner.expect("it is stopped, and the others go on");
    let before = looks();
    drop(squatter);
    let dead = || ask("/livez", "").filter(|(status, _)| *status == 503).map(drop);
    // It is believed for a minute, about as long as one wait takes; on a busy machine it takes longer to be asked.
    until(dead).or_else(|| until(dead)).or_else(|| until(dead)).expect("it counts as dead");
    assert_eq!(probe(&socket()), Some(2));
    let metrics = wait_for("/metrics", |_| true);
    assert!(metrics.contains(SQUATTED) && looks_in(&metrics) <= before + 1, "what was found is told on: {metrics}");
    drop(scanner);
    let metrics = after_looks(2);
    assert!(!metrics.contains(SQUATTED), "its end is seen: {metrics}");
    assert!(is_alive());
}
