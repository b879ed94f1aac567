//! Many agents of one API server that dies and comes back.

use std::time::Instant;

use super::{age, squat};
use crate::parts::{
    Agent, Audit, ControlPlane, Directory, PRIMARY, Role, enter_alone, http_get, objects, process::Process, until,
};

/// Agents of it.
const AGENTS: usize = 50;
/// The first port of the agents, one each.
const PLACES: usize = 20_000;
/// How often an agent may list the Services after the server is back: at first it may be refused, and a version that the
/// server does not know is read anew.
const LISTS: usize = 8;

/// Fault (API server): it is killed and started again under fifty agents
/// Does: each keeps what it knew, and comes back after a pause of its own
/// Right again: each finds a new listener, and knows a new Service, after at most eight lists
/// Lost: nothing
#[test]
fn fifty_agents_come_back_to_a_server_that_was_killed_and_ask_little() {
    enter_alone();
    let audit = Audit::new();
    let flags = audit.flags();
    let mut cluster = ControlPlane::with(&flags.each_ref().map(String::as_str));
    cluster.api().create(&objects::node("n1", &PRIMARY));
    Role::of_chart().grant(&mut cluster);
    super::serve(&cluster, "web", 30080);
    let _squatter = squat(30080);
    let directory = Directory::new();
    let _agents: Vec<Process> = (0..AGENTS).map(|number| start(&cluster, &directory, number)).collect();
    let finds = |number: usize, squatters: u32| {
        let series = format!("portreeve_findings{{rule=\"{}\",severity=\"critical\"}}", super::RULE);
        (Agent::value(&metrics(number)?, &series)? == f64::from(squatters)).then_some(())
    };
    for number in 0..AGENTS {
        until("finding", || finds(number, 1));
    }

    cluster.kill();
    let _late = squat(30081);
    let lists = |audit: &Audit| {
        let asked = audit.of("observer").into_iter();
        asked.filter(|it| it.verb == "list" && it.uri.starts_with("/api/v1/services")).count()
    };
    let before = lists(&audit);
    cluster.restart();
    let back = Instant::now();
    super::serve(&cluster, "late", 30081);
    for number in 0..AGENTS {
        until("young view", || (age(&metrics(number)?) < back.elapsed().as_secs_f64()).then_some(()));
        until("finding", || finds(number, 2));
    }
    let asked = lists(&audit) - before;
    assert!(asked <= LISTS * AGENTS, "{asked} lists of {AGENTS} agents");
}

fn start(cluster: &ControlPlane, directory: &Directory, number: usize) -> Process {
    let arguments = [
        "agent".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig("observer").display()),
        "--node=n1".to_owned(),
        "--proxy-mode=iptables".to_owned(),
        "--interval=5s".to_owned(),
        format!("--listen={}", place(number)),
        format!("--heartbeat={}/heartbeat-{number}", directory.path().display()),
    ];
    Process::start(env!("CARGO_BIN_EXE_portreeve"), &arguments, directory.path())
}

fn place(number: usize) -> String {
    format!("127.0.0.1:{}", PLACES + number)
}

fn metrics(number: usize) -> Option<String> {
    http_get(&place(number), "/metrics")
}
