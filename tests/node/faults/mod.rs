//! Faults of a node, and mistakes of people with the node's agent. Each comment above a test is an entry of
//! `docs/faults.md`.

mod clock;
mod control_group;
mod disk;
mod files;
mod kernel;
mod log;
mod memory;
mod operator;
mod processor;
mod resources;
mod threads;

use crate::{
    agent::{Agent, SQUATTED, ask, probe, socket, wait_for, web},
    proxy::Squatter,
    stage::Stage,
};

const MODE: [&str; 2] = ["--proxy-mode", "iptables"];

/// A node with an agent, and a process on a NodePort (the squatter). The agent has found the squatter.
struct Incident {
    agent: Agent,
    squatter: Squatter,
    stage: Stage,
}

impl Incident {
    #[track_caller]
    fn start(arguments: &[&str]) -> Self {
        let stage = web();
        let agent = Agent::start(&stage, &[&MODE, arguments].concat());
        Self::with(agent, stage)
    }

    #[track_caller]
    fn with(agent: Agent, stage: Stage) -> Self {
        let squatter = Squatter::on("0.0.0.0:30080");
        until_it_finds_it();
        Self { agent, squatter, stage }
    }
}

/// On a busy machine, the first scans may be incomplete.
#[track_caller]
fn until_it_finds_it() {
    wait_for("/metrics", |text| text.contains(SQUATTED));
}

#[track_caller]
fn scans_in(metrics: &str) -> u64 {
    let count = metrics.lines().find_map(|line| line.strip_prefix("portreeve_scans_total ")?.strip_suffix(".0"));
    count.and_then(|count| count.parse().ok()).expect("a number of scans")
}

#[track_caller]
fn scans() -> u64 {
    scans_in(&wait_for("/metrics", |_| true))
}

#[track_caller]
fn after_scans(more: u64) -> String {
    // A scan that is running now does not count.
    let enough = scans() + 1 + more;
    wait_for("/metrics", |text| scans_in(text) >= enough)
}

#[track_caller]
fn finds_it() -> bool {
    after_scans(2).contains(SQUATTED)
}

fn is_alive() -> bool {
    ask("/livez", "").is_some_and(|(status, _)| status == 200) && probe(&socket()) == Some(0)
}
