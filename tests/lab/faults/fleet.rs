//! Many agents of one API server. The server is killed and started again, or a roll-out restarts the agents.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    ops::Range,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use super::{FOUND, age, squat};
use crate::parts::{
    Agent, Audit, ControlPlane, Directory, PRIMARY, Role, enter_alone, events, http_get, objects, process::Process,
    until, until_within,
};

/// The port of the first agent. Each agent has its own port.
const PLACES: usize = 20_000;
/// The greatest number of times that an agent may list the Services after a restart of the server or of the agent. The
/// server may refuse the first list, or may not know the agent's resource version.
const LISTS: usize = 4;
/// The number of nodes that report one incident in an hour: one in each slot.
const SLOTS: usize = 5;
/// The greatest number of nodes that report during a test. A new hour may begin in each slot.
const TOLD: usize = 2 * SLOTS;
/// The time limit until all agents have started or have seen a change, on a small machine.
const ALL_OF_THEM: Duration = Duration::from_secs(400);

/// The agents of one API server, all on one machine. Each agent has its own node. All agents see the same listeners.
struct Fleet {
    audit: Audit,
    cluster: ControlPlane,
    directory: Directory,
    agents: Vec<Process>,
    _squatter: TcpListener,
}

impl Fleet {
    #[track_caller]
    fn of(nodes: usize) -> Self {
        enter_alone();
        let audit = Audit::new();
        let flags = audit.flags();
        let mut cluster = ControlPlane::with(&flags.each_ref().map(String::as_str));
        for number in 0..nodes {
            cluster.api().create(&objects::node(&node(number), &PRIMARY));
        }
        Role::of_chart().grant(&mut cluster);
        super::serve(&cluster, "web", 30080);
        Self { audit, cluster, directory: Directory::new(), agents: Vec::new(), _squatter: squat(30080) }
    }

    /// Starts the agents of the nodes with these numbers. The index of an agent in `agents` is its node's number.
    #[track_caller]
    fn start(&mut self, numbers: Range<usize>, interval: &str) {
        let started = numbers.clone().map(|number| {
            let arguments = [
                "agent".to_owned(),
                format!("--kubeconfig={}", self.cluster.kubeconfig("observer").display()),
                format!("--node={}", node(number)),
                "--proxy-mode=iptables".to_owned(),
                format!("--interval={interval}"),
                format!("--listen={}", place(number)),
            ];
            Process::start(env!("CARGO_BIN_EXE_portreeve"), &arguments, self.directory.path())
        });
        let started: Vec<Process> = started.collect();
        self.agents.splice(numbers.start..numbers.start, started);
    }

    #[track_caller]
    fn end(&mut self, numbers: Range<usize>) {
        let mut ending: Vec<Process> = self.agents.drain(numbers).collect();
        ending.iter().for_each(|agent| agent.signal(Signal::SIGTERM));
        for agent in &mut ending {
            until("end", || agent.has_ended().then_some(()));
        }
    }

    /// Waits until each agent of `numbers` has scanned once, as a roll-out does before its next step.
    #[track_caller]
    fn until_ready(numbers: Range<usize>) {
        for number in numbers {
            until_within(ALL_OF_THEM, "readiness", || http_get(&place(number), "/readyz"));
        }
    }

    #[track_caller]
    fn until_found(numbers: Range<usize>, squatters: u32) {
        let series = super::SERIES;
        let finds = |number| value(number, series) == Some(f64::from(squatters));
        for number in numbers {
            until_within(ALL_OF_THEM, "finding", || finds(number).then_some(()));
        }
    }

    #[track_caller]
    fn until_young(&self, since: Instant) {
        for number in 0..self.agents.len() {
            let is_young = |metrics: String| age(&metrics) < since.elapsed().as_secs_f64();
            until_within(ALL_OF_THEM, "young view", || metrics(number).is_some_and(is_young).then_some(()));
        }
    }

    /// The number of requests for all Services so far: lists, and watches that begin with all objects.
    #[track_caller]
    fn lists(&self) -> usize {
        let of_services = self.audit.of("observer").into_iter().filter(|it| it.uri.starts_with("/api/v1/services"));
        of_services.filter(|it| it.verb == "list" || it.uri.contains("sendInitialEvents=true")).count()
    }

    /// The texts of the Events about a Service, each with the nodes that wrote this text. If the server was too busy
    /// for a node's watch of endpoints, the node's text is different.
    #[track_caller]
    fn told(&self, service: &str) -> BTreeMap<String, Vec<String>> {
        let mut told = BTreeMap::<String, Vec<String>>::new();
        for event in events(&self.cluster) {
            if event["regarding"]["name"] == service && event["reason"] == FOUND {
                let node = event["related"]["name"].as_str().expect("a node");
                let note = event["note"].as_str().expect("a note");
                let sentence = note.strip_prefix(&format!("On node {node}: ")).expect("it names its node");
                told.entry(sentence.to_owned()).or_default().push(node.to_owned());
            }
        }
        told
    }

    /// A busy server may cause several texts, each from five nodes.
    #[track_caller]
    fn assert_few_told(&self, service: &str) {
        let told: usize = self.told(service).values().map(Vec::len).sum();
        assert!(told <= 4 * TOLD, "{told} Events about {service}: {:?}", self.told(service));
    }

    #[track_caller]
    fn until_told(&self, service: &str) -> (String, Vec<String>) {
        until_within(ALL_OF_THEM, "Events", || self.told(service).into_iter().find(|(_, nodes)| nodes.len() >= SLOTS))
    }
}

/// Fault (API server): the server is killed and started again, with fifty agents
/// Does: every agent connects again after a pause of its own
/// Right again: each finds a new listener, and knows a new Service, after four lists each at most
/// Lost: nothing
#[test]
fn fifty_agents_come_back_to_a_server_that_was_killed_and_ask_little() {
    const AGENTS: usize = 50;
    let mut fleet = Fleet::of(AGENTS);
    fleet.start(0..AGENTS, "5s");
    Fleet::until_found(0..AGENTS, 1);

    fleet.cluster.kill();
    let _late = squat(30081);
    let before = fleet.lists();
    fleet.cluster.restart();
    let back = Instant::now();
    super::serve(&fleet.cluster, "late", 30081);
    fleet.until_young(back);
    Fleet::until_found(0..AGENTS, 2);
    let asked = fleet.lists() - before;
    assert!(before >= AGENTS && asked <= LISTS * AGENTS, "{before} lists of {AGENTS} agents, then {asked}");
}

/// Fault (operator): two hundred agents are restarted, twenty at a time
/// Does: every new agent finds the conflicts and the Events of the earlier agent; no Event is written twice
/// Right again: each with its first scans; all find a new listener and five report it in an hour, and no agent was refused permanently
/// Lost: scans between the end of one agent and the start of the next
#[test]
fn two_hundred_agents_that_are_restarted_in_waves_write_no_event_twice_and_are_all_fresh_again() {
    const AGENTS: usize = 200;
    const AT_ONCE: usize = 20;
    const INTERVAL: &str = "10s";
    let waves = || (0..AGENTS).step_by(AT_ONCE).map(|first| first..first + AT_ONCE);
    let mut fleet = Fleet::of(AGENTS);
    for wave in waves() {
        fleet.start(wave.clone(), INTERVAL);
        Fleet::until_ready(wave);
    }
    Fleet::until_found(0..AGENTS, 1);
    let (sentence, told) = fleet.until_told("web");

    let (before, rolled) = (fleet.lists(), Instant::now());
    for wave in waves() {
        fleet.end(wave.clone());
        fleet.start(wave.clone(), INTERVAL);
        Fleet::until_ready(wave);
    }
    for number in 0..AGENTS {
        let known = || value(number, "portreeve_events_total{result=\"deduplicated\"}") >= Some(1.0);
        until_within(ALL_OF_THEM, "answer about its Event", || known().then_some(()));
    }
    let is_as_before = |fleet: &Fleet| {
        let now = fleet.told("web").remove(&sentence).expect("these Events");
        now.starts_with(&told) && now.len() <= TOLD
    };
    assert!(is_as_before(&fleet), "a restart writes nothing new: {:?}, then {:?}", told, fleet.told("web"));
    super::serve(&fleet.cluster, "late", 30081);
    let _late = squat(30081);
    fleet.until_young(rolled);
    Fleet::until_found(0..AGENTS, 2);
    fleet.until_told("late");
    assert!(is_as_before(&fleet), "{:?}, then {:?}", told, fleet.told("web"));
    ["web", "late"].iter().for_each(|service| fleet.assert_few_told(service));

    let asked = fleet.lists() - before;
    assert!(before >= AGENTS && asked <= LISTS * AGENTS, "{before} lists of {AGENTS} agents, then {asked}");
    let refused: Vec<_> = fleet.audit.of("observer").into_iter().filter(|it| [401, 403].contains(&it.code)).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

fn node(number: usize) -> String {
    format!("n{}", number + 1)
}

fn place(number: usize) -> String {
    format!("127.0.0.1:{}", PLACES + number)
}

fn metrics(number: usize) -> Option<String> {
    http_get(&place(number), "/metrics")
}

fn value(number: usize, series: &str) -> Option<f64> {
    Agent::value(&metrics(number)?, series)
}
