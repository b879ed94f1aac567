//! Runs the bind hook in a thread of its own. The thread keeps the claims in the kernel current, and reports each bind
//! of a claimed port.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    future::pending,
    mem,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time,
};
use tracing::{info, warn};

use super::{
    GuardState, READ_INTERVAL,
    binds::{Claimed, Conflict, Groups, claimed, conflict},
    events::Reporter,
};
use crate::{bucket::Bucket, cluster_state::ClusterState, cluster_updates::EndpointsRequest, tasks::Tasks, threads};
use portreeve_bind_hook::{Answer, Bind, ClaimId, Hook, MapFailed, Mode, NotAttached, Refusal};
use portreeve_cluster::ClusterSource;
use portreeve_facts::{Cgroup, Gap, Reading, Snapshot, Source, Unread, Why};
use portreeve_kernel::{Cgroups, thread_cpu_time};
use portreeve_rules::{Limits, findings::SubjectKind};

/// The greatest number of binds that the thread reads before it renews the claims, because binds may never stop.
const BATCH: usize = 1024;
const EVENTS: u32 = 10;
const EVENT_EVERY: Duration = Duration::from_secs(6);
const LOST_EVERY: Duration = Duration::from_secs(60);
/// After an Event about a bind, further binds of the same kind have no Event for this time.
const SILENCE: Duration = Duration::from_secs(3600);
/// The greatest number of binds of one control group that are judged in a minute. So one control group cannot use up
/// the limit of all groups.
const OF_GROUP: usize = 3;
const OF_GROUP_WITHIN: Duration = Duration::from_secs(60);
/// The greatest number of binds that are judged in a minute. For each judged bind, the thread reads all control groups,
/// even if the bind is harmless.
const JUDGED: usize = 100;
/// After the last pod that may serve a port ends, the hook allows binds of the port for this time. The next pod of a
/// DaemonSet may bind the port before the guard has read the pod. After a proxy that listened on NodePorts ends, the
/// hook allows all binds for this time.
const OWN_STAYS: Duration = Duration::from_secs(600);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const BREATH: Duration = Duration::from_millis(20);

/// The settings for the guard's answer to binds of claimed ports.
#[derive(Clone, Debug)]
pub struct BindConfig {
    /// Whether the hook only reports binds, or also refuses them.
    pub mode: Mode,
    /// The control group whose binds the hook compares with the claims. `None` stands for all binds of the node.
    pub cgroup: Option<PathBuf>,
    /// If the facts about the cluster are older than this time, the hook allows all binds.
    pub stale: Duration,
    /// The folders of exempt control groups, relative to the mount of cgroup2.
    pub allow: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HookState {
    pub(super) mode: Mode,
    pub(super) is_attached: bool,
    /// Whether the claims in the kernel are older than the guard's claims.
    pub(super) is_behind: bool,
    /// The number of binds by the hook's answer, in the order of [`ANSWERS`].
    pub(super) binds: [u64; ANSWERS.len()],
    /// The number of binds that the kernel saw but could not report.
    pub(super) lost: u64,
    /// The number of binds without an Event, because the limit of all binds or the limit of one control group was
    /// reached.
    pub(super) unreported: u64,
    /// The number of binds that no rule could judge, because an input was not read.
    pub(super) unread: u64,
    /// The processor time of the last update of the claims.
    pub(super) cost: Duration,
}

pub(super) const ANSWERS: [(Answer, &str); 4] = [
    (Answer::Allowed, "allowed"),
    (Answer::Refused, "refused"),
    (Answer::TooOld, "too_old"),
    (Answer::FamilyUnknown, "family_unknown"),
];

impl HookState {
    pub(super) fn of(mode: Mode) -> Self {
        Self {
            mode,
            is_attached: false,
            is_behind: false,
            binds: [0; ANSWERS.len()],
            lost: 0,
            unreported: 0,
            unread: 0,
            cost: Duration::ZERO,
        }
    }
}

/// The last snapshot of the guard, and the time at which the guard read the node for this snapshot.
pub(super) type Latest = Option<(Arc<Snapshot>, Instant)>;

pub(super) struct Inputs {
    pub(super) config: BindConfig,
    /// Events go to this source, if it is an API server.
    pub(super) source: ClusterSource,
    pub(super) host_root: PathBuf,
    pub(super) cluster: ClusterState,
    pub(super) endpoints: EndpointsRequest,
    pub(super) latest: watch::Receiver<Latest>,
    pub(super) state: watch::Sender<GuardState>,
}

/// Starts the hook. If the hook cannot be attached, the guard still reserves ports.
pub(super) fn start(inputs: Inputs, tasks: &mut Tasks) -> anyhow::Result<()> {
    inputs.state.send_modify(|state| state.hook = Some(HookState::of(inputs.config.mode)));
    // The hook covers the network namespace of the thread that attaches it. A new thread is in the namespace of the
    // thread that starts it.
    threads::start("following binds", tasks, move || async move {
        let Some(hook) = attached(&inputs.config, &inputs.host_root).await else { return pending().await };
        match Follower::new(hook, inputs) {
            Ok(mut follower) => follower.run().await,
            Err(error) => {
                warn!(%error, "the bind hook cannot be followed; the guard reserves ports without it");
                pending::<()>().await;
            }
        }
    })
}

/// Attaches the hook. Tries again as long as a later attempt can succeed. Each cause of a failure is logged once.
async fn attached(config: &BindConfig, host_root: &Path) -> Option<Hook> {
    let (mut known, mut pause) = (String::new(), FIRST_PAUSE);
    loop {
        let error = match attach(config, host_root) {
            Ok(hook) => return Some(hook),
            Err(error) => error,
        };
        let tries_again = error.downcast_ref().is_some_and(NotAttached::can_pass);
        let text = format!("{error:#}");
        if text != known {
            warn!(error = text, tries_again, "no bind hook; the guard reserves ports without it");
            known = text;
        }
        if !tries_again {
            return None;
        }
        time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn attach(config: &BindConfig, host_root: &Path) -> anyhow::Result<Hook> {
    let groups = Cgroups::find(host_root);
    let cgroup = match &config.cgroup {
        Some(cgroup) => cgroup.as_path(),
        None => {
            let mount = groups.mount().map_err(|gap| anyhow!(gap.detail))?;
            ensure!(
                groups.is_whole(),
                "{} has only the control groups of this container; pass --cgroup with a folder that has the binds",
                mount.display()
            );
            mount
        }
    };
    let hook = Hook::attach(cgroup, config.mode)?;
    let refused_with = hook.refusal().map(refusal_in_words);
    info!(cgroup = %cgroup.display(), mode = mode_in_words(config.mode), refused_with, "bind hook attached");
    Ok(hook)
}

pub(super) fn mode_in_words(mode: Mode) -> &'static str {
    match mode {
        Mode::Report => "report",
        Mode::Refuse => "refuse",
    }
}

fn refusal_in_words(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::AddressInUse => "address already in use",
        Refusal::NotPermitted => "operation not permitted",
    }
}

struct Follower {
    hook: Hook,
    records: Arc<OwnedFd>,
    inputs: Inputs,
    reporter: Option<Reporter>,
    limit: Limit,
    /// The binds that cause a conflict and are not reported yet.
    conflicts: Vec<(Bind, Result<Cgroup, Gap>, Conflict)>,
    lines: Bucket,
    /// The reason why the claims in the kernel are older than the last snapshot.
    failed: Option<String>,
    /// The reason why the last call of `fresh_for` failed. Soon the kernel will allow all binds.
    unrenewed: Option<String>,
    proxy: Option<Cgroup>,
    /// The key is a claim, and the value is the last time at which a pod that may serve the port existed. For the key
    /// `None`, the value is the last time at which the proxy listened or may have listened on NodePorts.
    own: HashMap<Option<ClaimId>, Instant>,
    /// The folders of `--allow` that are missing.
    absent: Vec<PathBuf>,
    /// The unread inputs that were logged: each input is logged once.
    logged: BTreeSet<(Source, Why)>,
}

impl Follower {
    fn new(hook: Hook, inputs: Inputs) -> anyhow::Result<Self> {
        let records = hook.as_fd().try_clone_to_owned().context("duplicating a descriptor")?;
        let records = Arc::new(records);
        let (reporter, now) = (Reporter::of(&inputs.source, inputs.state.clone()), Instant::now());
        let follower = Self {
            hook,
            records,
            inputs,
            reporter,
            limit: Limit::new(now),
            conflicts: Vec::new(),
            lines: Bucket::new(1, LOST_EVERY, now),
            failed: None,
            unrenewed: None,
            proxy: None,
            own: at_start(now),
            absent: Vec::new(),
            logged: BTreeSet::new(),
        };
        follower.change(|state| state.is_attached = true);
        Ok(follower)
    }

    async fn run(&mut self) {
        let tick = (self.inputs.config.stale / 4).clamp(Duration::from_millis(100), Duration::from_secs(5));
        let mut ready = readable(&self.records, tick);
        loop {
            let mut is_waiting = true;
            tokio::select! {
                changed = self.inputs.latest.changed() => match changed {
                    Ok(()) => self.update(),
                    // The guard ends.
                    Err(_) => return pending().await,
                },
                _ = &mut ready => is_waiting = false,
            }
            drain(|| self.hook.next().map(|bind| self.take(&bind))).await;
            self.report().await;
            let unrenewed = self.renew().err().map(|error| error.to_string());
            if let Some(error) = unrenewed.as_ref().filter(|_| unrenewed != self.unrenewed) {
                warn!(error, "the bind hook refuses nothing for now");
            }
            self.unrenewed = unrenewed;
            if !is_waiting {
                ready = readable(&self.records, tick);
            }
        }
    }

    /// Replaces the claims in the kernel. If an input is unread, the last claims stay. When these claims become too
    /// old, the hook allows all binds.
    fn update(&mut self) {
        let Some((snapshot, _)) = self.inputs.latest.borrow_and_update().clone() else { return };
        let spent = thread_cpu_time();
        let updated = match unread(&snapshot) {
            Some(gap) if gap.why == Why::NotYet => return,
            Some(gap) => Err(gap.detail.clone()),
            None => {
                let all = Cgroups::find(&self.inputs.host_root);
                keep_group(&mut self.proxy, &snapshot.kernel.proxy.cgroup);
                self.name_absent(&all);
                let groups = groups(&all, self.proxy.as_ref(), &self.inputs.config.allow);
                let mut claimed = claimed(&Limits::default().round(&snapshot, None), &groups);
                spare(&mut claimed, &mut self.own, Instant::now());
                self.hook.replace(&claimed.exempt, &claimed.claims).map_err(|error| error.to_string())
            }
        };
        let (failed, cost) = (updated.err(), thread_cpu_time().saturating_sub(spent));
        if let Some(error) = failed.as_ref().filter(|_| failed != self.failed) {
            warn!(error, "the bind hook does not follow the cluster, and soon refuses nothing");
        }
        self.change(|state| (state.is_behind, state.cost) = (failed.is_some(), cost));
        self.failed = failed;
    }

    fn name_absent(&mut self, all: &Cgroups) {
        for path in newly_absent(&self.inputs.config.allow, |path| all.id(path).is_some(), &mut self.absent) {
            warn!(allow = %path.display(), "no such control group: its processes are not exempt until it is there");
        }
    }

    /// Lets the kernel refuse binds for some more time. When the time ends, the kernel allows all binds, unless this
    /// function is called again. Also counts lost records.
    fn renew(&mut self) -> Result<(), MapFailed> {
        let now = Instant::now();
        let made = self.inputs.latest.borrow().as_ref().map(|(_, made)| *made);
        let is_current = self.failed.is_none() && self.inputs.config.mode == Mode::Refuse;
        if let Some(left) = made.filter(|_| is_current).and_then(|made| self.left(made, now)) {
            self.hook.fresh_for(left)?;
        }
        let counts = (self.hook.lost()?, self.limit.unreported);
        let known = self.inputs.state.borrow().hook.map(|state| (state.lost, state.unreported));
        if known.is_some_and(|known| known != counts) {
            self.change(|state| (state.lost, state.unreported) = counts);
            // The number of log lines is limited, because a process may call `bind` in an endless loop.
            if self.lines.take(now) {
                let (lost, without_event) = counts;
                warn!(lost, without_event, "too many bind() calls on claimed ports: some calls have no Event");
            }
        }
        Ok(())
    }

    /// The time from `now` for which the kernel may refuse binds.
    fn left(&self, made: Instant, now: Instant) -> Option<Duration> {
        let ages = self.inputs.cluster.ages(now);
        let of = |name: &str| ages.iter().find(|it| it.resource == name).and_then(|it| it.age);
        let age = age(of("services"), of("pods"), now.saturating_duration_since(made))?;
        self.inputs.config.stale.checked_sub(age).filter(|left| !left.is_zero())
    }

    fn change(&self, change: impl FnOnce(&mut HookState)) {
        self.inputs.state.send_modify(|state| {
            if let Some(hook) = &mut state.hook {
                change(hook);
            }
        });
    }

    fn take(&mut self, bind: &Bind) {
        self.change(|state| {
            for ((answer, _), count) in ANSWERS.iter().zip(&mut state.binds) {
                *count += u64::from(*answer == bind.answer);
            }
        });
        // The number of judged binds is limited, because the search for a control group walks over all groups.
        if self.inputs.latest.borrow().is_none() || !self.limit.admits(bind, Instant::now()) {
            return;
        }
        let Some(snapshot) = self.snapshot() else { return };
        let cgroup = cgroup_of(&Cgroups::find(&self.inputs.host_root), bind.cgroup);
        let judged = match may_be_proxy(&self.own, bind) {
            Some(gap) => Err(gap),
            None => conflict(&snapshot, bind, cgroup.clone(), self.inputs.config.stale),
        };
        if let Err(gap) = &judged {
            self.change(|state| state.unread += 1);
            if self.logged.insert((gap.source, gap.why)) {
                warn!(reason = gap.detail, "a bind of a claimed port has no Event, because an input was not read");
            }
        }
        let Ok(Some(conflict)) = judged else { return self.limit.is_no_conflict(bind) };
        self.conflicts.push((bind.clone(), cgroup, conflict));
    }

    /// The last snapshot, with the newest pods. A pod may bind a port at its start, and the snapshot may be older than
    /// this pod.
    fn snapshot(&mut self) -> Option<Snapshot> {
        let (snapshot, _) = self.inputs.latest.borrow().clone()?;
        let mut snapshot = Arc::unwrap_or_clone(snapshot);
        snapshot.cluster.pods = self.inputs.cluster.facts().pods.clone();
        Some(snapshot)
    }

    /// Reports the conflicts. The Event about a bind that passed has the name of the finding's Event. The outcome is a
    /// part of this name, and the endpoints of the Service decide the outcome.
    async fn report(&mut self) {
        if self.conflicts.is_empty() {
            return;
        }
        let (conflicts, Some(mut snapshot)) = (mem::take(&mut self.conflicts), self.snapshot()) else { return };
        let services = services_of(conflicts.iter().map(|(.., conflict)| conflict));
        let is_requested = !services.is_empty();
        if is_requested {
            self.inputs.endpoints.fill_in(services, &mut snapshot.cluster).await;
        }
        for (bind, cgroup, first) in conflicts {
            // If the endpoints show that there is no conflict, the bind is not reported. If an input is unread now, the
            // first judgement remains.
            let judged = match first.evidence.is_some() {
                true => conflict(&snapshot, &bind, cgroup, self.inputs.config.stale).unwrap_or(Some(first)),
                false => Some(first),
            };
            let Some(conflict) = judged else {
                self.limit.is_no_conflict(&bind);
                continue;
            };
            warn!(
                note = conflict.note,
                pid = bind.pid,
                rule = conflict.key.name(),
                "a process called bind for a claimed port"
            );
            if let Some(reporter) = &self.reporter {
                reporter.bound(&conflict, &snapshot);
            }
        }
        if is_requested {
            // This request ends the watch of these endpoints.
            self.inputs.endpoints.fill_in(BTreeSet::new(), &mut snapshot.cluster).await;
        }
    }
}

/// The Services whose endpoints can change a conflict. A refused bind is always a conflict, and its Event has no
/// outcome. So no endpoints are requested for a refused bind.
fn services_of<'a>(conflicts: impl Iterator<Item = &'a Conflict>) -> BTreeSet<String> {
    let subjects = conflicts.filter(|conflict| conflict.evidence.is_some()).map(|conflict| &conflict.key.subject);
    subjects.filter(|subject| subject.kind == SubjectKind::Service).map(|service| service.name.clone()).collect()
}

async fn drain(mut take: impl FnMut() -> Option<()>) {
    let taken = (0..BATCH).map_while(|_| take()).count();
    if taken == BATCH {
        time::sleep(BREATH).await;
    }
}

fn readable(records: &Arc<OwnedFd>, tick: Duration) -> JoinHandle<()> {
    let records = Arc::clone(records);
    spawn_blocking(move || {
        let mut polled = [PollFd::new(records.as_fd(), PollFlags::POLLIN)];
        if poll(&mut polled, PollTimeout::try_from(tick).unwrap_or(PollTimeout::MAX)).is_err() {
            sleep(tick);
        }
    })
}

fn cgroup_of(groups: &Cgroups, id: u64) -> Result<Cgroup, Gap> {
    let gone = || Gap::new(Source::Cgroups, Why::Stale, "the control group is gone");
    groups.of(&HashSet::from([id])).remove(&id).unwrap_or_else(|| Err(gone()))
}

/// An unread input that makes claims or exemptions uncertain.
fn unread(snapshot: &Snapshot) -> Option<&Gap> {
    let (cluster, kernel) = (&snapshot.cluster, &snapshot.kernel);
    cluster.services.gap().or(cluster.pods.gap()).or(kernel.interfaces.gap())
}

fn newly_absent(all: &[PathBuf], is_there: impl Fn(&str) -> bool, absent: &mut Vec<PathBuf>) -> Vec<PathBuf> {
    let now: Vec<PathBuf> = all.iter().filter(|path| !is_there(&path.to_string_lossy())).cloned().collect();
    let new = now.iter().filter(|path| !absent.contains(path)).cloned().collect();
    *absent = now;
    new
}

/// The group of a restarting proxy cannot be read for a moment. Until the group can be read, the guard keeps the last
/// known group.
fn keep_group(last: &mut Option<Cgroup>, seen: &Reading<Cgroup>) {
    if let Some(group) = seen.known(Unread::Chooses) {
        *last = Some(group.clone());
    }
}

fn groups(all: &Cgroups, proxy: Option<&Cgroup>, allow: &[PathBuf]) -> Groups {
    let pods = all.pods();
    let proxy = proxy.filter(|cgroup| !cgroup.is_root()).and_then(|cgroup| match &cgroup.pod {
        // The group of the whole pod, because the pod's next container gets another group.
        Some(pod) => pods.get(&pod.pod_uid).copied(),
        None => all.id(&cgroup.path),
    });
    Groups { proxy, allowed: allow.iter().filter_map(|path| all.id(&path.to_string_lossy())).collect(), pods }
}

/// A proxy that listened on NodePorts may have ended just before the guard started.
fn at_start(now: Instant) -> HashMap<Option<ClaimId>, Instant> {
    HashMap::from([(None, now)])
}

/// Removes the refusal from a claim if a pod may have served the port a short time ago. If the proxy may have listened
/// on NodePorts a short time ago, removes the refusal from all claims.
fn spare(claimed: &mut Claimed, own: &mut HashMap<Option<ClaimId>, Instant>, now: Instant) {
    if claimed.is_proxy_without_sockets {
        own.remove(&None);
    }
    own.extend(claimed.own.iter().map(|id| (*id, now)));
    own.retain(|_, at| now.saturating_duration_since(*at) < OWN_STAYS);
    for claim in &mut claimed.claims {
        claim.is_refused &= !own.contains_key(&Some(claim.id)) && !own.contains_key(&None);
    }
}

/// The proxy may have listened on NodePorts a short time ago, and may have a new process now. If this process may have
/// made the bind, returns the reason why the bind cannot be judged.
fn may_be_proxy(own: &HashMap<Option<ClaimId>, Instant>, bind: &Bind) -> Option<Gap> {
    let detail = "the proxy may listen on NodePorts, and a process of root may be its next process";
    // Refused binds are always reported.
    (own.contains_key(&None) && bind.uid == 0 && bind.answer != Answer::Refused)
        .then(|| Gap::new(Source::ProxyProcess, Why::Ambiguous, detail))
}

/// The age of the claims is the greatest of three times: the age of Services, the age of pods, and the delay of the
/// next read of the node.
fn age(services: Option<Duration>, pods: Option<Duration>, since_read: Duration) -> Option<Duration> {
    Some(services?.max(pods?).max(since_read.saturating_sub(READ_INTERVAL)))
}

struct Limit {
    turns: Bucket,
    /// The time of the last Event for each kind of bind.
    known: HashMap<Kind, Instant>,
    /// The binds that were judged in the last minute: the control group, and the time. Harmless binds are included.
    judged: Vec<(u64, Instant)>,
    unreported: u64,
}

/// The control group, the claim and the answer. A process can choose its address and its name, so address and name are
/// not in this key.
type Kind = (u64, ClaimId, &'static str);

fn kind(bind: &Bind) -> Kind {
    let answer = ANSWERS.iter().find(|(answer, _)| *answer == bind.answer).map_or("", |(_, name)| name);
    (bind.cgroup, bind.claim, answer)
}

impl Limit {
    fn new(now: Instant) -> Self {
        Self { turns: Bucket::new(EVENTS, EVENT_EVERY, now), known: HashMap::new(), judged: Vec::new(), unreported: 0 }
    }

    fn admits(&mut self, bind: &Bind, now: Instant) -> bool {
        let kind = kind(bind);
        let within = |at: Instant, time| now.saturating_duration_since(at) < time;
        if self.known.get(&kind).is_some_and(|at| within(*at, SILENCE)) {
            return false;
        }
        self.judged.retain(|(_, at)| within(*at, OF_GROUP_WITHIN));
        let of_group = self.judged.iter().filter(|(group, _)| *group == bind.cgroup);
        // A refused bind is always a conflict. So the limit for refused binds is higher than the limit for other binds.
        let most = JUDGED + if bind.answer == Answer::Refused { EVENTS as usize } else { 0 };
        let is_admitted = of_group.count() < OF_GROUP && self.judged.len() < most && self.turns.take(now);
        if is_admitted {
            // The limit of Events also limits the length of this map.
            self.known.retain(|_, at| within(*at, SILENCE));
            self.known.insert(kind, now);
            self.judged.push((bind.cgroup, now));
        } else {
            self.unreported += 1;
        }
        is_admitted
    }

    /// Notes that a bind is harmless. A later bind of the same kind is judged again. The bind does not count for the
    /// limit of Events. But the bind counts for the limit of its control group, because a process may repeat the bind
    /// without end.
    fn is_no_conflict(&mut self, bind: &Bind) {
        self.known.remove(&kind(bind));
        self.turns.give_back();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;
    use portreeve_bind_hook::{Claim, Protocol as Bound};
    use portreeve_facts::healthy::gap;

    fn bind(cgroup: u64, answer: Answer) -> Bind {
        Bind {
            pid: 7,
            uid: 0,
            name: "squatter".to_owned(),
            cgroup,
            protocol: Bound::Tcp,
            at: "0.0.0.0:30080".parse().expect("an address"),
            claim: ClaimId(30080),
            answer,
        }
    }

    #[test]
    fn a_bind_like_one_before_has_no_event_for_an_hour_and_takes_no_turn() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        assert!(limit.admits(&bind(1, Answer::Allowed), start));
        for _ in 0..1000 {
            assert!(!limit.admits(&Bind { name: "other".to_owned(), ..bind(1, Answer::Allowed) }, start));
        }
        let at = "127.0.0.2:30080".parse().expect("an address");
        assert!(!limit.admits(&Bind { at, ..bind(1, Answer::Allowed) }, start), "a process can choose the address");
        assert!(limit.admits(&bind(1, Answer::Refused), start), "another answer is news");
        assert!(limit.admits(&bind(2, Answer::Allowed), start), "another group is news");
        assert_eq!(limit.unreported, 0);
        assert!(!limit.admits(&bind(1, Answer::Allowed), start + Duration::from_secs(3599)));
        assert!(limit.admits(&bind(1, Answer::Allowed), start + SILENCE));
        assert_eq!(limit.known.len(), 1, "the others are forgotten");
    }

    #[test]
    fn ten_binds_have_events_at_once_and_then_ten_a_minute_and_the_others_are_counted() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let mut admitted =
            |from: u64, at| (from..from + 100).filter(|it| limit.admits(&bind(*it, Answer::Refused), at)).count();
        assert_eq!(admitted(0, start), 10);
        assert_eq!(admitted(1000, start + Duration::from_secs(60)), 10);
        assert_eq!(limit.unreported, 180);
    }

    #[tokio::test]
    async fn after_a_thousand_binds_there_is_a_pause_and_after_fewer_there_is_none() {
        // Up to the pause, everything happens in the first call of `poll`.
        let pauses = |take: &mut dyn FnMut() -> Option<()>| {
            pin!(drain(take)).poll(&mut Context::from_waker(Waker::noop())).is_pending()
        };
        let mut taken = 0;
        let mut endless = || {
            taken += 1;
            (taken <= 10_000).then_some(())
        };
        assert!(pauses(&mut endless));
        assert_eq!(taken, 1024);
        let mut few = 1..1024;
        assert!(!pauses(&mut || few.next().map(|_| ())));
        assert_eq!(few.len(), 0);
    }

    #[test]
    fn a_control_group_leaves_turns_for_others_and_a_bind_that_is_no_conflict_silences_none() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let of = |cgroup, port: u32| Bind { claim: ClaimId(port), ..bind(cgroup, Answer::Allowed) };
        let admitted = (1..=100).filter(|port| limit.admits(&of(1, *port), start)).count();
        assert_eq!((admitted, limit.unreported), (OF_GROUP, 97));
        assert!(limit.admits(&of(2, 1), start));
        limit.is_no_conflict(&of(2, 1));
        assert!(limit.admits(&of(2, 1), start));
        assert!(!limit.admits(&of(1, 50), start + Duration::from_secs(59)));
        assert!(limit.admits(&of(1, 50), start + OF_GROUP_WITHIN));
    }

    #[test]
    fn binds_without_a_conflict_take_no_turn_of_others_and_are_judged_three_times_a_minute() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        let mut judged = |group, at| {
            let one = bind(group, Answer::Allowed);
            let admitted = (0..100).filter(|_| {
                limit.admits(&one, at) && {
                    limit.is_no_conflict(&one);
                    true
                }
            });
            admitted.count()
        };
        for group in 1..=20 {
            assert_eq!(judged(group, start), OF_GROUP, "group {group}");
        }
        assert_eq!(judged(1, start + OF_GROUP_WITHIN / 2), 0);
        assert_eq!(judged(1, start + OF_GROUP_WITHIN), OF_GROUP);
        assert_eq!(limit.judged.len(), OF_GROUP, "the others are forgotten");
        let conflicts =
            (100..200).filter(|group| limit.admits(&bind(*group, Answer::Refused), start + OF_GROUP_WITHIN));
        assert_eq!(conflicts.count(), 10, "a turn is given back once");
        let mut limit = Limit::new(start);
        let mut others = (1..=100).map(|group| bind(group, Answer::Allowed));
        assert!(others.all(|it| limit.admits(&it, start) && {
            limit.is_no_conflict(&it);
            true
        }));
        assert!(!limit.admits(&bind(101, Answer::Allowed), start), "a judgement has its price");
        assert!(limit.admits(&bind(101, Answer::Refused), start), "a refusal is a conflict");
    }

    #[test]
    fn the_endpoints_of_a_service_are_requested_unless_the_bind_was_refused() {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
        let requested = |answer| {
            let group = Cgroup { path: "/system.slice/squatter.service".to_owned(), pod: None };
            let judged = conflict(&world, &bind(9, answer), Ok(group), Duration::ZERO);
            services_of(judged.expect("each input was read").iter())
        };
        assert_eq!(requested(Answer::Allowed), BTreeSet::from(["web".to_owned()]));
        assert_eq!(requested(Answer::Refused), BTreeSet::new());
    }

    #[test]
    fn a_port_whose_own_pod_has_gone_is_not_refused_until_the_next_pod_had_time_to_come() {
        let at = "192.0.2.1:30080".parse().expect("an address");
        let claim = |id| Claim { protocol: Bound::Tcp, at, id: ClaimId(id), is_refused: true };
        let claimed = |own: &[Option<u32>]| Claimed {
            claims: vec![claim(1), claim(2)],
            own: own.iter().map(|id| id.map(ClaimId)).collect(),
            ..Claimed::default()
        };
        let (mut own, start) = (HashMap::new(), Instant::now());
        let mut refused = |of: &[Option<u32>], now| {
            let mut claimed = claimed(of);
            spare(&mut claimed, &mut own, now);
            claimed.claims.iter().map(|claim| claim.is_refused).collect::<Vec<_>>()
        };
        assert_eq!(refused(&[Some(1)], start), [false, true]);
        assert_eq!(refused(&[], start + OWN_STAYS / 2), [false, true]);
        assert_eq!(refused(&[], start + OWN_STAYS), [true, true]);
        assert_eq!(refused(&[None], start + OWN_STAYS), [false, false], "the proxy listens on NodePorts");
        assert_eq!(refused(&[], start + OWN_STAYS * 3 / 2), [false, false], "its next pod has another group");
        assert_eq!(refused(&[], start + OWN_STAYS * 2), [true, true]);
        let of_user = Bind { uid: 1000, ..bind(1, Answer::Allowed) };
        let is_judged = |own: &[Option<ClaimId>], bind: &Bind| {
            may_be_proxy(&own.iter().map(|id| (*id, start)).collect(), bind).is_none()
        };
        assert!(!is_judged(&[None], &bind(1, Answer::Allowed)) && is_judged(&[None], &of_user));
        assert!(is_judged(&[Some(ClaimId(1))], &bind(1, Answer::Allowed)));
    }

    #[test]
    fn after_a_start_nothing_is_refused_until_a_proxy_without_sockets_is_known_or_the_time_is_over() {
        let start = Instant::now();
        let is_refused = |is_proxy_without_sockets, since_start| {
            let at = "192.0.2.1:30080".parse().expect("an address");
            let claims = vec![Claim { protocol: Bound::Tcp, at, id: ClaimId(1), is_refused: true }];
            let mut claimed = Claimed { claims, is_proxy_without_sockets, ..Claimed::default() };
            spare(&mut claimed, &mut at_start(start), start + since_start);
            claimed.claims[0].is_refused
        };
        assert!(
            !is_refused(false, Duration::ZERO) && !is_refused(false, OWN_STAYS / 2) && is_refused(false, OWN_STAYS)
        );
        assert!(is_refused(true, Duration::ZERO));
    }

    #[test]
    fn a_proxy_that_does_not_answer_keeps_its_last_group() {
        let group = |path: &str| Reading::Seen(Cgroup { path: path.to_owned(), pod: None });
        let mut last = None;
        for (seen, kept) in [
            (group("/kubepods/a"), "/kubepods/a"),
            (gap(Source::ProxyProcess, Why::Unreachable), "/kubepods/a"),
            (group("/kubepods/b"), "/kubepods/b"),
        ] {
            keep_group(&mut last, &seen);
            assert_eq!(last.as_ref().map(|group| group.path.as_str()), Some(kept));
        }
    }

    #[test]
    fn an_allowed_control_group_that_is_absent_is_named_once_until_it_was_there_again() {
        let all = [PathBuf::from("a"), PathBuf::from("b")];
        let mut absent = Vec::new();
        let mut named = |there: &[&str]| newly_absent(&all, |path| there.contains(&path), &mut absent);
        assert_eq!(named(&["a"]), [PathBuf::from("b")]);
        assert_eq!(named(&["a"]), Vec::<PathBuf>::new());
        assert_eq!(named(&["a", "b"]), Vec::<PathBuf>::new());
        assert_eq!(named(&["a"]), [PathBuf::from("b")]);
    }

    #[test]
    fn claims_are_as_old_as_the_older_view_and_a_guard_that_hangs_makes_them_old() {
        let seconds = Duration::from_secs;
        assert_eq!(age(Some(seconds(5)), Some(seconds(9)), seconds(20)), Some(seconds(9)));
        assert_eq!(age(Some(seconds(5)), Some(seconds(9)), READ_INTERVAL + seconds(40)), Some(seconds(40)));
        assert_eq!(age(None, Some(seconds(1)), seconds(0)), None, "Services were never read");
        assert_eq!(age(Some(seconds(1)), None, seconds(0)), None, "Pods were never read");
    }
}
