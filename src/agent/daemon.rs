//! The loop: look, judge, remember, tell, wait.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use tokio::{
    runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::{self, interval, timeout},
};
use tracing::{info, warn};

use super::{
    Config,
    crank::{Pace, Turned, turn},
    feed,
    front::{self, Front, Told},
    pulse,
    scanner::{Scanned, Scanner},
    wanted,
    wanted::node_ports_of,
};
use crate::{
    cluster::{self, ClusterSource},
    facts::{ClusterFacts, KernelFacts, OwnPort, Reading, SNAPSHOT_SCHEMA, Snapshot, Source, View, Wanted},
    findings::{Finding, Severity},
    kernel::{Host, Known},
    ledger::{Change, Ledger},
    rules::{self, Opinion, RULES, Rule},
    sinks::events::{Place, Recorder},
};

/// How long the cluster has to be quiet before a change of it is looked at.
const QUIET: Duration = Duration::from_millis(250);
/// How long a cluster that never is quiet may put a look off.
const RESTLESS: Duration = Duration::from_secs(1);
/// How often the configuration file is read.
const REREAD: Duration = Duration::from_secs(5);
/// How long the first look waits for the cluster.
const FIRST_VIEW: Duration = Duration::from_secs(1);
/// The longest interval, however much a look costs.
const LONGEST: Duration = Duration::from_secs(600);
/// Every so many looks, clients are looked for that can only have bound their port on purpose, where that takes long.
const EVERY_CLIENT: u64 = 20;
/// What is read by walking all connections of a node or its pods, and is not read because the cluster changed.
const COSTLY: [Source; 5] =
    [Source::Clients, Source::EphemeralUse, Source::PodNamespaces, Source::Conntrack, Source::IpVsConn];
/// How long work that is under way may hold up the end.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long Events that are not written yet may hold up the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where the configuration comes from; read again and again. The error is one line for a person.
type Load = dyn Fn() -> Result<Config, String>;

/// Runs the agent until it is told to stop by SIGTERM or SIGINT. SIGHUP reads the configuration again, as the loop
/// does by itself every few seconds; SIGUSR1 logs the state.
///
/// # Errors
/// When it cannot start: no configuration, no runtime, no thread, no signals.
pub fn run(load: Box<Load>) -> anyhow::Result<()> {
    let config = load().map_err(anyhow::Error::msg)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let ended = runtime.block_on(async { Agent::start(config, load).await?.turn_until_stopped().await });
    // A request that hangs must not keep the process.
    runtime.shutdown_timeout(FAREWELL);
    ended
}

struct Agent {
    config: Config,
    load: Box<Load>,
    /// What was wrong with the configuration when it was last read.
    refused: Option<String>,
    scanner: Scanner,
    cluster: watch::Receiver<feed::View>,
    endpoints: feed::Endpoints,
    own_port: watch::Receiver<Reading<OwnPort>>,
    told: watch::Sender<Told>,
    recorder: Option<Arc<Recorder>>,
    ledger: Ledger,
    before: Option<Arc<Snapshot>>,
    /// Looks that walked connections, whenever that was worth it.
    walks: u64,
    /// What the last two looks cost, in processor time: the first reads much for the first time.
    costs: [Duration; 2],
    /// Rules, and `reader`, whose panic was logged.
    panicked: BTreeSet<&'static str>,
}

impl Agent {
    async fn start(config: Config, load: Box<Load>) -> anyhow::Result<Self> {
        let host = Host::at(&config.host_root);
        let hostname = host.hostname();
        let mut known = Known::default();
        let scanner = Scanner::start(move |wanted: &Wanted| host.read_again(wanted, &mut known))?;
        Self::with(config, load, scanner, hostname).await
    }

    async fn with(config: Config, load: Box<Load>, scanner: Scanner, hostname: String) -> anyhow::Result<Self> {
        let (view, endpoints) = feed::start(config.cluster.clone(), config.node.clone(), hostname).await;
        let recorder = match &config.cluster {
            ClusterSource::Api(access) => {
                let client = cluster::client(access.clone());
                Some(Arc::new(Recorder::start(client, access.request_timeout, Timestamp::now)))
            }
            ClusterSource::Files(_) | ClusterSource::None => None,
        };
        let (told, tellable) = watch::channel(Told::default());
        let front = Front {
            told: tellable,
            cluster: view.clone(),
            endpoints: endpoints.clone(),
            busy: scanner.busy(),
            recorder: recorder.clone(),
            started: Timestamp::now(),
            documents: Arc::default(),
        };
        let own_port = front::open(front, config.listen).await;
        if let Some(path) = &config.heartbeat {
            tokio::spawn(pulse::beat(path.clone(), scanner.busy()));
        }
        Ok(Self {
            config,
            load,
            refused: None,
            scanner,
            cluster: view,
            endpoints,
            own_port,
            told,
            recorder,
            ledger: Ledger::default(),
            before: None,
            walks: 0,
            costs: [Duration::ZERO; 2],
            panicked: BTreeSet::new(),
        })
    }

    async fn turn_until_stopped(mut self) -> anyhow::Result<()> {
        let listen = |kind| signal(kind).context("listening for signals");
        let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let (mut hangup, mut state) = (listen(SignalKind::hangup())?, listen(SignalKind::user_defined1())?);
        let stopped = async {
            tokio::select! { () = heard(&mut terminate) => {}, () = heard(&mut interrupt) => {} }
        };
        info!(version = env!("CARGO_PKG_VERSION"), interval = ?self.config.interval, "started");
        tokio::select! {
            () = stopped => {}
            () = self.turn_forever(&mut hangup, &mut state) => {}
        }
        if let Some(recorder) = &self.recorder {
            // What was found out in the last moment is told, if the cluster listens.
            drop(timeout(LAST_WORDS, recorder.idle()).await);
        }
        info!("stopped");
        Ok(())
    }

    async fn turn_forever(&mut self, hangup: &mut Signal, state: &mut Signal) {
        // A cluster that answers at once spares a first look at nothing; one that is down delays nothing.
        if !self.cluster.borrow().facts.configured || timeout(FIRST_VIEW, self.cluster.changed()).await.is_err() {
            self.cluster.mark_unchanged();
        }
        let mut reread = interval(REREAD);
        let mut due = time::Instant::now();
        loop {
            tokio::select! {
                () = heard(hangup) => self.reload(true),
                () = heard(state) => self.log_state(),
                _ = reread.tick() => self.reload(false),
                () = time::sleep_until(due) => due = self.look().await,
                () = changed(&mut self.cluster) => {
                    self.quiet_period().await;
                    due = self.look_at_change().await.unwrap_or(due);
                }
            }
        }
    }

    /// Waits until the cluster has stopped changing, but not for ever.
    async fn quiet_period(&mut self) {
        let quiet = async { while timeout(QUIET, changed(&mut self.cluster)).await.is_ok() {} };
        // Either way it is time to look.
        drop(timeout(RESTLESS, quiet).await);
    }

    /// Looks once, and says when to look again.
    async fn look(&mut self) -> time::Instant {
        let (begun, at) = (Instant::now(), Timestamp::now());
        let (facts, mut wanted) = self.asked();
        wanted.bound_on_purpose = self.is_every_client_due();
        self.walks += 1;
        if let Some((kernel, cost)) = self.scan(wanted, begun).await {
            self.costs = [self.costs[1], cost];
            self.conclude(RULES, at, facts, kernel).await;
        }
        time::Instant::from_std(begun) + stretched(&self.config, self.costs)
    }

    /// Looks because the cluster changed. Connections are not walked: whoever changes the cluster all the time must not
    /// make every node do that all the time. What they showed stays, and rules that look at it wait for the next look.
    ///
    /// Where the cluster tells what it did not tell before, no rule waits; says when to look again then.
    async fn look_at_change(&mut self) -> Option<time::Instant> {
        let lacks = self.cluster.borrow().facts.lacks();
        let Some(before) = self.before.clone().filter(|before| before.cluster.lacks().is_subset(&lacks)) else {
            return Some(self.look().await);
        };
        let (begun, at) = (Instant::now(), Timestamp::now());
        let (facts, mut wanted) = self.asked();
        wanted.spared = COSTLY.into();
        let (kernel, _) = self.scan(wanted, begun).await?;
        let KernelFacts { clients, ephemeral, pod_namespaces, masquerade, ip_vs_connections, .. } =
            before.kernel.clone();
        let kernel = KernelFacts { clients, ephemeral, pod_namespaces, masquerade, ip_vs_connections, ..kernel };
        let cheap = RULES.iter().copied().filter(|rule| !COSTLY.iter().any(|source| rule.looks_at(*source)));
        self.conclude(&cheap.collect::<Vec<_>>(), at, facts, kernel).await;
        None
    }

    /// What the cluster says now, and what that makes us want to know of the node.
    fn asked(&mut self) -> (ClusterFacts, Wanted) {
        let mut facts = (*self.cluster.borrow_and_update().facts).clone();
        if let Some(range) = &self.config.node_port_range {
            facts.node_port_range = Reading::Seen(range.clone());
        }
        let mut wanted = wanted(&facts, false);
        if self.own_port.borrow().seen().is_some_and(|own| own.taken) {
            let own = [self.config.listen.port()].into_iter().collect();
            wanted.owner_ports = wanted.owner_ports.union(&own);
        }
        wanted.masquerade_ports = node_ports_of(&facts).into();
        (facts, wanted)
    }

    /// Reads the node, and what that cost; nothing where a reader panicked.
    async fn scan(&mut self, wanted: Wanted, begun: Instant) -> Option<(KernelFacts, Duration)> {
        let Scanned { seen, cost } = self.scanner.scan(wanted).await;
        match seen {
            Ok((kernel, took)) => {
                self.told.send_modify(|told| {
                    told.work.took.extend(took);
                    told.work.scanned(begun.elapsed(), Timestamp::now());
                });
                Some((kernel, cost))
            }
            Err(panic) => {
                self.contain("reader", &panic);
                None
            }
        }
    }

    /// Judges what was seen by these rules, with the endpoints that it makes them ask about.
    async fn conclude(&mut self, rules: &[&'static Rule], at: Timestamp, cluster: ClusterFacts, kernel: KernelFacts) {
        let schema = SNAPSHOT_SCHEMA.to_owned();
        let (said, own_port) = (self.config.said.clone(), self.own_port.borrow().clone());
        let mut snapshot = Snapshot { schema, at, said, kernel, cluster, own_port };
        let concern = rules::endpoints_needed(&snapshot);
        if self.endpoints.tell(concern, &mut snapshot.cluster).await {
            // That they are known now is no reason to look again.
            self.cluster.mark_unchanged();
        }
        self.judge(rules, snapshot);
    }

    /// Whether client sockets are looked for whatever that costs: now and then, and as long as there are any.
    fn is_every_client_due(&self) -> bool {
        let before = self.before.as_ref().map(|before| &before.kernel.clients);
        let none_before = before.and_then(Reading::seen).is_some_and(|clients| clients.outgoing == 0);
        !none_before || self.walks.is_multiple_of(EVERY_CLIENT)
    }

    fn judge(&mut self, rules: &[&'static Rule], snapshot: Snapshot) {
        let (now, before, limits) = (Arc::new(snapshot), self.before.clone(), self.config.limits.clone());
        let view = View { now: &now, before: before.as_deref() };
        self.heed(&now, rules::ask(rules, view, &limits));
    }

    /// Remembers and tells what the rules said of a look.
    fn heed(&mut self, snapshot: &Arc<Snapshot>, opinions: impl Iterator<Item = Opinion>) {
        // Rounds that the cluster's changes bring on follow each other faster than a roll-out settles.
        let settle = SignedDuration::try_from(self.config.interval / 2).unwrap_or(SignedDuration::ZERO);
        let Turned { changes, panicked } = turn(opinions, snapshot.at, Pace::Patient(settle), &mut self.ledger);
        for rule in panicked {
            self.contain(rule.0, "its findings are held");
        }
        for change in &changes {
            tell(change);
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| !changes.is_empty()) {
            recorder.offer(snapshot.at, &changes, &Place::of(snapshot));
        }
        self.before = Some(Arc::clone(snapshot));
        let look = (Arc::clone(snapshot), Arc::new(self.ledger.board()));
        self.told.send_modify(|told| told.look = Some(look));
    }

    /// Counts a panic, and names whose it was once.
    fn contain(&mut self, part: &'static str, words: &str) {
        self.told.send_modify(|told| told.work.panicked(part));
        if self.panicked.insert(part) {
            warn!(part, words, "panicked; please report it with a snapshot");
        }
    }

    /// Reads the configuration again. One that is invalid changes nothing, and is told once.
    fn reload(&mut self, asked: bool) {
        match (self.load)() {
            Ok(new) => {
                let recovered = self.refused.take().is_some();
                if new == self.config {
                    if asked || recovered {
                        info!("the configuration is unchanged");
                    }
                } else if self.config.adopt(new) {
                    warn!("the configuration changed; what it says of sources and places holds from the next start");
                } else {
                    info!(interval = ?self.config.interval, "the configuration was read anew");
                }
            }
            Err(error) if asked || self.refused.as_ref() != Some(&error) => {
                warn!(%error, "the configuration cannot be used, the one before stays");
                self.refused = Some(error);
            }
            Err(_) => {}
        }
    }

    fn log_state(&self) {
        let told = self.told.borrow();
        let findings = |severity| {
            let board = told.look.as_ref().map(|(_, board)| &board.findings);
            board.into_iter().flatten().filter(|it| it.evidence.severity == severity).count()
        };
        let unknown = told.look.as_ref().map_or(0, |(_, board)| board.unknown.len());
        info!(
            scans = told.work.scans,
            critical = findings(Severity::Critical),
            warning = findings(Severity::Warning),
            info = findings(Severity::Info),
            unknown,
            interval = ?stretched(&self.config, self.costs),
            cost = ?self.costs[1],
            own_port = ?*self.own_port.borrow(),
            "state"
        );
        for finding in told.look.iter().flat_map(|(_, board)| &board.findings) {
            info!(rule = %finding.key.rule, subject = %finding.key.subject, since = %finding.since, "open");
        }
    }
}

/// The interval at which looks of such a cost stay within their share of a core.
fn stretched(config: &Config, costs: [Duration; 2]) -> Duration {
    let [a, b] = costs;
    let affordable = a.min(b).as_secs_f64() * 100.0 / config.cpu_percent;
    let affordable = Duration::try_from_secs_f64(affordable).unwrap_or(LONGEST);
    config.interval.max(affordable.min(LONGEST))
}

fn tell(change: &Change) {
    let word = match change {
        Change::Raised(_) => "raised",
        Change::Changed(_) => "changed",
        Change::Cleared(..) => "cleared",
    };
    let (Change::Raised(finding) | Change::Changed(finding) | Change::Cleared(finding, _)) = change;
    let Finding { key, evidence, .. } = finding;
    let (severity, summary) = (evidence.severity, evidence.summary.as_str());
    match severity {
        Severity::Critical | Severity::Warning if !matches!(change, Change::Cleared(..)) => {
            warn!(rule = %key.rule, subject = %key.subject, %severity, summary, "{word}");
        }
        _ => info!(rule = %key.rule, subject = %key.subject, %severity, summary, "{word}"),
    }
}

/// A signal; one that cannot come any more is waited for in vain.
async fn heard(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// A change of the cluster; without a cluster there is none.
async fn changed(cluster: &mut watch::Receiver<feed::View>) {
    if cluster.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
