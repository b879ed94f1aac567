use std::sync::atomic::{AtomicBool, Ordering};

use super::{super::cluster_state::LastReading, *};
use crate::log::{LogFormat, LogLevel, LogStyle};
use portreeve_facts::{KernelFacts, Overrides, PortSet, healthy::objects};
use portreeve_kernel::Spent;
use portreeve_rules::{
    findings::Finding,
    {Limits, RULES},
};

/// A high cost of reading connections. If a reading costs this much, the agent waits longer than any test takes before
/// it reads the connections again.
const MUCH: Duration = Duration::from_secs(2);

/// The test only reports this time and does not wait.
const COSTLY: Spent = Spent { wall: MUCH, processor: MUCH };

/// A node whose ephemeral port range contains the NodePorts. The warning about the range does not depend on the
/// cluster.
fn trapped() -> KernelFacts {
    Snapshot::healthy().ephemeral("1024-65535", "").kernel
}

async fn agent(read: impl Fn(&NodeQuery) -> KernelFacts + Send + 'static) -> Agent {
    agent_of_costly(Spent::default(), read).await
}

async fn agent_of_costly(connections: Spent, read: impl Fn(&NodeQuery) -> KernelFacts + Send + 'static) -> Agent {
    let config = config_of_interval(10);
    let load = {
        let config = config.clone();
        Box::new(move || Ok(config.clone()))
    };
    let took = move |wanted: &NodeQuery| match wanted.skipped.contains(&Source::Clients) {
        true => Took::new(),
        false => Took::from([(Source::Clients, connections)]),
    };
    let scanner = Scanner::start(move |wanted: &NodeQuery| (read(wanted), took(wanted))).expect("a thread");
    Agent::with(config, load, scanner, "n1".to_owned()).await.expect("an agent")
}

fn config_of_interval(seconds: u64) -> Config {
    Config {
        cluster: ClusterSource::None,
        node: Some("n1".to_owned()),
        host_root: "/".into(),
        overrides: Overrides::default(),
        node_port_range: None,
        listen: "127.0.0.1:0".parse().expect("an address"),
        socket: None,
        node_condition: false,
        interval: Duration::from_secs(seconds),
        cpu_percent: 0.2,
        log: LogStyle { format: LogFormat::Text, level: LogLevel::Info },
        limits: Limits::default(),
    }
}

fn open(agent: &Agent) -> Vec<Finding> {
    agent.published.borrow().last.as_ref().map(|(_, board)| board.findings.clone()).unwrap_or_default()
}

#[tokio::test]
async fn a_reader_that_panics_is_counted_and_every_finding_is_held() {
    let panics = Arc::new(AtomicBool::new(false));
    let panics_now = Arc::clone(&panics);
    let mut agent = agent(move |_| {
        assert!(!panics_now.load(Ordering::Relaxed), "a bug of a reader");
        trapped()
    })
    .await;
    agent.scan(Cause::Tick).await;
    let found = open(&agent);
    assert!(!found.is_empty(), "the trap is found");
    let last = agent.published.borrow().work.last;

    panics.store(true, Ordering::Relaxed);
    agent.scan(Cause::Tick).await;
    agent.scan(Cause::Tick).await;
    {
        let work = &agent.published.borrow().work;
        assert_eq!((&work.panics, work.scans), (&[("reader", 2)].into(), 1));
        assert_eq!(work.last, last, "nothing was judged");
    }
    assert_eq!(open(&agent), found);

    panics.store(false, Ordering::Relaxed);
    agent.scan(Cause::Tick).await;
    assert_eq!((open(&agent), agent.published.borrow().work.scans), (found, 2));
}

#[tokio::test]
async fn an_agent_that_lost_a_task_ends_and_names_the_task() {
    let mut agent = agent(|_| trapped()).await;
    agent.tasks.spawn("watching the cluster", async { panic!("a bug of a watch") });
    let ended = agent.run_until_stopped().await.expect_err("the agent must not continue without its task").to_string();
    assert!(ended.starts_with("watching the cluster ended: ") && ended.contains("a bug of a watch"), "{ended}");
}

#[tokio::test]
async fn a_rule_that_panics_is_counted_and_named_and_its_findings_are_held() {
    let mut agent = agent(|_| trapped()).await;
    agent.scan(Cause::Tick).await;
    let found = open(&agent);
    let rule = found.first().expect("the trap is found").key.rule;
    let snapshot = agent.before.clone().expect("a scan");
    let opinions = RULES.iter().map(|it| Opinion { rule: it, judgements: (it.name() != rule).then(|| Ok(Vec::new())) });
    agent.record(RoundTime::first(snapshot.at), &snapshot, opinions);
    let named = u64::try_from(RULES.iter().filter(|it| it.name() == rule).count()).expect("a few");
    assert_eq!(agent.published.borrow().work.panics, [(rule.0, named)].into());
    let of_rule = |findings: Vec<Finding>| findings.into_iter().filter(|it| it.key.rule == rule).collect::<Vec<_>>();
    assert_eq!(of_rule(open(&agent)), of_rule(found));
    let last = agent.published.borrow().last.clone().expect("a scan");
    assert!(
        last.1.unknown.iter().any(|it| it.rows.rule == rule && it.gap.detail.contains(rule.0)),
        "{:?}",
        last.1.unknown
    );
}

#[tokio::test]
async fn if_connections_cost_much_scans_go_on_without_them_and_keep_the_last_ones() {
    let skipped = Arc::new(std::sync::Mutex::new(Vec::new()));
    let queries = Arc::clone(&skipped);
    let mut agent = agent_of_costly(COSTLY, move |wanted| {
        queries.lock().expect("no panic").push(wanted.skipped.iter().copied().collect::<Vec<_>>());
        let mut facts = trapped();
        facts.hostname = format!("scan {}", queries.lock().expect("no panic").len());
        if wanted.skipped.contains(&Source::Clients) {
            facts.clients =
                Reading::Gap(portreeve_facts::Gap::new(Source::Clients, portreeve_facts::Why::NotRequested, "skipped"));
        }
        facts
    })
    .await;
    agent.scan(Cause::Tick).await;
    let found = open(&agent);
    let read = agent.before.clone().expect("a scan");
    assert_eq!(read.connections_at, None);
    agent.scan(Cause::Change).await;
    agent.scan(Cause::Tick).await;
    let seen = agent.before.clone().expect("a scan");
    assert_eq!(seen.connections_at, Some(read.at), "with the time of the connections");
    assert!(seen.kernel.clients.seen().is_some(), "the connections stay");
    assert_eq!(seen.kernel.hostname, "scan 3", "the rest was read again");
    assert_eq!(open(&agent), found);
    let scans = skipped.lock().expect("no panic").clone();
    let costly: Vec<Source> = connections().collect::<BTreeSet<_>>().into_iter().collect();
    assert_eq!(scans, [Vec::new(), costly.clone(), costly]);
    let now = Instant::now();
    assert!(!agent.cadence.reads_connections(now) && agent.cadence.reads_connections(now + MUCH.mul_f64(500.0)));
    assert!(agent.cadence.next(now + agent.config.interval).is_ok(), "no tick waits for them");
}

#[tokio::test]
async fn a_wait_for_connections_makes_no_scan_cheaper() {
    let mut agent = agent_of_costly(Spent { wall: MUCH, processor: Duration::ZERO }, |_| {
        let begun = thread_cpu_time();
        while thread_cpu_time() - begun < MUCH / 20 {}
        trapped()
    })
    .await;
    agent.scan(Cause::Tick).await;
    assert!(agent.last_cost >= MUCH / 20);
    let now = Instant::now();
    assert!(agent.cadence.next(now + agent.config.interval).is_err(), "a scan costs more than an interval pays for");
    assert!(agent.cadence.reads_connections(now), "reading connections cost no processor time");
}

#[tokio::test]
async fn facts_that_the_cluster_never_had_before_are_compared_with_connections_once() {
    let read = Arc::new(std::sync::Mutex::new(Vec::new()));
    let queries = Arc::clone(&read);
    let mut agent = agent_of_costly(COSTLY, move |wanted| {
        queries.lock().expect("no panic").push(wanted.skipped.is_empty());
        trapped()
    })
    .await;
    agent.scan(Cause::Tick).await;
    let none = agent.cluster.facts();
    let all = Arc::new(Snapshot::healthy().cluster);
    for facts in [&none, &all, &none, &all] {
        let (_cluster, last) = watch::channel(LastReading::of(ClusterFacts::clone(facts)));
        agent.cluster = ClusterState::Read(last);
        agent.scan(Cause::Change).await;
    }
    assert_eq!(*read.lock().expect("no panic"), [true, false, true, false, false]);
}

#[tokio::test]
async fn a_scan_reports_that_this_host_may_not_be_the_named_node() {
    let mut agent = agent(|_| Snapshot::healthy().kernel).await;
    let healthy = Snapshot::healthy().cluster;
    let mut moved = healthy.clone();
    for node in objects(&mut moved.nodes) {
        node.addresses.iter_mut().for_each(|address| address.ip = [203, 0, 113, 99].into());
    }
    for (cluster, expected) in [(moved, 1), (healthy, 0)] {
        let (_cluster, last) = watch::channel(LastReading::of(cluster));
        agent.cluster = ClusterState::Read(last);
        agent.scan(Cause::Change).await;
        let (snapshot, _) = agent.published.borrow().last.clone().expect("a scan");
        let doubts = snapshot.cluster.rejected.iter().filter(|gap| gap.detail.contains("may be another node"));
        assert_eq!(doubts.count(), expected);
    }
}

#[tokio::test]
async fn the_owner_of_the_port_that_was_tried_is_searched_even_if_the_configuration_has_another_port_now() {
    let searched = Arc::new(std::sync::Mutex::new(PortSet::default()));
    let queries = Arc::clone(&searched);
    let mut agent = agent(move |wanted| {
        queries.lock().expect("no panic").clone_from(&wanted.owner_ports);
        trapped()
    })
    .await;
    let tried = OwnPort { address: "127.0.0.1:4711".parse().expect("an address"), taken: true };
    agent.own_port = watch::channel(Reading::Seen(tried)).1;
    agent.config.listen = "127.0.0.1:4712".parse().expect("an address");
    agent.scan(Cause::Tick).await;
    let searched = searched.lock().expect("no panic");
    assert!(searched.contains(4711) && !searched.contains(4712), "{searched:?}");
}

#[tokio::test]
async fn clients_that_bound_their_port_on_purpose_are_read_now_and_then_and_as_long_as_there_are_any() {
    let outgoing = Arc::new(AtomicBool::new(false));
    let (there, every_client) = (Arc::clone(&outgoing), Arc::new(AtomicBool::new(false)));
    let requested = Arc::clone(&every_client);
    let mut agent = agent(move |wanted| {
        let every = wanted.bound_on_purpose;
        requested.store(every, Ordering::Relaxed);
        let mut facts = trapped();
        if let Reading::Seen(clients) = &mut facts.clients {
            clients.passed_over = !every;
            clients.outgoing = u64::from(every && there.load(Ordering::Relaxed));
        }
        facts
    })
    .await;
    let mut scans = Vec::new();
    for number in 0..2 * EVERY_CLIENT + 4 {
        // The client exists during two scans. The first of these scans reads all client sockets.
        outgoing.store((EVERY_CLIENT..EVERY_CLIENT + 2).contains(&number), Ordering::Relaxed);
        agent.scan(Cause::Tick).await;
        scans.extend(every_client.load(Ordering::Relaxed).then_some(number));
    }
    assert_eq!(scans, [0, EVERY_CLIENT, EVERY_CLIENT + 1, EVERY_CLIENT + 2, 2 * EVERY_CLIENT]);
}

#[test]
fn a_configuration_that_cannot_be_used_is_reported_until_it_can_and_keeps_the_time_of_the_one_in_force() {
    let mut config = config_of_interval(10);
    let answer = Arc::new(std::sync::Mutex::new(Ok(config.clone())));
    let loaded = Arc::clone(&answer);
    let mut reloader = Reloader::new(Box::new(move || loaded.lock().expect("no panic").clone()));
    let mut reload = |new: Result<Config, String>, requested| {
        *answer.lock().expect("no panic") = new;
        reloader.last.adopted = None;
        reloader.reload(&mut config, requested);
        (reloader.last.is_valid, reloader.last.adopted.is_some())
    };
    let same = config_of_interval(10);
    assert_eq!(reload(Ok(same.clone()), false), (true, false), "it was read, and nothing is new");
    assert_eq!(reload(Err("agent.yaml:1: unknown key".to_owned()), false), (false, false));
    assert_eq!(reload(Err("agent.yaml:1: unknown key".to_owned()), false), (false, false));
    assert_eq!(reload(Ok(same.clone()), false), (true, true), "it is valid again");
    assert_eq!(reload(Ok(config_of_interval(20)), false), (true, true));
    assert_eq!(reload(Ok(config_of_interval(20)), true), (true, true), "a signal requested it");
    let louder = LogStyle { format: LogFormat::Text, level: LogLevel::Debug };
    assert_eq!(reload(Ok(Config { log: louder, ..config_of_interval(20) }), false), (true, true), "the log is a part");
}
