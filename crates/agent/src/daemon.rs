//! The loop of the agent: scan, judge, remember, publish, wait.

use std::{
    collections::BTreeSet,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use jiff::{SignedDuration, Timestamp};
use tokio::{
    runtime::Handle,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::{interval, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    Config,
    cadence::{Cadence, Cause},
    change_log::{ChangeLog, log_state},
    clock::now,
    cluster_state::ClusterState,
    cluster_updates::{self, EndpointsRequest},
    http::{self, Published, ServerState, Shared},
    judge::{Reporting, advance},
    own_node::NameDoubt,
    scanner::{Scanned, Scanner},
    socket::SocketFile,
    tasks::Tasks,
    threads,
};
use crate::{
    events::Recorder,
    log::Log,
    metrics::Configuration,
    node_condition::{ConditionTiming, NodeCondition},
};
use portreeve_cluster::{self as cluster, ClusterSource, Resource, Reviewer};
use portreeve_facts::{
    ClusterFacts, KernelFacts, NodeQuery, OwnPort, Reading, SNAPSHOT_SCHEMA, Snapshot, Source, Unread, VERSION,
};
use portreeve_kernel::{Host, Known, Took, thread_cpu_time};
use portreeve_rules::{
    self as rules, Opinion, RULES, Rule, SELDOM,
    ledger::{Ledger, RoundTime},
};

const RELOAD_INTERVAL: Duration = Duration::from_secs(5);
const FIRST_STATE_TIMEOUT: Duration = Duration::from_secs(1);
/// One of 20 readings of connections reads all client sockets, even if a program bound the port by number. This reading
/// may be slow. After a reading that found outgoing connections, the next reading also reads all client sockets.
const EVERY_CLIENT: u64 = 20;
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
const LAST_WRITES_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the agent until SIGTERM or SIGINT. The agent loads the configuration again every few seconds and on SIGHUP. On
/// SIGUSR1, the agent logs its state.
///
/// # Errors
/// Fails if the agent cannot load the configuration, or cannot start its runtime, a thread or a signal handler.
pub fn run(load: Box<Load>, log: Arc<Log>) -> anyhow::Result<()> {
    let load: Box<Load> = Box::new(move || {
        let config = load()?;
        log.restyle(config.log);
        Ok(config)
    });
    let config = load().map_err(anyhow::Error::msg)?;
    let runtime = threads::runtime().context("starting the runtime")?;
    let ended = runtime.block_on(async { Agent::start(config, load).await?.run_until_stopped().await });
    // A request without an answer must not keep the process alive.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    ended
}

struct Agent {
    config: Config,
    reloader: Reloader,
    scanner: Scanner,
    tasks: Tasks,
    cluster: ClusterState,
    endpoints: EndpointsRequest,
    own_port: watch::Receiver<Reading<OwnPort>>,
    _socket: Option<SocketFile>,
    published: watch::Sender<Published>,
    recorder: Option<Arc<Recorder>>,
    condition: Option<Arc<NodeCondition>>,
    ledger: Ledger,
    log: ChangeLog,
    name_doubt: NameDoubt,
    before: Option<Arc<Snapshot>>,
    pods_at: Option<Timestamp>,
    cadence: Cadence,
    started: Instant,
    /// The processor time of the last scan.
    last_cost: Duration,
    /// The number of scans that read connections.
    readings: u64,
    never_read: BTreeSet<Source>,
    /// The parts whose panic was logged: names of rules, or `reader`.
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
        let mut tasks = Tasks::default();
        let (source, node) = (config.cluster.clone(), config.node.clone());
        let (mut state, endpoints) = cluster_updates::start(source, &Resource::ALL, node, hostname, &mut tasks).await;
        let (recorder, reviewer, condition) = match &config.cluster {
            ClusterSource::Api(access) => {
                let client = cluster::client(access.clone());
                let condition = config.node_condition.then(|| {
                    let (condition, writing) =
                        NodeCondition::new(client.clone(), access.request_timeout, ConditionTiming::USUAL);
                    tasks.spawn("writing the Node condition", writing);
                    Arc::new(condition)
                });
                let agents = access.own_namespace();
                let (recorder, writing) = Recorder::start(client, access.request_timeout, agents, now, cluster::jitter);
                tasks.watch_over("writing Events", writing);
                (Some(Arc::new(recorder)), Some(Reviewer::new(access.clone())), condition)
            }
            ClusterSource::Files(_) | ClusterSource::None if config.node_condition => {
                bail!("node-condition needs an API server, and none is given");
            }
            ClusterSource::Files(_) | ClusterSource::None => (None, None, None),
        };
        let (published, receiver) = watch::channel(Published::default());
        let server = ServerState {
            published: receiver,
            cluster: state.clone(),
            busy: scanner.busy(),
            event_loop: Handle::current(),
            recorder: recorder.clone(),
            condition: condition.clone(),
            started: now(),
            shared: Arc::new(Shared::new(reviewer)),
        };
        let socket =
            config.socket.as_ref().map(|path| http::start_at_socket(server.clone(), path, &mut tasks)).transpose()?;
        let own_port = http::start(server, config.listen, &mut tasks)?;
        let started = Instant::now();
        let never_read = state.facts().lacks();
        let cadence = Cadence::new(config.interval, config.cpu_percent);
        let reloader = Reloader::new(load);
        published.send_modify(|published| {
            published.longest = cadence.longest();
            published.work.configuration = reloader.last;
        });
        Ok(Self {
            cadence,
            started,
            last_cost: Duration::ZERO,
            never_read,
            config,
            reloader,
            scanner,
            tasks,
            cluster: state,
            endpoints,
            own_port,
            _socket: socket,
            published,
            recorder,
            condition,
            ledger: Ledger::default(),
            log: ChangeLog::new(started),
            name_doubt: NameDoubt::default(),
            before: None,
            pods_at: None,
            readings: 0,
            panicked: BTreeSet::new(),
        })
    }

    async fn run_until_stopped(mut self) -> anyhow::Result<()> {
        let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let (mut hangup, mut state) = (listen(SignalKind::hangup())?, listen(SignalKind::user_defined1())?);
        let stopped = async {
            tokio::select! { () = received(&mut terminate) => {}, () = received(&mut interrupt) => {} }
        };
        info!(version = VERSION, interval = ?self.config.interval, "started");
        http::log_first(&self.own_port.borrow());
        let mut tasks = mem::take(&mut self.tasks);
        tokio::select! {
            () = stopped => {}
            () = self.run_forever(&mut hangup, &mut state) => {}
            // If the agent continued without the ended task, the agent could report forever that there is no problem.
            ended = tasks.ended() => bail!("{ended}"),
        }
        let condition = async {
            if let Some(condition) = &self.condition {
                condition.stop(now()).await;
            }
        };
        let events = async {
            if let Some(recorder) = &self.recorder {
                recorder.idle().await;
            }
        };
        drop(timeout(LAST_WRITES_TIMEOUT, async { tokio::join!(condition, events) }).await);
        info!("stopped");
        Ok(())
    }

    async fn run_forever(&mut self, hangup: &mut Signal, state: &mut Signal) {
        // If the API server answers in time, the first scan has the facts about the cluster.
        drop(timeout(FIRST_STATE_TIMEOUT, self.cluster.answered()).await);
        self.cluster.mark_unchanged();
        let mut reload = interval(RELOAD_INTERVAL);
        loop {
            let wait = match self.cadence.next(Instant::now()) {
                Ok(cause) => {
                    self.scan(cause).await;
                    Duration::ZERO
                }
                Err(wait) => wait,
            };
            tokio::select! {
                () = received(hangup) => self.reload(true),
                () = received(state) => self.log_state(),
                _ = reload.tick() => self.reload(false),
                () = self.cluster.changed() => self.cadence.changed(Instant::now()),
                () = sleep(wait) => {}
            }
        }
    }

    /// Scans once. The scan reads connections if the cadence allows this reading, or if a part of the cluster was read
    /// for the first time. Otherwise the scan uses the connections of the last reading, and rules about connections
    /// wait.
    async fn scan(&mut self, cause: Cause) {
        let began = Instant::now();
        let (at, facts, mut query) = self.inputs(began);
        let lacks = facts.lacks();
        let known = self.never_read.len();
        self.never_read.retain(|source| lacks.contains(source));
        let reads = self.never_read.len() < known || self.cadence.reads_connections(began);
        // Before the first scan, there are no earlier connections.
        let before = self.before.clone().filter(|_| !reads);
        if before.is_some() {
            query.skipped = connections().collect();
        } else {
            query.bound_on_purpose = self.is_every_client_due();
            self.readings += 1;
        }
        let (seen, read) = self.read_node(query).await;
        let (mut cost, mut of_connections) = (read, None);
        if let Some((mut kernel, took)) = seen {
            let rules: Vec<_> = match &before {
                None => RULES.into(),
                Some(before) => {
                    connections().for_each(|source| kernel.take(source, &before.kernel));
                    RULES.iter().copied().filter(|rule| !connections().any(|source| rule.reads(source))).collect()
                }
            };
            let cost_of = |source| took.get(&source).map(|spent| spent.processor);
            of_connections = before.is_none().then(|| connections().filter_map(cost_of).sum::<Duration>());
            let connections_at = before.map(|before| before.connections_at.unwrap_or(before.at));
            cost += self.conclude(&rules, (at, connections_at), facts, kernel).await;
        }
        self.last_cost = cost;
        debug!(?cause, ?cost, ?of_connections, took = ?began.elapsed(), "scanned");
        self.cadence.scanned(began, cost.saturating_sub(of_connections.unwrap_or_default()), of_connections);
    }

    fn reload(&mut self, requested: bool) {
        self.reloader.reload(&mut self.config, requested);
        self.cadence.configure(self.config.interval, self.config.cpu_percent);
        let (longest, configuration) = (self.cadence.longest(), self.reloader.last);
        self.published.send_modify(|published| {
            published.longest = longest;
            published.work.configuration = configuration;
        });
    }

    fn inputs(&mut self, began: Instant) -> (RoundTime, ClusterFacts, NodeQuery) {
        let at = RoundTime { at: now(), since_start: began.saturating_duration_since(self.started) };
        // The age is read before the facts, so the Pods in the facts are not older than the age.
        let age = self.cluster.age_of_pods(Instant::now()).and_then(|age| SignedDuration::try_from(age).ok());
        self.pods_at = age.and_then(|age| at.at.checked_sub(age).ok());
        let mut facts = (*self.cluster.facts()).clone();
        if let Some(range) = &self.config.node_port_range {
            facts.node_port_range = Reading::Seen(range.clone());
        }
        let mut query = rules::node_query(&facts, false);
        // The port that this agent tried to bind at its start. A new port in the configuration is used only after a
        // restart.
        if let Some(own) = self.own_port.borrow().known(Unread::Chooses).filter(|own| own.taken) {
            query.owner_ports = query.owner_ports.union(&[own.address.port()].into_iter().collect());
        }
        query.masquerade_ports = rules::node_ports_or_default(&facts).into();
        (at, facts, query)
    }

    /// Returns the facts, or `None` if the reader panicked, and the processor time.
    async fn read_node(&mut self, query: NodeQuery) -> (Option<(KernelFacts, Took)>, Duration) {
        let began = Instant::now();
        let Scanned { seen, cost } = self.scanner.scan(query).await;
        let seen = seen.inspect(|(_, took)| {
            self.published.send_modify(|published| {
                published.work.took.extend(took.iter().map(|(source, spent)| (*source, spent.wall)));
                published.work.scanned(began.elapsed(), now());
            });
        });
        (seen.inspect_err(|panic| self.count_panic("reader", panic)).ok(), cost)
    }

    /// `connections_at` is the time of an earlier scan if the connections are from that scan. Returns the processor
    /// time that this function used.
    async fn conclude(
        &mut self,
        rules: &[&'static Rule],
        (time, connections_at): (RoundTime, Option<Timestamp>),
        cluster: ClusterFacts,
        kernel: KernelFacts,
    ) -> Duration {
        let (schema, version) = (SNAPSHOT_SCHEMA.to_owned(), Some(VERSION.to_owned()));
        let pods_at = self.pods_at;
        let (overrides, own_port) = (self.config.overrides.clone(), self.own_port.borrow().clone());
        let mut snapshot =
            Snapshot { schema, version, at: time.at, connections_at, pods_at, overrides, kernel, cluster, own_port };
        let needed = rules::endpoints_needed(&snapshot);
        if self.endpoints.fill_in(needed, &mut snapshot.cluster).await {
            // This scan already uses the endpoints, so the endpoints must not cause another scan.
            self.cluster.mark_unchanged();
        }
        let unknown = snapshot.cluster.no_name(&snapshot.kernel.hostname);
        let doubt = self.name_doubt.of(&snapshot, Instant::now());
        snapshot.cluster.rejected.extend(unknown.into_iter().chain(doubt));
        let spent = thread_cpu_time();
        self.judge(rules, time, snapshot);
        thread_cpu_time().saturating_sub(spent)
    }

    fn is_every_client_due(&self) -> bool {
        let before = self.before.as_ref().map(|before| &before.kernel.clients);
        let none_before = before.and_then(|it| it.known(Unread::Chooses)).is_some_and(|clients| clients.outgoing == 0);
        !none_before || self.readings.is_multiple_of(EVERY_CLIENT)
    }

    fn judge(&mut self, rules: &[&'static Rule], time: RoundTime, snapshot: Snapshot) {
        let (now, before, limits) = (Arc::new(snapshot), self.before.clone(), self.config.limits.clone());
        self.record(time, &now, rules::run_rules(rules, &limits.round(&now, before.as_deref()), &limits));
    }

    fn record(&mut self, time: RoundTime, snapshot: &Arc<Snapshot>, opinions: impl Iterator<Item = Opinion>) {
        // After changes of the cluster, two scans can follow each other within a second, but a roll-out can take
        // longer. So a finding that needs two scans must last for half an interval.
        let settle = self.config.interval / 2;
        let (changes, panicked) = advance(opinions, snapshot, time, Reporting::WithPatience(settle), &mut self.ledger);
        for rule in panicked {
            self.count_panic(rule.0, "the rule's findings are held");
        }
        self.log.log(&changes, Instant::now());
        self.log.log_node(snapshot, Instant::now());
        if let Some(recorder) = &self.recorder {
            recorder.round(snapshot, &changes);
        }
        let judged = (Arc::clone(snapshot), Arc::new(self.ledger.board()));
        if let Some(condition) = &self.condition {
            condition.scanned(snapshot, &judged.1, self.before.is_some() && time.since_start >= settle);
        }
        self.before = Some(Arc::clone(snapshot));
        self.published.send_modify(|published| {
            published.last = Some(judged);
            published.judged_at = Some(Instant::now());
        });
    }

    fn count_panic(&mut self, part: &'static str, words: &str) {
        self.published.send_modify(|published| published.work.panicked(part));
        if self.panicked.insert(part) {
            warn!(part, words, "panicked; please report this bug with a snapshot");
        }
    }

    fn log_state(&self) {
        log_state(&self.published.borrow(), self.config.interval, self.last_cost, &self.own_port.borrow());
    }
}

fn connections() -> impl Iterator<Item = Source> {
    SELDOM.into_iter().filter(|source| source.walks_connections())
}

fn listen(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("listening for signals")
}

async fn received(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Loads the configuration. The error is one line for a person.
type Load = dyn Fn() -> Result<Config, String>;

struct Reloader {
    load: Box<Load>,
    last_error: Option<String>,
    last: Configuration,
}

impl Reloader {
    fn new(load: Box<Load>) -> Self {
        Self { load, last_error: None, last: Configuration { is_valid: true, adopted: Some(now()) } }
    }

    /// If the new configuration is not valid, the agent keeps the old configuration. The agent logs the error once, and
    /// again after each SIGHUP.
    fn reload(&mut self, config: &mut Config, requested: bool) {
        let loaded = (self.load)();
        self.last.is_valid = loaded.is_ok();
        match loaded {
            Ok(new) => {
                let recovered = self.last_error.take().is_some();
                if requested || recovered || new != *config {
                    self.last.adopted = Some(now());
                }
                if new == *config {
                    if requested || recovered {
                        info!("the configuration is unchanged");
                    }
                } else if config.adopt(new) {
                    warn!("the configuration changed; new sources, addresses and paths take effect at the next start");
                } else {
                    info!(interval = ?config.interval, "the configuration changed");
                }
            }
            Err(error) if requested || self.last_error.as_ref() != Some(&error) => {
                warn!(%error, "the configuration cannot be used; the previous configuration stays in use");
                self.last_error = Some(error);
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
