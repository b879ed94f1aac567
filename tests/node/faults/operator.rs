//! What people and their tools do with an agent: signals, a second agent, a wrong name.

use nix::sys::signal::Signal;

use super::{Incident, MODE, SQUATTED, finds_it, is_alive, threads::Stopped};
use crate::{
    agent::{Agent, exchange_with, until, wait_for, web},
    proxy::Squatter,
};

/// Fault (operator): the agent gets SIGTERM while a scan hangs
/// Does: ends with exit code 0, without waiting for the scan
/// Right again: at once
/// Lost: this scan
#[test]
fn it_ends_in_the_middle_of_a_scan() {
    let Incident { mut agent, squatter: _squatter, stage: _stage } = Incident::start(&[]);
    let scanner = Stopped::at_work("scanner", agent.pid());
    agent.signal(Signal::SIGTERM);
    agent.says("stopped");
    scanner.until_it_ends();
    let ended = agent.ended();
    assert!(ended.success(), "{ended:?}");
}

/// Fault (operator): the agent gets SIGHUP and SIGUSR1 a thousand times
/// Does: runs as before
/// Right again: always
/// Lost: nothing
#[test]
fn a_thousand_signals_change_nothing() {
    let Incident { agent, squatter: _squatter, stage: _stage } = Incident::start(&["--log-level", "error"]);
    for _ in 0..1000 {
        agent.signal(Signal::SIGHUP);
        agent.signal(Signal::SIGUSR1);
    }
    assert!(finds_it() && is_alive());
}

/// Fault (operator): two agents run on one node with one address
/// Does: the second agent names the owner of the port (`host-network-port-taken/agent`), and both agents continue to
/// scan
/// Right again: when the first agent has ended, the second answers
/// Lost: scrapes of the second agent
#[test]
fn a_second_agent_names_the_owner_of_its_port_and_uses_the_port_later() {
    let Incident { agent: first, squatter: _squatter, stage } = Incident::start(&[]);
    let arguments = [&MODE[..], &["--log-level", "info"]].concat();
    let mut second = Agent::of(stage.command("agent"), &stage, &arguments);
    second.says("cannot listen here");
    second.says("host-network-port-taken/agent");
    assert!(finds_it(), "the first continues");
    drop(first);
    wait_for("/metrics", |text| {
        text.contains(SQUATTED) && !text.contains("finding_info{rule=\"host-network-port-taken\"")
    });
}

/// Fault (operator): two agents run on one node with two addresses
/// Does: both agents have the same findings
/// Right again: always
/// Lost: nothing
#[test]
fn two_agents_at_two_addresses_find_the_same() {
    const OTHER: &str = "127.0.0.1:29518";
    let Incident { agent: _first, squatter: _squatter, stage } = Incident::start(&[]);
    let arguments = [&MODE[..], &["--listen", OTHER]].concat();
    let _second = Agent::of(stage.command("agent"), &stage, &arguments);
    let finds = || exchange_with(OTHER, "GET", "/metrics", "").filter(|(_, body)| body.contains(SQUATTED)).map(drop);
    until(finds).expect("a finding of the second");
    assert!(finds_it());
}

/// Fault (operator): the Node name in the agent's settings does not exist
/// Does: finds listeners
/// Right again: with the next start with the right name
/// Lost: facts that depend on the Node
#[test]
fn listeners_are_found_even_with_a_wrong_node_name() {
    let stage = web();
    let mut command = crate::stage::portreeve();
    command.arg("agent").arg("--services").arg(stage.manifest_with(&MODE)).args(["--node", "n9"]);
    let agent = Agent::of(command, &stage, &MODE);
    let _squatter = Squatter::on("0.0.0.0:30080");
    wait_for("/metrics", |text| text.contains(SQUATTED));
    assert!(finds_it());
    drop(agent);
    let _right = Agent::start(&stage, &MODE);
    wait_for("/metrics", |text| text.contains(SQUATTED));
    assert!(finds_it());
}
