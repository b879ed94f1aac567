use std::sync::atomic::{AtomicBool, Ordering};

use super::{super::scanner::thread_cpu_time, *};
use crate::{
    facts::{KernelFacts, Overrides},
    findings::Finding,
    kernel::Took,
    rules::{Limits, RULES},
};

/// The share of a core of these agents, per cent, and what a costly look of theirs takes at least.
const SHARE: f64 = 0.2;
const TOIL: Duration = Duration::from_millis(50);

/// A node whose ephemeral range covers the NodePorts: a warning, for which no cluster is needed.
fn trapped() -> KernelFacts {
    Snapshot::healthy().ephemeral("1024-65535", "").kernel
}

/// An agent without a cluster, whose node is what `read` says.
async fn agent(read: impl Fn(&NodeQuery) -> KernelFacts + Send + 'static) -> Agent {
    let config = Config {
        cluster: ClusterSource::None,
        node: Some("n1".to_owned()),
        host_root: "/".into(),
        overrides: Overrides::default(),
        node_port_range: None,
        listen: "127.0.0.1:0".parse().expect("an address"),
        socket: None,
        interval: Duration::from_secs(10),
        cpu_percent: SHARE,
        heartbeat: None,
        limits: Limits::default(),
    };
    let load = {
        let config = config.clone();
        Box::new(move || Ok(config.clone()))
    };
    let scanner = Scanner::start(move |wanted: &NodeQuery| (read(wanted), Took::new())).expect("a thread");
    Agent::with(config, load, scanner, "n1".to_owned()).await.expect("an agent")
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
    agent.scan_everything().await;
    let found = open(&agent);
    assert!(!found.is_empty(), "the trap is found");
    let last = agent.published.borrow().work.last;

    panics.store(true, Ordering::Relaxed);
    agent.scan_everything().await;
    agent.scan_everything().await;
    {
        let work = &agent.published.borrow().work;
        assert_eq!((work.panics.as_slice(), work.scans), ([("reader", 2)].as_slice(), 1));
        assert_eq!(work.last, last, "nothing was judged");
    }
    assert_eq!(open(&agent), found);

    panics.store(false, Ordering::Relaxed);
    agent.scan_everything().await;
    assert_eq!((open(&agent), agent.published.borrow().work.scans), (found, 2));
}

#[tokio::test]
async fn a_rule_that_panics_is_counted_and_named_and_its_findings_are_held() {
    let mut agent = agent(|_| trapped()).await;
    agent.scan_everything().await;
    let found = open(&agent);
    let rule = found.first().expect("the trap is found").key.rule;
    let snapshot = agent.before.clone().expect("a look");
    let opinions = RULES.iter().map(|it| Opinion { rule: it, judgements: (it.id != rule).then(|| Ok(Vec::new())) });
    agent.record(&snapshot, opinions);
    assert_eq!(agent.published.borrow().work.panics, [(rule.0, 1)]);
    let of_rule = |findings: Vec<Finding>| findings.into_iter().filter(|it| it.key.rule == rule).collect::<Vec<_>>();
    assert_eq!(of_rule(open(&agent)), of_rule(found));
    let last = agent.published.borrow().last.clone().expect("a look");
    assert!(last.1.unknown.iter().any(|it| it.rule == rule && it.gap.detail.contains(rule.0)), "{:?}", last.1.unknown);
}

#[tokio::test]
async fn the_interval_is_stretched_while_looks_are_costly_and_no_longer() {
    let costly = Arc::new(AtomicBool::new(true));
    let is_costly = Arc::clone(&costly);
    let mut agent = agent(move |_| {
        let begun = thread_cpu_time();
        while is_costly.load(Ordering::Relaxed) && thread_cpu_time() - begun < TOIL {
            std::hint::spin_loop();
        }
        trapped()
    })
    .await;
    let interval = agent.config.interval;
    agent.scan_everything().await;
    let begun = time::Instant::now();
    let due = agent.scan_everything().await;
    assert!(due >= begun + TOIL.mul_f64(100.0 / SHARE), "a share of {SHARE} per cent is kept");
    costly.store(false, Ordering::Relaxed);
    let due = agent.scan_everything().await;
    assert!(due <= time::Instant::now() + interval, "a cheap look is not put off");
}

#[tokio::test]
async fn a_change_of_the_cluster_walks_no_connections_and_keeps_what_they_showed() {
    let skipped = Arc::new(std::sync::Mutex::new(Vec::new()));
    let queries = Arc::clone(&skipped);
    let mut agent = agent(move |wanted| {
        queries.lock().expect("no panic").push(wanted.skipped.iter().copied().collect::<Vec<_>>());
        let mut facts = trapped();
        facts.hostname = format!("look {}", queries.lock().expect("no panic").len());
        if wanted.skipped.contains(&Source::Clients) {
            facts.clients =
                Reading::Gap(crate::facts::Gap::new(Source::Clients, crate::facts::Why::NotAsked, "skipped"));
        }
        facts
    })
    .await;
    agent.scan_everything().await;
    let (found, costs) = (open(&agent), agent.costs);
    assert_eq!(agent.scan_for_change().await, None);
    let seen = agent.before.clone().expect("a look");
    assert!(seen.kernel.clients.seen().is_some(), "they are as they were seen");
    assert_eq!(seen.kernel.hostname, "look 2", "the rest was read again");
    assert_eq!((open(&agent), agent.costs), (found, costs));
    let looks = skipped.lock().expect("no panic").clone();
    assert_eq!(looks, [Vec::new(), costly_sources().collect::<BTreeSet<_>>().into_iter().collect()]);
}

#[tokio::test]
async fn facts_that_the_cluster_lacked_before_lead_to_a_full_scan() {
    let mut agent = agent(|_| trapped()).await;
    assert!(agent.scan_for_change().await.is_some(), "nothing was looked at yet");
    assert!(agent.scan_for_change().await.is_none(), "nothing is new");
    let mut view = agent.cluster.borrow().clone();
    view.facts = Arc::new(Snapshot::healthy().cluster);
    let (_cluster, states) = watch::channel(view);
    agent.cluster = states;
    assert!(agent.scan_for_change().await.is_some(), "Services are known now");
    assert!(agent.scan_for_change().await.is_none(), "nothing is new");
}

#[tokio::test]
async fn clients_that_bound_their_port_on_purpose_are_looked_for_now_and_then_and_as_long_as_there_are_any() {
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
    let mut looks = Vec::new();
    for number in 0..2 * EVERY_CLIENT + 4 {
        // One is there for two of the looks that find it.
        outgoing.store((EVERY_CLIENT..EVERY_CLIENT + 2).contains(&number), Ordering::Relaxed);
        agent.scan_everything().await;
        looks.extend(every_client.load(Ordering::Relaxed).then_some(number));
    }
    assert_eq!(looks, [0, EVERY_CLIENT, EVERY_CLIENT + 1, EVERY_CLIENT + 2, 2 * EVERY_CLIENT]);
}
