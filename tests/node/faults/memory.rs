//! Another program, or the agent itself, uses all memory.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::{Command, Stdio},
};

use nix::sys::signal::Signal;

use super::{Incident, MODE, SQUATTED, after_scans, control_group::ControlGroup, finds_it, is_alive, web};
use crate::agent::{Agent, wait_for};

const GREEDY: &str = "my @all; push @all, 'x' x (1 << 20) while 1";

/// Fault (node): a neighbour in the agent's control group uses all memory, and the kernel kills the neighbour
/// Does: continues
/// Right again: always
/// Lost: nothing
#[test]
fn a_neighbour_that_takes_all_memory_is_killed_and_the_agent_goes_on() {
    let stage = web();
    let group = ControlGroup::of("memory");
    group.limit_memory(192);
    let agent = Agent::of(group.within(&stage.command("agent")), &stage, &MODE);
    let incident = Incident::with(agent, stage);
    let mut greedy = Command::new("perl");
    greedy.args(["-e", GREEDY]);
    let ended = group.within(&greedy).stderr(Stdio::null()).status().expect("perl runs");
    assert_eq!(ended.signal(), Some(Signal::SIGKILL as i32), "{ended:?}");
    assert!(finds_it() && is_alive());
    drop(incident.squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
    drop(incident.agent);
}

/// Fault (node): the agent reaches its memory limit, and the kernel kills the agent
/// Does: ends without leftovers; a new agent has the same findings
/// Right again: within two scans of the next start
/// Lost: the age of open findings
#[test]
fn an_agent_killed_for_its_memory_leaves_nothing_behind_and_the_next_finds_the_same() {
    let group = ControlGroup::of("memory");
    let Incident { agent, squatter: _squatter, stage } = {
        let stage = web();
        let agent = Agent::of(group.within(&stage.command("agent")), &stage, &MODE);
        Incident::with(agent, stage)
    };
    drop(agent);
    group.limit_memory(2);
    let mut small = Agent::of(group.within(&stage.command("agent")), &stage, &MODE);
    let ended = small.ended();
    assert_eq!(ended.signal(), Some(Signal::SIGKILL as i32), "{ended:?}");
    group.limit_memory(192);
    let _next = Agent::of(group.within(&stage.command("agent")), &stage, &MODE);
    let metrics = after_scans(2);
    assert!(metrics.contains(SQUATTED), "{metrics}");
}
