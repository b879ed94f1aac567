//! Faults of a node, and of what people do to its agent: each comment is an entry of `docs/faults.md`.

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

/// What the agents of these tests are started with: nobody tells them the mode.
const MODE: [&str; 2] = ["--proxy-mode", "iptables"];

/// A node with an agent that has found a squatter.
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

/// Waits until it says that the squatter is there: on a busy machine the first looks may know less.
#[track_caller]
fn until_it_finds_it() {
    wait_for("/metrics", |text| text.contains(SQUATTED));
}

/// How often an agent has looked by what it exposes.
#[track_caller]
fn looks_in(metrics: &str) -> u64 {
    let count = metrics.lines().find_map(|line| line.strip_prefix("portreeve_scans_total ")?.strip_suffix(".0"));
    count.and_then(|count| count.parse().ok()).expect("a count of looks")
}

/// How often it has looked.
#[track_caller]
fn looks() -> u64 {
    looks_in(&wait_for("/metrics", |_| true))
}

/// What it exposes once it has begun and ended so many looks from now on.
#[track_caller]
fn after_looks(more: u64) -> String {
    // The one that may be under way does not count.
    let enough = looks() + 1 + more;
    wait_for("/metrics", |text| looks_in(text) >= enough)
}

/// Whether it says that the squatter is there, after two more looks.
#[track_caller]
fn finds_it() -> bool {
    after_looks(2).contains(SQUATTED)
}

/// Whether it answers that it is alive, at its port and to kubelet's probe.
fn is_alive() -> bool {
    ask("/livez", "").is_some_and(|(status, _)| status == 200) && probe(&socket()) == Some(0)
}
