//! The state of the cluster, watched beside the loop or read again from files that changed; passed on when it differs.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::MetadataExt as _,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{
        Mutex,
        watch::{Receiver, Sender, channel},
    },
    time::{sleep, timeout},
};
use tracing::error;

use crate::{
    cluster::{self, Access, ClusterSource, EndpointsOf, Input, Watch},
    facts::{ClusterFacts, Gap, Reading, Source, Why},
    sinks::metrics::{ViewAge, word},
};

/// How often files are looked at for a change.
const FILES: Duration = Duration::from_secs(1);
/// How often ages and failures of watches are read; no message announces their changes.
const STANDINGS: Duration = Duration::from_secs(1);

/// How long to wait for endpoints that were requested.
const ENDPOINTS_TIMEOUT: Duration = Duration::from_secs(1);

/// The cluster as it was last read.
#[derive(Clone, Debug)]
pub(super) struct ClusterState {
    pub(super) facts: Arc<ClusterFacts>,
    /// When each kind of object was last seen whole.
    whole: BTreeMap<&'static str, Instant>,
    /// Failures by kind of object and reason.
    errors: BTreeMap<(&'static str, String), u64>,
}

impl ClusterState {
    /// Age and failures of each kind of object.
    pub(super) fn ages(&self, now: Instant) -> Vec<ViewAge> {
        let kinds = kinds(&self.facts).map(|(resource, _)| resource);
        let of = |resource| ViewAge {
            resource,
            age: self.whole.get(resource).map(|whole| now.saturating_duration_since(*whole)),
            errors: self
                .errors
                .iter()
                .filter(|((kind, _), _)| *kind == resource)
                .map(|((_, code), count)| (code.clone(), *count))
                .collect(),
        };
        kinds.into_iter().map(of).collect()
    }
}

/// Requests endpoints. An API server is asked only for those that are requested; files hold all of them anyway.
#[derive(Clone, Debug)]
pub(super) struct EndpointsRequest {
    wanted: Arc<Mutex<Sender<Arc<BTreeSet<String>>>>>,
    states: Receiver<ClusterState>,
}

impl EndpointsRequest {
    /// Puts the endpoints of Services of these names into `facts`, if they become known in time. From then on these are
    /// watched, and no others. Returns whether the facts are now the latest ones.
    pub(super) async fn fill_in(&self, names: BTreeSet<String>, facts: &mut ClusterFacts) -> bool {
        let mut states = self.states.clone();
        let updated = async {
            // One request at a time: another one would replace it.
            let wanted = self.wanted.lock().await;
            wanted.send_if_modified(|wanted| {
                let new = **wanted != names;
                if new {
                    *wanted = Arc::new(names.clone());
                }
                new
            });
            states.wait_for(|state| state.facts.holds_endpoints_of(&names)).await.map(|state| Arc::clone(&state.facts))
        };
        let Ok(Ok(known)) = timeout(ENDPOINTS_TIMEOUT, updated).await else { return false };
        facts.endpoint_slices = known.endpoint_slices.clone();
        facts.endpoints_of = known.endpoints_of.clone();
        *facts == *known
    }
}

/// Starts reading. The receiver has a state at once, in which nothing has been read yet.
pub(super) async fn start(
    source: ClusterSource,
    node: Option<String>,
    hostname: String,
) -> (Receiver<ClusterState>, EndpointsRequest) {
    let mut facts = cluster::read(&ClusterSource::None, node.as_deref(), &hostname).await;
    if source != ClusterSource::None {
        mark_not_yet(&mut facts);
    }
    let state = ClusterState { facts: Arc::new(facts), whole: BTreeMap::new(), errors: BTreeMap::new() };
    let (sender, receiver) = channel(state);
    let (wanted, endpoints_of) = channel(Arc::default());
    match source {
        ClusterSource::None => {}
        ClusterSource::Api(access) => drop(tokio::spawn(follow_watches(access, node, hostname, endpoints_of, sender))),
        ClusterSource::Files(inputs) => drop(tokio::spawn(follow_files(inputs, node, hostname, sender))),
    }
    let endpoints = EndpointsRequest { wanted: Arc::new(Mutex::new(wanted)), states: receiver.clone() };
    (receiver, endpoints)
}

/// Passes on what the watches see: facts when they change, ages and failures all the time.
async fn follow_watches(
    access: Access,
    node: Option<String>,
    hostname: String,
    endpoints_of: EndpointsOf,
    sender: Sender<ClusterState>,
) {
    let (_watch, mut states) = Watch::start(access, node, hostname, endpoints_of);
    while !sender.is_closed() {
        let watched = states.borrow_and_update().clone();
        sender.send_if_modified(|state| {
            for (resource, status) in &watched.statuses {
                state.whole.extend(status.confirmed.map(|at| (resource.name(), at.into_std())));
                let errors = status.errors.iter();
                state.errors.extend(errors.map(|(code, count)| ((resource.name(), code.clone()), *count)));
            }
            let differs = state.facts != watched.facts;
            state.facts = Arc::clone(&watched.facts);
            differs
        });
        if let Ok(Err(_)) = timeout(STANDINGS, states.changed()).await {
            error!("the watches ended, which is a bug; the state of the cluster is no longer updated");
            return;
        }
    }
}

async fn follow_files(inputs: Vec<Input>, node: Option<String>, hostname: String, sender: Sender<ClusterState>) {
    let mut known = None;
    let source = ClusterSource::Files(inputs.clone());
    while !sender.is_closed() {
        let stamps = Some(stamps(&inputs));
        if stamps != known {
            let facts = cluster::read(&source, node.as_deref(), &hostname).await;
            sender.send_if_modified(|state| {
                for (resource, gap) in kinds(&facts) {
                    match gap {
                        None => drop(state.whole.insert(resource, Instant::now())),
                        Some(gap) => *state.errors.entry((resource, word(gap.why))).or_default() += 1,
                    }
                }
                let differs = *state.facts != facts;
                if differs {
                    state.facts = Arc::new(facts);
                }
                differs
            });
            known = stamps;
        } else {
            // A file that has not changed counts as read again.
            sender.send_if_modified(|state| {
                state.whole.values_mut().for_each(|whole| *whole = Instant::now());
                false
            });
        }
        sleep(FILES).await;
    }
}

/// Inode, time of change in seconds and nanoseconds, length.
type Stamp = (u64, i64, i64, u64);

/// What distinguishes one state of the files from another.
fn stamps(inputs: &[Input]) -> Vec<Option<Stamp>> {
    let stamp = |input: &Input| match input {
        Input::Stdin => None,
        // What is not there now may be later; reading it says what is wrong.
        Input::File(path) => std::fs::metadata(path).map(|it| (it.ino(), it.mtime(), it.mtime_nsec(), it.len())).ok(),
    };
    inputs.iter().map(stamp).collect()
}

fn mark_not_yet(facts: &mut ClusterFacts) {
    fn gap<T>(reading: &mut Reading<T>, source: Source) {
        *reading = Reading::Gap(Gap::new(source, Why::NotYet, "the cluster has not answered yet"));
    }
    facts.configured = true;
    gap(&mut facts.services, Source::Services);
    gap(&mut facts.endpoint_slices, Source::EndpointSlices);
    gap(&mut facts.pods, Source::Pods);
    gap(&mut facts.nodes, Source::Nodes);
    gap(&mut facts.node_port_range, Source::NodePortRange);
    gap(&mut facts.proxy_config, Source::ConfigMaps);
}

fn kinds(facts: &ClusterFacts) -> [(&'static str, Option<&Gap>); 4] {
    [
        ("services", facts.services.gap()),
        ("endpointslices", facts.endpoint_slices.gap()),
        ("pods", facts.pods.gap()),
        ("nodes", facts.nodes.gap()),
    ]
}
