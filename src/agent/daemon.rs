//! The loop of the agent: scan, judge, remember, publish, wait.

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
    cluster_updates::{self, ClusterState, EndpointsRequest},
    heartbeat,
    http::{self, Published, ServerState, Shared},
    interval::stretched,
    judge::{Reporting, RoundResult, advance},
    log::{log_change, log_state},
    reload::{Load, Reloader},
    scanner::{Scanned, Scanner},
    socket::SocketFile,
};
use crate::{
    cluster::{self, ClusterSource, Reviewer},
    facts::{ClusterFacts, KernelFacts, NodeQuery, OwnPort, Reading, SNAPSHOT_SCHEMA, Snapshot, Source, View},
    kernel::{Host, Known},
    ledger::Ledger,
    rules::{self, Opinion, RULES, Rule, SELDOM},
    sinks::events::{Place, Recorder},
};

/// How long the cluster has to be quiet before its change leads to a scan.
const QUIET: Duration = Duration::from_millis(250);
/// How long a cluster that is never quiet may delay a scan.
const LONGEST_QUIET_WAIT: Duration = Duration::from_secs(1);
/// How often the configuration file is read.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);
/// How long the first scan waits for the cluster.
const FIRST_STATE_TIMEOUT: Duration = Duration::from_secs(1);
/// Every so many scans, all client sockets are read, even where that takes long: also those that can only have bound
/// their port on purpose.
const EVERY_CLIENT: u64 = 20;
/// How long work that is under way may delay the end of the process.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
/// How long Events that are not written yet may delay the end of the process.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the agent until SIGTERM or SIGINT. SIGHUP loads the configuration again, as the loop does by itself every few
/// seconds; SIGUSR1 logs the state.
///
/// # Errors
/// When it cannot start: no configuration, no runtime, no thread, no signals.
pub fn run(load: Box<Load>) -> anyhow::Result<()> {
    let config = load().map_err(anyhow::Error::msg)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let ended = runtime.block_on(async { Agent::start(config, load).await?.run_until_stopped().await });
    // A request that hangs must not keep the process.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    ended
}

struct Agent {
    config: Config,
    reloader: Reloader,
    scanner: Scanner,
    cluster: watch::Receiver<ClusterState>,
    endpoints: EndpointsRequest,
    own_port: watch::Receiver<Reading<OwnPort>>,
    shared: Arc<Shared>,
    _socket: Option<SocketFile>,
    published: watch::Sender<Published>,
    recorder: Option<Arc<Recorder>>,
    ledger: Ledger,
    before: Option<Arc<Snapshot>>,
    /// How many full scans there were.
    full_scans: u64,
    /// What the last two full scans cost, in processor time: the first reads much for the first time.
    costs: [Duration; 2],
    /// Whose panic was logged: rules, and `reader`.
    panicked: BTreeSet<&'static str>,
}

impl Agent {
    async fn start(config: Config, load: Box<Load>) -> anyhow::Result<Self> {
        let host = Host::at(&config.host_root);
        let hostname = host.hostname();
        let mut known = Known::default();
        let scanner = Scanner::start(move |wanted: &NodeQuery| host.read_again(wanted, &mut known))?;
        Self::with(config, load, scanner, hostname).await
    }

    async fn with(config: Config, load: Box<Load>, scanner: Scanner, hostname: String) -> anyhow::Result<Self> {
        let (state, endpoints) = cluster_updates::start(config.cluster.clone(), config.node.clone(), hostname).await;
        let (recorder, reviewer) = match &config.cluster {
            ClusterSource::Api(access) => {
                let client = cluster::client(access.clone());
                let recorder = Recorder::start(client, access.request_timeout, Timestamp::now);
                (Some(Arc::new(recorder)), Some(Reviewer::new(access.clone())))
            }
            ClusterSource::Files(_) | ClusterSource::None => (None, None),
        };
        let (published, receiver) = watch::channel(Published::default());
        let shared = Arc::new(Shared::new(reviewer, config.cpu_percent));
        let server = ServerState {
            published: receiver,
            cluster: state.clone(),
            busy: scanner.busy(),
            recorder: recorder.clone(),
            started: Timestamp::now(),
            shared: Arc::clone(&shared),
        };
        let socket = config.socket.as_ref().map(|path| http::start_at_socket(server.clone(), path)).transpose()?;
        let own_port = http::start(server, config.listen);
        if let Some(path) = &config.heartbeat {
            tokio::spawn(heartbeat::write_heartbeats(path.clone(), scanner.busy()));
        }
        Ok(Self {
            config,
            reloader: Reloader::new(load),
            scanner,
            cluster: state,
            endpoints,
            own_port,
            shared,
            _socket: socket,
            published,
            recorder,
            ledger: Ledger::default(),
            before: None,
            full_scans: 0,
            costs: [Duration::ZERO; 2],
            panicked: BTreeSet::new(),
        })
    }

    async fn run_until_stopped(mut self) -> anyhow::Result<()> {
        let listen = |kind| signal(kind).context("listening for signals");
        let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let (mut hangup, mut state) = (listen(SignalKind::hangup())?, listen(SignalKind::user_defined1())?);
        let stopped = async {
            tokio::select! { () = received(&mut terminate) => {}, () = received(&mut interrupt) => {} }
        };
        info!(version = env!("CARGO_PKG_VERSION"), interval = ?self.config.interval, "started");
        tokio::select! {
            () = stopped => {}
            () = self.run_forever(&mut hangup, &mut state) => {}
        }
        if let Some(recorder) = &self.recorder {
            // The last Events are still written, if the API server answers in time.
            drop(timeout(EVENTS_TIMEOUT, recorder.idle()).await);
        }
        info!("stopped");
        Ok(())
    }

    async fn run_forever(&mut self, hangup: &mut Signal, state: &mut Signal) {
        // If the cluster answers at once, the first scan has its facts; one that is down delays little.
        if !self.cluster.borrow().facts.configured
            || timeout(FIRST_STATE_TIMEOUT, self.cluster.changed()).await.is_err()
        {
            self.cluster.mark_unchanged();
        }
        let mut reload = interval(RELOAD_INTERVAL);
        let mut due = time::Instant::now();
        loop {
            tokio::select! {
                () = received(hangup) => self.reloader.reload(&mut self.config, true),
                () = received(state) => self.log_state(),
                _ = reload.tick() => self.reloader.reload(&mut self.config, false),
                () = time::sleep_until(due) => due = self.scan_everything().await,
                () = changed(&mut self.cluster) => {
                    self.quiet_period().await;
                    due = self.scan_for_change().await.unwrap_or(due);
                }
            }
        }
    }

    /// Waits until the cluster has stopped changing, but not for ever.
    async fn quiet_period(&mut self) {
        let quiet = async { while timeout(QUIET, changed(&mut self.cluster)).await.is_ok() {} };
        // Either way it is time to scan.
        drop(timeout(LONGEST_QUIET_WAIT, quiet).await);
    }

    /// Scans everything once, and returns when to scan again.
    async fn scan_everything(&mut self) -> time::Instant {
        let (begun, at) = (Instant::now(), Timestamp::now());
        let (facts, mut query) = self.inputs();
        query.bound_on_purpose = self.is_every_client_due();
        self.full_scans += 1;
        self.shared.set_cpu_percent(self.config.cpu_percent);
        if let Some((kernel, cost)) = self.scan(query, begun).await {
            self.costs = [self.costs[1], cost];
            self.conclude(RULES, at, facts, kernel).await;
        }
        let interval = stretched(&self.config, self.costs);
        self.published.send_modify(|published| published.interval = interval);
        time::Instant::from_std(begun) + interval
    }

    /// Scans because the cluster changed. Connections are not walked: a cluster that changes all the time must not make
    /// every node do that all the time. What they showed stays, and rules that use it wait for the next full scan.
    ///
    /// Where the cluster has facts that it lacked before, everything is scanned; returns when to scan again then.
    async fn scan_for_change(&mut self) -> Option<time::Instant> {
        let lacks = self.cluster.borrow().facts.lacks();
        let Some(before) = self.before.clone().filter(|before| before.cluster.lacks().is_subset(&lacks)) else {
            return Some(self.scan_everything().await);
        };
        let (begun, at) = (Instant::now(), Timestamp::now());
        let (facts, mut query) = self.inputs();
        query.skipped = costly_sources().collect();
        let (mut kernel, _) = self.scan(query, begun).await?;
        costly_sources().for_each(|source| kernel.take(source, &before.kernel));
        let cheap = RULES.iter().copied().filter(|rule| !costly_sources().any(|source| rule.looks_at(source)));
        self.conclude(&cheap.collect::<Vec<_>>(), at, facts, kernel).await;
        None
    }

    /// The facts of the cluster now, and what they make us ask the node.
    fn inputs(&mut self) -> (ClusterFacts, NodeQuery) {
        let mut facts = (*self.cluster.borrow_and_update().facts).clone();
        if let Some(range) = &self.config.node_port_range {
            facts.node_port_range = Reading::Seen(range.clone());
        }
        let mut query = rules::node_query(&facts, false);
        if self.own_port.borrow().seen().is_some_and(|own| own.taken) {
            let own = [self.config.listen.port()].into_iter().collect();
            query.owner_ports = query.owner_ports.union(&own);
        }
        query.masquerade_ports = rules::node_ports_or_default(&facts).into();
        (facts, query)
    }

    /// Reads the node, and measures what that cost; nothing where a reader panicked.
    async fn scan(&mut self, query: NodeQuery, begun: Instant) -> Option<(KernelFacts, Duration)> {
        let Scanned { seen, cost } = self.scanner.scan(query).await;
        match seen {
            Ok((kernel, took)) => {
                self.published.send_modify(|published| {
                    published.work.took.extend(took);
                    published.work.scanned(begun.elapsed(), Timestamp::now());
                });
                Some((kernel, cost))
            }
            Err(panic) => {
                self.count_panic("reader", &panic);
                None
            }
        }
    }

    /// Judges what was seen by these rules, with the endpoints that they need for it.
    async fn conclude(&mut self, rules: &[&'static Rule], at: Timestamp, cluster: ClusterFacts, kernel: KernelFacts) {
        let schema = SNAPSHOT_SCHEMA.to_owned();
        let (overrides, own_port) = (self.config.overrides.clone(), self.own_port.borrow().clone());
        let mut snapshot = Snapshot { schema, at, overrides, kernel, cluster, own_port };
        let needed = rules::endpoints_needed(&snapshot);
        if self.endpoints.fill_in(needed, &mut snapshot.cluster).await {
            // That they are known now is no reason to scan again.
            self.cluster.mark_unchanged();
        }
        self.judge(rules, snapshot);
    }

    /// Whether all client sockets are read whatever that costs: now and then, and as long as there are any.
    fn is_every_client_due(&self) -> bool {
        let before = self.before.as_ref().map(|before| &before.kernel.clients);
        let none_before = before.and_then(Reading::seen).is_some_and(|clients| clients.outgoing == 0);
        !none_before || self.full_scans.is_multiple_of(EVERY_CLIENT)
    }

    fn judge(&mut self, rules: &[&'static Rule], snapshot: Snapshot) {
        let (now, before, limits) = (Arc::new(snapshot), self.before.clone(), self.config.limits.clone());
        let view = View { now: &now, before: before.as_deref() };
        self.record(&now, rules::ask(rules, view, &limits));
    }

    /// Remembers, logs and publishes the opinions of the rules about a snapshot.
    fn record(&mut self, snapshot: &Arc<Snapshot>, opinions: impl Iterator<Item = Opinion>) {
        // Changes of the cluster lead to rounds that follow each other faster than a roll-out settles.
        let settle = SignedDuration::try_from(self.config.interval / 2).unwrap_or(SignedDuration::ZERO);
        let RoundResult { changes, panicked } =
            advance(opinions, snapshot.at, Reporting::WithPatience(settle), &mut self.ledger);
        for rule in panicked {
            self.count_panic(rule.0, "its findings are held");
        }
        for change in &changes {
            log_change(change);
        }
        if let Some(recorder) = self.recorder.as_ref().filter(|_| !changes.is_empty()) {
            recorder.offer(snapshot.at, &changes, &Place::of(snapshot));
        }
        self.before = Some(Arc::clone(snapshot));
        let judged = (Arc::clone(snapshot), Arc::new(self.ledger.board()));
        self.published.send_modify(|published| {
            published.last = Some(judged);
            published.judged_at = Some(Instant::now());
        });
    }

    /// Counts a panic, and logs once whose it was.
    fn count_panic(&mut self, part: &'static str, words: &str) {
        self.published.send_modify(|published| published.work.panicked(part));
        if self.panicked.insert(part) {
            warn!(part, words, "panicked; please report it with a snapshot");
        }
    }

    fn log_state(&self) {
        let interval = stretched(&self.config, self.costs);
        log_state(&self.published.borrow(), interval, self.costs[1], &self.own_port.borrow());
    }
}

/// What takes as long as there are connections, and is not read because the cluster changed.
fn costly_sources() -> impl Iterator<Item = Source> {
    SELDOM.into_iter().filter(|source| source.walks_connections())
}

/// Waits for a signal; for ever where it cannot come any more.
async fn received(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Waits for a change of the cluster; for ever where there is no cluster.
async fn changed(cluster: &mut watch::Receiver<ClusterState>) {
    if cluster.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
