use std::sync::atomic::{AtomicBool, Ordering};

use super::{super::scanner::cpu, *};
use crate::{
    facts::{KernelFacts, Said},
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
async fn agent(read: impl Fn(&Wanted) -> KernelFacts + Send + 'static) -> Agent {
    let config = Config {
        cluster: ClusterSource::None,
        node: Some("n1".to_owned()),
        host_root: "/".into(),
        said: Said::default(),
        node_port_range: None,
        listen: "127.0.0.1:0".parse().expect("an address"),
        interval: Duration::from_secs(10),
        cpu_percent: SHARE,
        heartbeat: None,
        limits: Limits::default(),
    };
    let load = {
        let config = config.clone();
        Box::new(move || Ok(config.clone()))
    };
    let scanner = Scanner::start(move |wanted: &Wanted| (read(wanted), Took::new())).expect("a thread");
    Agent::with(config, load, scanner, "n1".to_owned()).await.expect("an agent")
}

fn open(agent: &Agent) -> Vec<Finding> {
    agent.told.borrow().look.as_ref().map(|(_, board)| board.findings.clone()).unwrap_or_default()
}

#[tokio::test]
async fn a_reader_that_panics_is_counted_and_every_finding_is_held() {
    let panics = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&panics);
    let mut agent = agent(move |_| {
        assert!(!told.load(Ordering::Relaxed), "a bug of a reader");
        trapped()
    })
    .await;
    agent.look().await;
    let found = open(&agent);
    assert!(!found.is_empty(), "the trap is found");
    let last = agent.told.borrow().work.last;

    panics.store(true, Ordering::Relaxed);
    agent.look().await;
    agent.look().await;
    {
        let work = &agent.told.borrow().work;
        assert_eq!((work.panics.as_slice(), work.scans), ([("reader", 2)].as_slice(), 1));
        assert_eq!(work.last, last, "nothing was judged");
    }
    assert_eq!(open(&agent), found);

    panics.store(false, Ordering::Relaxed);
    agent.look().await;
    assert_eq!((open(&agent), agent.told.borrow().work.scans), (found, 2));
}

#[tokio::test]
async fn a_rule_that_panics_is_counted_and_named_and_its_findings_are_held() {
    let mut agent = agent(|_| trapped()).await;
    agent.look().await;
    let found = open(&agent);
    let rule = found.first().expect("the trap is found").key.rule;
    let snapshot = agent.before.clone().expect("a look");
    let opinions = RULES.iter().map(|it| Opinion { rule: it, judgements: (it.id != rule).then(|| Ok(Vec::new())) });
    agent.heed(&snapshot, opinions);
    assert_eq!(agent.told.borrow().work.panics, [(rule.0, 1)]);
    let of_rule = |findings: Vec<Finding>| findings.into_iter().filter(|it| it.key.rule == rule).collect::<Vec<_>>();
    assert_eq!(of_rule(open(&agent)), of_rule(found));
    let told = agent.told.borrow().look.clone().expect("a look");
    assert!(told.1.unknown.iter().any(|it| it.rule == rule && it.gap.detail.contains(rule.0)), "{:?}", told.1.unknown);
}

#[tokio::test]
async fn the_interval_is_stretched_while_looks_are_costly_and_no_longer() {
    let costly = Arc::new(AtomicBool::new(true));
    let told = Arc::clone(&costly);
    let mut agent = agent(move |_| {
        let begun = cpu();
        while told.load(Ordering::Relaxed) && cpu() - begun < TOIL {
            std::hint::spin_loop();
        }
        trapped()
    })
    .await;
    let interval = agent.config.interval;
    agent.look().await;
    let begun = time::Instant::now();
    let due = agent.look().await;
    assert!(due >= begun + TOIL.mul_f64(100.0 / SHARE), "a share of {SHARE} per cent is kept");
    costly.store(false, Ordering::Relaxed);
    let due = agent.look().await;
    assert!(due <= time::Instant::now() + interval, "a cheap look is not put off");
}
