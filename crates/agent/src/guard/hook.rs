//! The bind hook in a thread of its own: it keeps the claims in the kernel, and reports each bind of one.

use std::{
    collections::{HashMap, HashSet},
    future::pending,
    net::SocketAddr,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
};
use tracing::{info, warn};

use super::{
    GuardState, READ_INTERVAL,
    binds::{Claimed, Groups, claimed, conflict},
    events::Reporter,
};
use crate::{bucket::Bucket, cluster_state::ClusterState, tasks::Tasks, threads};
use portreeve_bind_hook::{Answer, Bind, Hook, MapFailed, Mode, Protocol as Bound};
use portreeve_facts::{Cgroup, Gap, Snapshot, Source, Unread, Why};
use portreeve_kernel::Cgroups;
use portreeve_rules::Limits;

/// The most binds that are read before claims are renewed: a process may bind without end.
const BATCH: usize = 1024;
/// Binds with an Event: a burst, and then one each time.
const EVENTS: u32 = 10;
const EVENT_EVERY: Duration = Duration::from_secs(6);
/// From one log line about lost binds to the next.
const LOST_EVERY: Duration = Duration::from_secs(60);
/// A bind like one before has no Event for so long.
const SILENCE: Duration = Duration::from_secs(3600);

/// What the guard does about binds of claimed ports.
#[derive(Clone, Debug)]
pub struct BindConfig {
    /// Whether binds are reported only, or refused.
    pub mode: Mode,
    /// The control group whose binds the hook checks; without one, all binds of the node.
    pub cgroup: Option<PathBuf>,
    /// Facts about the cluster that are older refuse nothing.
    pub stale: Duration,
    /// The folders of control groups whose processes are exempt, below the mount of cgroup2.
    pub allow: Vec<PathBuf>,
}

/// The hook's state, for metrics.
#[derive(Clone, Copy, Debug)]
pub(super) struct HookState {
    pub(super) mode: Mode,
    pub(super) is_attached: bool,
    /// Binds by the hook's answer, in the order of [`ANSWERS`].
    pub(super) binds: [u64; ANSWERS.len()],
    /// Binds that the kernel could not hand over.
    pub(super) lost: u64,
    /// Binds without an Event, because there were too many.
    pub(super) unreported: u64,
}

/// The hook's answers, with their names in metrics.
pub(super) const ANSWERS: [(Answer, &str); 4] = [
    (Answer::Allowed, "allowed"),
    (Answer::Refused, "refused"),
    (Answer::TooOld, "too_old"),
    (Answer::FamilyUnknown, "family_unknown"),
];

impl HookState {
    pub(super) fn of(mode: Mode) -> Self {
        Self { mode, is_attached: false, binds: [0; ANSWERS.len()], lost: 0, unreported: 0 }
    }
}

/// The last snapshot of the guard, and its time.
pub(super) type Latest = Option<(Arc<Snapshot>, Instant)>;

/// What the thread needs.
pub(super) struct Inputs {
    pub(super) config: BindConfig,
    pub(super) host_root: PathBuf,
    pub(super) cluster: ClusterState,
    pub(super) latest: watch::Receiver<Latest>,
    pub(super) state: watch::Sender<GuardState>,
    /// Makes the writer of Events, on the thread that uses it.
    pub(super) reporter: Box<dyn FnOnce() -> Option<Reporter> + Send>,
}

/// Attaches the hook, and follows it on a thread. Without a hook, the guard only reserves ports.
///
/// # Errors
/// If there is no thread.
pub(super) fn start(inputs: Inputs, tasks: &mut Tasks) -> anyhow::Result<()> {
    let mode = inputs.config.mode;
    inputs.state.send_modify(|state| state.hook = Some(HookState::of(mode)));
    // The hook is for the network namespace of this thread.
    let hook = match attach(&inputs) {
        Ok(hook) => hook,
        Err(error) => {
            warn!(error = format!("{error:#}"), "no bind hook; the guard reserves ports without it");
            return Ok(());
        }
    };
    threads::start("following binds", tasks, move || async move {
        match Follower::new(hook, inputs) {
            Ok(mut follower) => follower.run().await,
            Err(error) => {
                warn!(%error, "the bind hook cannot be followed; the guard reserves ports without it");
                pending::<()>().await;
            }
        }
    })
}

fn attach(inputs: &Inputs) -> anyhow::Result<Hook> {
    let groups = Cgroups::find(&inputs.host_root);
    let cgroup = match &inputs.config.cgroup {
        Some(cgroup) => cgroup.as_path(),
        None => groups.mount().map_err(|gap| anyhow!(gap.detail))?,
    };
    let hook = Hook::attach(cgroup, inputs.config.mode)?;
    info!(cgroup = %cgroup.display(), mode = mode_in_words(inputs.config.mode), "bind hook attached");
    Ok(hook)
}

pub(super) fn mode_in_words(mode: Mode) -> &'static str {
    match mode {
        Mode::Report => "report",
        Mode::Refuse => "refuse",
    }
}

struct Follower {
    hook: Hook,
    /// The descriptor of the hook's records.
    records: Arc<OwnedFd>,
    config: BindConfig,
    host_root: PathBuf,
    cluster: ClusterState,
    latest: watch::Receiver<Latest>,
    state: watch::Sender<GuardState>,
    reporter: Option<Reporter>,
    limit: Limit,
    lines: Bucket,
    /// Why the kernel has older claims than the last snapshot.
    failed: Option<String>,
}

impl Follower {
    fn new(hook: Hook, inputs: Inputs) -> anyhow::Result<Self> {
        let records = hook.as_fd().try_clone_to_owned().context("duplicating a descriptor")?;
        let records = Arc::new(records);
        let Inputs { config, host_root, cluster, latest, state, reporter } = inputs;
        let (reporter, now) = (reporter(), Instant::now());
        let (limit, lines, failed) = (Limit::new(now), Bucket::new(1, LOST_EVERY, now), None);
        let follower =
            Self { hook, records, config, host_root, cluster, latest, state, reporter, limit, lines, failed };
        follower.change(|state| state.is_attached = true);
        Ok(follower)
    }

    async fn run(&mut self) {
        let tick = (self.config.stale / 4).clamp(Duration::from_millis(100), Duration::from_secs(5));
        let mut ready = readable(&self.records, tick);
        loop {
            let mut is_waiting = true;
            tokio::select! {
                changed = self.latest.changed() => match changed {
                    Ok(()) => self.update(),
                    // The guard ends.
                    Err(_) => return pending().await,
                },
                _ = &mut ready => is_waiting = false,
            }
            for _ in 0..BATCH {
                let Some(bind) = self.hook.next() else { break };
                self.take(&bind);
            }
            if let Err(error) = self.renew() {
                warn!(%error, "the bind hook refuses nothing for now");
            }
            if !is_waiting {
                ready = readable(&self.records, tick);
            }
        }
    }

    /// Puts the claims of the latest snapshot into the kernel. If input is unread, the last claims stay, and soon refuse nothing.
    fn update(&mut self) {
        let Some((snapshot, _)) = self.latest.borrow_and_update().clone() else { return };
        let updated = match unread(&snapshot) {
            Some(gap) if gap.why == Why::NotYet => return,
            Some(gap) => Err(gap.detail.clone()),
            None => {
                let groups = groups(&Cgroups::find(&self.host_root), &snapshot, &self.config.allow);
                let Claimed { claims, exempt } = claimed(&Limits::default().round(&snapshot, None), &groups);
                let updated = self.hook.exempt(&exempt).and_then(|()| self.hook.claims(&claims));
                updated.map_err(|error| error.to_string())
            }
        };
        let failed = updated.err();
        if let Some(error) = failed.as_ref().filter(|_| failed != self.failed) {
            warn!(error, "the bind hook does not follow the cluster, and soon refuses nothing");
        }
        self.failed = failed;
    }

    /// Lets the kernel refuse as long as the claims are fresh. It stops by itself. Also counts lost records.
    fn renew(&mut self) -> Result<(), MapFailed> {
        let now = Instant::now();
        let made = self.latest.borrow().as_ref().map(|(_, made)| *made);
        let is_current = self.failed.is_none() && self.config.mode == Mode::Refuse;
        if let Some(left) = made.filter(|_| is_current).and_then(|made| self.left(made, now)) {
            self.hook.fresh_for(left)?;
        }
        let counts = (self.hook.lost()?, self.limit.unreported);
        let known = self.state.borrow().hook.map(|state| (state.lost, state.unreported));
        if known.is_some_and(|known| known != counts) {
            self.change(|state| (state.lost, state.unreported) = counts);
            // A process may bind without end.
            if self.lines.take(now) {
                let (lost, without_event) = counts;
                warn!(lost, without_event, "too many binds of claimed ports: some have no Event");
            }
        }
        Ok(())
    }

    /// How long the kernel may refuse from now on.
    fn left(&self, made: Instant, now: Instant) -> Option<Duration> {
        let ages = self.cluster.ages(now);
        let of = |name: &str| ages.iter().find(|it| it.resource == name).and_then(|it| it.age);
        let age = age(of("services"), of("pods"), now.saturating_duration_since(made))?;
        self.config.stale.checked_sub(age).filter(|left| !left.is_zero())
    }

    fn change(&self, change: impl FnOnce(&mut HookState)) {
        self.state.send_modify(|state| {
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
        let Some((snapshot, _)) = self.latest.borrow().clone() else { return };
        // Only a few are looked up: a search for a control group walks over all of them.
        if !self.limit.admits(bind, Instant::now()) {
            return;
        }
        let cgroup = cgroup_of(&Cgroups::find(&self.host_root), bind.cgroup);
        let Some(conflict) = conflict(&snapshot, bind, cgroup, self.config.stale) else { return };
        warn!(note = conflict.note, rule = conflict.key.name(), "a claimed port was bound");
        if let Some(reporter) = &self.reporter {
            reporter.bound(&conflict, bind.answer == Answer::Refused, snapshot.node_name());
        }
    }
}

/// Waits on a thread of its own until there is a record, and not longer than a tick.
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

/// The unread input without which claims or exemptions may be wrong.
fn unread(snapshot: &Snapshot) -> Option<&Gap> {
    let (cluster, kernel) = (&snapshot.cluster, &snapshot.kernel);
    cluster.services.gap().or(cluster.pods.gap()).or(kernel.interfaces.gap())
}

/// The control groups that are exempt from some claims or from all.
fn groups(all: &Cgroups, snapshot: &Snapshot, allow: &[PathBuf]) -> Groups {
    let pods = all.pods();
    let proxy = snapshot.kernel.proxy.cgroup.known(Unread::Chooses).filter(|cgroup| !cgroup.is_root());
    let proxy = proxy.and_then(|cgroup| match &cgroup.pod {
        // Its next container has another group.
        Some(pod) => pods.get(&pod.pod_uid).copied(),
        None => all.id(&cgroup.path),
    });
    Groups { proxy, allowed: allow.iter().filter_map(|path| all.id(&path.to_string_lossy())).collect(), pods }
}

/// The age of the claims: the age of the Services or of the Pods, whichever is older, or since the last run of a guard that hangs.
fn age(services: Option<Duration>, pods: Option<Duration>, since_run: Duration) -> Option<Duration> {
    Some(services?.max(pods?).max(since_run.saturating_sub(READ_INTERVAL)))
}

/// Which binds get an Event.
struct Limit {
    turns: Bucket,
    /// When a bind of this kind last had an Event.
    known: HashMap<Kind, Instant>,
    unreported: u64,
}

/// A control group, and what it did. The name of a process is no part of it: a process may change its name.
type Kind = (u64, Bound, SocketAddr, &'static str);

impl Limit {
    fn new(now: Instant) -> Self {
        Self { turns: Bucket::new(EVENTS, EVENT_EVERY, now), known: HashMap::new(), unreported: 0 }
    }

    fn admits(&mut self, bind: &Bind, now: Instant) -> bool {
        let answer = ANSWERS.iter().find(|(answer, _)| *answer == bind.answer).map_or("", |(_, name)| name);
        let kind = (bind.cgroup, bind.protocol, bind.at, answer);
        if self.known.get(&kind).is_some_and(|at| now.saturating_duration_since(*at) < SILENCE) {
            return false;
        }
        let is_admitted = self.turns.take(now);
        if is_admitted {
            // The turns bound the number of those that stay.
            self.known.retain(|_, at| now.saturating_duration_since(*at) < SILENCE);
            self.known.insert(kind, now);
        } else {
            self.unreported += 1;
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_bind_hook::ClaimId;

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
        assert!(limit.admits(&bind(1, Answer::Refused), start), "another answer is news");
        assert!(limit.admits(&bind(2, Answer::Allowed), start), "another group is news");
        assert_eq!(limit.unreported, 0);
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

    #[test]
    fn claims_are_as_old_as_the_older_view_and_a_guard_that_hangs_makes_them_old() {
        let seconds = Duration::from_secs;
        assert_eq!(age(Some(seconds(5)), Some(seconds(9)), seconds(20)), Some(seconds(9)));
        assert_eq!(age(Some(seconds(5)), Some(seconds(9)), READ_INTERVAL + seconds(40)), Some(seconds(40)));
        assert_eq!(age(None, Some(seconds(1)), seconds(0)), None, "Services were never read");
        assert_eq!(age(Some(seconds(1)), None, seconds(0)), None, "Pods were never read");
    }
}
