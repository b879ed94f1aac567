//! The guard's loop. The loop reads the cluster and the node, keeps the reservation current, and reports.
//!
//! After a change of the cluster, the guard uses its last facts about the node to reserve ports. So the reservation
//! comes early and costs little.

mod binds;
mod connections;
mod events;
mod hook;
mod metrics;
mod server;

pub use connections::{Connection, Connections, connections_on, kept_by};
pub use hook::BindConfig;
pub(crate) use metrics::GUARD_METRICS;
pub use portreeve_bind_hook::Mode as BindMode;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{error, info, warn};

use self::{
    events::Reporter,
    hook::{HookState, Inputs, Latest},
};
use super::{
    clock::now,
    cluster_state::ClusterState,
    cluster_updates::{self, EndpointsRequest},
    own_node::{another_host, no_own_node},
    scanner::Scanner,
    tasks::Tasks,
    threads,
};
use portreeve_cluster::{self as cluster, ClusterSource, Resource};
use portreeve_dataplane::Round;
use portreeve_facts::{
    ClusterFacts, Gap, KernelFacts, NodeQuery, Overrides, OwnPort, PortSet, SNAPSHOT_SCHEMA, Snapshot, Source, VERSION,
    Why, text,
};
use portreeve_guard::{
    Bound, Class, Files, GuardError, Keeper, Kept, KernelList, List as _, Place, Plan, RENEWAL, Reason, Record, Wanted,
    read_record, unrenewed_for,
};
use portreeve_kernel::{Host, Known, thread_cpu_time};
use portreeve_rules::{GuardRun, Limits, NodeGuard};

const READ_INTERVAL: Duration = Duration::from_secs(30);
/// How long the guard collects changes of the cluster before a run. A roll-out makes many changes.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// A change of the cluster starts a run of the guard. The next change waits from the beginning of this run, for `PAID`
/// times the run's processor time. So changes cost at most 2 % of a core, even if a tenant changes a Service without
/// end. The guard also runs after each reading of the node.
const PAID: u32 = 50;
const FIRST_STATE_TIMEOUT: Duration = Duration::from_secs(5);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
/// If the API server has not confirmed Services or pods for this time, the objects count as unread. An API server
/// usually confirms a watch about once a minute.
const OLD_VIEW: Duration = Duration::from_secs(300);
const NAMED: usize = 10;

/// The inputs and outputs of the guard.
#[derive(Clone, Debug)]
pub struct GuardConfig {
    /// The source of facts about the cluster.
    pub cluster: ClusterSource,
    /// The name of this node in the cluster.
    pub node: Option<String>,
    /// The root directory of the node.
    pub host_root: PathBuf,
    /// Facts about the node that the configuration gives.
    pub overrides: Overrides,
    /// The directory of the kernel's network settings, usually `/proc/sys/net`.
    pub sysctls: PathBuf,
    /// The file of the guard's record.
    pub record: PathBuf,
    /// The number of ports that must stay free for outgoing connections.
    pub leave: u32,
    /// The address at which the guard answers over HTTP.
    pub listen: Option<SocketAddr>,
    /// The settings of the bind hook, if `--bind` is set.
    pub bind: Option<BindConfig>,
}

type NodeKeeper = Keeper<KernelList, Files>;

#[derive(Clone, Debug, Default)]
struct GuardState {
    reserved: BTreeMap<&'static str, usize>,
    left_out: usize,
    missing: u32,
    overwritten: u32,
    is_unread: bool,
    unwritten_events: u64,
    /// The kernel's list of reserved ports after the last successful run.
    list: PortSet,
    /// Entries of the guard that now count as entries of other programs, because another program wrote the list.
    given_up: PortSet,
    /// Reserved ports on which the guard has not searched for connections yet.
    unsearched: PortSet,
    /// Outgoing connections that used reserved ports at the last search. `None` if there was no search, or if it
    /// failed.
    connections: Option<BTreeSet<Connection>>,
    last_success: Option<Timestamp>,
    /// The time at which the last run ended, successful or not.
    ran: Option<Instant>,
    hook: Option<HookState>,
}

impl GuardConfig {
    /// Takes the lock, so that only one guard runs on a node.
    ///
    /// # Errors
    /// Fails if another guard runs, or if the files cannot be made.
    pub fn keeper(&self) -> Result<NodeKeeper, GuardError> {
        let files = Files::lock(self.record.clone())?;
        Ok(Keeper::new(KernelList::below(&self.sysctls), files, Place::below(&self.host_root)?))
    }

    /// The change that a run would make now. The second value is the reason why the record is malformed, if any. The
    /// function takes no lock, because another guard may be running.
    ///
    /// # Errors
    /// Fails if the list or the record cannot be read.
    pub fn preview(&self, wanted: &Wanted, bound: Bound) -> Result<(Plan, Option<String>), GuardError> {
        let list = KernelList::below(&self.sysctls).read()?;
        let place = Place::below(&self.host_root)?;
        // If the record is missing or malformed, every entry counts as the entry of another program.
        let (record, bad_record) = match read_record(&self.record, &place)?.transpose() {
            Ok(record) => (record.filter(|record| record.boot_id == place.boot_id).unwrap_or_default(), None),
            Err(why) => (Record::default(), Some(why)),
        };
        let wanted = wanted.clone().with_daemons(&record.daemons);
        Ok((Plan::preview(&wanted, bound, &list, &record.ours_in(&list, &place.boot_id)), bad_record))
    }

    /// Reads the cluster and the node once.
    ///
    /// # Errors
    /// Fails if the asynchronous runtime cannot be started.
    pub fn read(&self) -> anyhow::Result<Snapshot> {
        let host = Host::at(&self.host_root);
        let hostname = host.hostname();
        let mut cluster =
            cluster::read_now(&self.cluster, self.node.as_deref(), &hostname).context("starting the runtime")?;
        cluster.rejected.extend(no_own_node(&cluster, &hostname));
        Ok(self.snapshot(cluster, host.read(&query(PortSet::default()))))
    }

    fn snapshot(&self, cluster: ClusterFacts, kernel: KernelFacts) -> Snapshot {
        let mut snapshot = Snapshot {
            schema: SNAPSHOT_SCHEMA.to_owned(),
            version: Some(VERSION.to_owned()),
            at: now(),
            connections_at: None,
            pods_at: None,
            overrides: self.overrides.clone(),
            kernel,
            cluster,
            own_port: OwnPort::not_requested(),
        };
        let doubt = another_host(&snapshot);
        snapshot.cluster.rejected.extend(doubt);
        snapshot
    }

    /// The ports that the node needs according to this snapshot, and the number of ports that must stay unreserved.
    ///
    /// # Errors
    /// Fails if the ephemeral port range was not read, because the guard then cannot know which ports need a
    /// reservation.
    pub fn wanted(&self, snapshot: &Snapshot) -> anyhow::Result<(Wanted, Bound)> {
        let range = *snapshot.kernel.sysctls.ip_local_port_range.get().map_err(|gap| anyhow::anyhow!(gap.detail))?;
        let round: Round<'_> = Limits::default().round(snapshot, None);
        Ok((Wanted::of(&round), Bound { range, leave: self.leave }))
    }
}

/// A guard is stuck if its last successful run is older than this time.
const STUCK: Duration = Duration::from_secs(3 * RENEWAL.as_secs());

/// The guard that uses this record on this node, and the ports that this guard reserved since the node booted. `None`
/// if there is no record. The inner error is the reason why the record cannot be parsed.
///
/// # Errors
/// Fails if the record, its lock or the list cannot be read.
pub fn guard_with(record: &Path) -> Result<Option<Result<NodeGuard, String>>, GuardError> {
    let place = Place::below(Path::new("/"))?;
    let Some(read) = read_record(record, &place)? else { return Ok(None) };
    let list = KernelList::below(Path::new("/proc/sys/net")).read()?;
    let run = match unrenewed_for(record)? {
        None => GuardRun::Ended,
        Some(age) if age > STUCK => GuardRun::Stuck(age),
        Some(_) => GuardRun::Runs,
    };
    Ok(Some(read.map(|record| NodeGuard { run, ports: Some(record.ours_in(&list, &place.boot_id)) })))
}

/// Whether this process was started with SIGHUP ignored, for example by `nohup`. Bit 0 of the mask `SigIgn` is signal 1
/// (proc_pid_status(5)).
fn is_hangup_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

fn query(client_ports: PortSet) -> NodeQuery {
    // In a search for connections, the owners of sockets are not needed.
    let processes = (!client_ports.is_empty()).then_some(Source::Processes);
    let skipped = [
        Source::Sockstat,
        Source::EphemeralUse,
        Source::IpVs,
        Source::IpVsConn,
        Source::Conntrack,
        Source::Netfilter,
        Source::PodNamespaces,
        Source::ResolvConf,
        Source::HealthChecks,
    ];
    let clients = client_ports.is_empty().then_some(Source::Clients);
    // These ports are reserved, so the kernel does not choose them. On a node with many connections, the scan reads
    // sockets on such ports only if this flag is set.
    let bound_on_purpose = clients.is_none();
    NodeQuery {
        client_ports,
        bound_on_purpose,
        skipped: skipped.into_iter().chain(clients).chain(processes).collect(),
        ..NodeQuery::default()
    }
}

/// Some of the ports, with their reasons: `30080 (NodePort of Service shop/web), and 3 more`.
pub fn named(ports: &BTreeMap<u16, Reason>) -> String {
    let words = by_class(ports).into_iter().map(|(number, reason)| format!("{number} ({reason})"));
    text::clean(&few(words), 2048)
}

/// The ports in the order in which the guard reserves them: the most important kinds first.
pub fn by_class(ports: &BTreeMap<u16, Reason>) -> Vec<(u16, &Reason)> {
    let mut all: Vec<_> = ports.iter().map(|(number, reason)| (*number, reason)).collect();
    all.sort_by_key(|(number, reason)| (reason.class, *number));
    all
}

fn few(all: impl ExactSizeIterator<Item = impl fmt::Display>) -> String {
    let more = all.len().saturating_sub(NAMED);
    let mut words: Vec<String> = all.take(NAMED).map(|it| it.to_string()).collect();
    words.extend((more > 0).then(|| format!("and {more} more")));
    words.join(", ")
}

/// The ports of a set, each with its reason.
pub fn among(ports: &PortSet, all: &BTreeMap<u16, Reason>) -> BTreeMap<u16, Reason> {
    all.iter()
        .filter(|(number, _)| ports.contains(**number))
        .map(|(number, reason)| (*number, reason.clone()))
        .collect()
}

/// Runs until SIGTERM, SIGINT or SIGHUP. After the guard ends, the ports stay reserved, so that no connection takes
/// them during a restart.
///
/// # Errors
/// Fails if another guard runs, or if the runtime, a thread or a signal handler cannot be started.
pub fn run_guard(config: GuardConfig) -> anyhow::Result<()> {
    let keeper = config.keeper()?;
    let runtime = threads::runtime().context("starting the runtime")?;
    let ended = runtime.block_on(async { Guard::start(config, keeper).await?.run_until_stopped().await });
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    ended
}

/// How long a change of the cluster waits. `last` is the beginning and the processor time of the last run for a change.
/// A change after a quiet time waits only for [`DEBOUNCE`], because a connection may take an unreserved port.
fn wait_after_change(last: Option<(Instant, Duration)>, now: Instant) -> Duration {
    let unpaid = |(began, cost): (Instant, Duration)| {
        cost.saturating_mul(PAID).saturating_sub(now.saturating_duration_since(began))
    };
    last.map_or(DEBOUNCE, |last| unpaid(last).max(DEBOUNCE))
}

struct Guard {
    config: GuardConfig,
    keeper: NodeKeeper,
    scanner: Scanner,
    cluster: ClusterState,
    /// Without the bind hook, the guard requests no endpoints. The guard keeps the sender, because a watch ends when its
    /// sender is dropped.
    _endpoints: Option<EndpointsRequest>,
    hostname: String,
    tasks: Tasks,
    state: watch::Sender<GuardState>,
    latest: watch::Sender<Latest>,
    reporter: Option<Reporter>,
    kernel: Option<(KernelFacts, Instant)>,
    /// The time at which the guard last tried to read the node.
    read_at: Option<Instant>,
    wanted: Wanted,
    /// The last text of each kind of log line. So a lasting state is logged once.
    logged: BTreeMap<&'static str, String>,
}

impl Guard {
    async fn start(config: GuardConfig, keeper: NodeKeeper) -> anyhow::Result<Self> {
        let host = Host::at(&config.host_root);
        let hostname = host.hostname();
        let mut known = Known::default();
        let scanner = Scanner::start(move |wanted: &NodeQuery| host.read_again(wanted, &mut known))?;
        let mut tasks = Tasks::default();
        let (source, node) = (config.cluster.clone(), config.node.clone());
        let of_hook = config.bind.is_some().then_some(Resource::EndpointSlices);
        let resources: Vec<Resource> = Resource::OF_GUARD.into_iter().chain(of_hook).collect();
        let (cluster, endpoints) = cluster_updates::start(source, &resources, node, hostname.clone(), &mut tasks).await;
        let (state, receiver) = watch::channel(GuardState::default());
        if let Some(address) = config.listen {
            server::start(address, receiver, cluster.clone(), &mut tasks)?;
        }
        let (latest, snapshots) = watch::channel(None);
        let endpoints = match config.bind.clone() {
            None => Some(endpoints),
            Some(binds) => {
                let inputs = Inputs {
                    config: binds,
                    source: config.cluster.clone(),
                    host_root: config.host_root.clone(),
                    cluster: cluster.clone(),
                    endpoints,
                    latest: snapshots,
                    state: state.clone(),
                };
                hook::start(inputs, &mut tasks)?;
                None
            }
        };
        let searching = connections::follow(config.host_root.clone(), state.clone());
        tasks.spawn("searching for connections on reserved ports", searching);
        let reporter = Reporter::of(&config.cluster, state.clone());
        let (kernel, read_at, logged) = (None, None, BTreeMap::new());
        Ok(Self {
            config,
            keeper,
            scanner,
            cluster,
            _endpoints: endpoints,
            hostname,
            tasks,
            state,
            latest,
            reporter,
            kernel,
            read_at,
            wanted: Wanted::default(),
            logged,
        })
    }

    async fn run_until_stopped(mut self) -> anyhow::Result<()> {
        let mut terminate = signal(SignalKind::terminate()).context("listening for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listening for signals")?;
        let ignores_hangup = is_hangup_ignored();
        let mut hangup = signal(SignalKind::hangup()).context("listening for signals")?;
        info!(version = VERSION, record = %self.config.record.display(), "started");
        let mut tasks = std::mem::take(&mut self.tasks);
        let failed = tokio::select! {
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
            _ = hangup.recv(), if !ignores_hangup => None,
            () = self.run_forever() => None,
            ended = tasks.ended() => Some(ended),
        };
        if let Err(error) = self.keeper.finish() {
            warn!(%error, "the guard could not record whether another program wrote the list since the last run");
        }
        if let Some(ended) = failed {
            bail!("{ended}");
        }
        info!("stopped; the reserved ports stay reserved");
        Ok(())
    }

    async fn run_forever(&mut self) {
        drop(timeout(FIRST_STATE_TIMEOUT, self.cluster.answered()).await);
        let (mut is_for_change, mut last) = (false, None);
        loop {
            self.read().await;
            let (began, spent) = (Instant::now(), thread_cpu_time());
            self.run();
            if is_for_change {
                // The update of the claims has just begun. So the cost of the hook's previous update is used here.
                let of_claims = self.state.borrow().hook.map_or(Duration::ZERO, |hook| hook.cost);
                last = Some((began, thread_cpu_time().saturating_sub(spent) + of_claims));
            }
            let read_in = self.read_at.map_or(READ_INTERVAL, |at| READ_INTERVAL.saturating_sub(at.elapsed()));
            let change = async {
                self.cluster.changed().await;
                sleep(wait_after_change(last, Instant::now())).await;
            };
            is_for_change = tokio::select! { () = change => true, () = sleep(read_in) => false };
        }
    }

    async fn read(&mut self) {
        if self.read_at.is_some_and(|at| at.elapsed() < READ_INTERVAL) {
            return;
        }
        match self.scanner.scan(query(PortSet::default())).await.seen {
            Ok((kernel, _)) => self.kernel = Some((kernel, Instant::now())),
            Err(panic) => warn!(
                panic,
                "a bug stopped the scan of this node; the guard uses the facts of the last scan, or waits if there are none"
            ),
        }
        self.read_at = Some(Instant::now());
    }

    fn run(&mut self) {
        let Some((kernel, kernel_at)) = self.kernel.clone() else { return };
        let mut cluster = (*self.cluster.facts()).clone();
        cluster.rejected.extend(no_own_node(&cluster, &self.hostname));
        // While the API server does not answer, a watch keeps its last objects. After `OLD_VIEW`, these objects count
        // as unread.
        cluster.rejected.extend(self.old_views());
        let snapshot = Arc::new(self.config.snapshot(cluster, kernel));
        self.latest.send_replace(Some((Arc::clone(&snapshot), kernel_at)));
        // Before the first run, so that the guard notices writes during this run.
        let unwatched = self.keeper.watch().err().map(|error| error.to_string());
        self.log_once("unwatched", unwatched.unwrap_or_default(), |error| {
            warn!(error, "if another program adds a port of the guard, the guard can later remove the port");
        });
        let kept = self.config.wanted(&snapshot).and_then(|(wanted, bound)| {
            let wanted = wanted.after(&self.wanted);
            self.wanted.clone_from(&wanted);
            let unread = wanted.unread.first().map(|gap| gap.detail.clone()).unwrap_or_default();
            self.state.send_modify(|state| state.is_unread = !unread.is_empty());
            // The text contains no age. So a lasting state always has the same text, which is logged once.
            self.log_once("unread", unread, |unread| {
                warn!(unread, "the guard removes no ports that the unread input may need, until the input can be read");
            });
            Ok(self.keeper.keep(&wanted, bound, Instant::now())?)
        });
        match kept {
            Ok(kept) => {
                self.log_once("error", String::new(), |_| ());
                self.publish(&kept);
                if let (Some(reporter), Some(node), false) = (&self.reporter, snapshot.own_node(), kept.lost.is_empty())
                {
                    let note = format!(
                        "Another program removed reserved ports from net.ipv4.ip_local_reserved_ports: {}. The guard adds \
                         them at most once a minute.",
                        kept.lost
                    );
                    reporter.overwritten(node, &note);
                }
                self.log(&kept);
            }
            Err(error) => self.log_once("error", format!("{error:#}"), |error| error!("{error}")),
        }
        self.state.send_modify(|state| state.ran = Some(Instant::now()));
    }

    fn old_views(&self) -> Vec<Gap> {
        let ages = self.cluster.ages(Instant::now());
        let is_old = |name: &str| ages.iter().any(|it| it.resource == name && it.age.is_some_and(|age| age > OLD_VIEW));
        let gap = |(name, source)| {
            let detail = format!("the API server has not confirmed the {name} for {} seconds", OLD_VIEW.as_secs());
            is_old(name).then(|| Gap::new(source, Why::Unreachable, detail))
        };
        [("services", Source::Services), ("pods", Source::Pods)].into_iter().filter_map(gap).collect()
    }

    fn publish(&self, kept: &Kept) {
        self.state.send_modify(|state| {
            let count = |class| kept.reserved.values().filter(|reason| reason.class == class).count();
            state.reserved = Class::ALL.into_iter().map(|class| (class.name(), count(class))).collect();
            state.left_out = kept.left_out.len();
            state.missing = kept.missing.len();
            state.list.clone_from(&kept.list);
            state.overwritten += u32::from(!kept.lost.is_empty());
            // After a restart, the guard has lost the result of its last search, and searches on all reserved ports.
            let is_first = state.last_success.is_none();
            let new = if is_first { kept.reserved.keys().copied().collect() } else { kept.added.clone() };
            state.unsearched = state.unsearched.union(&new).intersection(&kept.list);
            if let Some(connections) = &mut state.connections {
                connections.retain(|it| kept.list.contains(it.port));
            }
            state.given_up = state.given_up.union(&kept.given_up).intersection(&kept.list).minus(&kept.ours);
            state.last_success = Some(now());
        });
    }

    fn log(&mut self, kept: &Kept) {
        if let Some(why) = &kept.bad_record {
            warn!(why, "the guard's record is malformed; all reserved ports are treated as ports of other programs");
        }
        if !kept.added.is_empty() {
            info!(ports = named(&among(&kept.added, &kept.reserved)), "reserved");
        }
        if !kept.removed.is_empty() {
            info!(ports = %kept.removed, "no longer reserved");
        }
        if !kept.lost.is_empty() {
            warn!(ports = %kept.lost, held = %kept.missing, "another program removed reserved ports from net.ipv4.ip_local_reserved_ports");
        }
        if !kept.given_up.is_empty() {
            warn!(ports = %kept.given_up, "another program wrote the list; these ports stay reserved until the next boot");
        }
        self.log_once("left out", named(&kept.left_out), |ports| {
            warn!(ports, "not reserved: too few ports would stay for outgoing connections");
        });
        self.log_once("missing", kept.missing.to_string(), |ports| {
            warn!(ports, "not reserved: another program writes net.ipv4.ip_local_reserved_ports");
        });
    }

    fn log_once(&mut self, kind: &'static str, text: String, log: impl FnOnce(&str)) {
        if text.is_empty() {
            self.logged.remove(kind);
        } else if self.logged.get(kind) != Some(&text) {
            log(&text);
            self.logged.insert(kind, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_without_end_cost_two_percent_of_a_core_and_a_change_after_a_quiet_time_waits_for_the_debounce_only() {
        let start = Instant::now();
        assert_eq!(wait_after_change(None, start), DEBOUNCE);
        for cost in [20, 400].map(Duration::from_millis) {
            let wait = |since| wait_after_change(Some((start, cost)), start + since);
            assert_eq!(cost + wait(cost), cost * 50);
            assert_eq!(wait(cost * 50), DEBOUNCE);
        }
    }

    #[test]
    fn node_ports_are_named_first_and_the_others_are_counted() {
        let reason = |class, whose: &str| Reason { class, whose: whose.to_owned() };
        let pods = (27000..27010).map(|number| (number, reason(Class::HostPort, "shop/edge")));
        let ports: BTreeMap<u16, Reason> = pods.chain([(30080, reason(Class::NodePort, "shop/web"))]).collect();
        let words = named(&ports);
        assert!(
            words.starts_with("30080 (NodePort of Service shop/web), 27000 (hostPort of pod shop/edge), "),
            "{words}"
        );
        assert!(words.ends_with(", 27008 (hostPort of pod shop/edge), and 1 more"), "{words}");
    }
}
