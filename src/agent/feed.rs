//! What the cluster says: watched, or read again from files that changed, beside the loop; handed on when it is another.

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
/// How often ages and failures of watches are looked at; these change without a word.
const STANDINGS: Duration = Duration::from_secs(1);

/// How long it may take to learn of endpoints that somebody asks about.
const MOMENT: Duration = Duration::from_secs(1);

/// The cluster as it was last read.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) facts: Arc<ClusterFacts>,
    /// When each kind of object was last seen whole.
    whole: BTreeMap<&'static str, Instant>,
    /// Failures by kind of object and reason.
    errors: BTreeMap<(&'static str, String), u64>,
}

impl View {
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

/// Asks about endpoints, of which an API server is asked only then; whoever else tells a cluster has told them all.
#[derive(Clone, Debug)]
pub(super) struct Endpoints {
    wanted: Arc<Mutex<Sender<Arc<BTreeSet<String>>>>>,
    views: Receiver<View>,
}

impl Endpoints {
    /// Puts the endpoints of Services of these names into `facts`, if they are known within a moment. From then on these
    /// are watched, and no others. Says whether the facts are what is known now.
    pub(super) async fn tell(&self, names: BTreeSet<String>, facts: &mut ClusterFacts) -> bool {
        let mut views = self.views.clone();
        let told = async {
            // One question at a time: another one would take this one's place.
            let wanted = self.wanted.lock().await;
            wanted.send_if_modified(|wanted| {
                let new = **wanted != names;
                if new {
                    *wanted = Arc::new(names.clone());
                }
                new
            });
            views.wait_for(|view| view.facts.tells_endpoints_of(&names)).await.map(|view| Arc::clone(&view.facts))
        };
        let Ok(Ok(known)) = timeout(MOMENT, told).await else { return false };
        facts.endpoint_slices = known.endpoint_slices.clone();
        facts.endpoints_of = known.endpoints_of.clone();
        *facts == *known
    }
}

/// Starts reading; the receiver has a view at once, in which nothing has been looked for yet.
pub(super) async fn start(
    source: ClusterSource,
    node: Option<String>,
    hostname: String,
) -> (Receiver<View>, Endpoints) {
    let mut facts = cluster::read(&ClusterSource::None, node.as_deref(), &hostname).await;
    if source != ClusterSource::None {
        not_yet(&mut facts);
    }
    let view = View { facts: Arc::new(facts), whole: BTreeMap::new(), errors: BTreeMap::new() };
    let (sender, receiver) = channel(view);
    let (wanted, endpoints_of) = channel(Arc::default());
    match source {
        ClusterSource::None => {}
        ClusterSource::Api(access) => drop(tokio::spawn(follow(access, node, hostname, endpoints_of, sender))),
        ClusterSource::Files(inputs) => drop(tokio::spawn(read(inputs, node, hostname, sender))),
    }
    let endpoints = Endpoints { wanted: Arc::new(Mutex::new(wanted)), views: receiver.clone() };
    (receiver, endpoints)
}

/// Hands on what the watches see: facts when they change, ages and failures all the time.
async fn follow(
    access: Access,
    node: Option<String>,
    hostname: String,
    endpoints_of: EndpointsOf,
    sender: Sender<View>,
) {
    let (_watch, mut views) = Watch::start(access, node, hostname, endpoints_of);
    while !sender.is_closed() {
        let watched = views.borrow_and_update().clone();
        sender.send_if_modified(|view| {
            for (resource, status) in &watched.statuses {
                view.whole.extend(status.confirmed.map(|at| (resource.name(), at.into_std())));
                let errors = status.errors.iter();
                view.errors.extend(errors.map(|(code, count)| ((resource.name(), code.clone()), *count)));
            }
            let differs = view.facts != watched.facts;
            view.facts = Arc::clone(&watched.facts);
            differs
        });
        if let Ok(Err(_)) = timeout(STANDINGS, views.changed()).await {
            error!("the watches ended, which is a bug; the last view of the cluster grows old");
            return;
        }
    }
}

async fn read(inputs: Vec<Input>, node: Option<String>, hostname: String, sender: Sender<View>) {
    let mut known = None;
    let source = ClusterSource::Files(inputs.clone());
    while !sender.is_closed() {
        let stamps = Some(stamps(&inputs));
        if stamps != known {
            let facts = cluster::read(&source, node.as_deref(), &hostname).await;
            sender.send_if_modified(|view| {
                for (resource, gap) in kinds(&facts) {
                    match gap {
                        None => drop(view.whole.insert(resource, Instant::now())),
                        Some(gap) => *view.errors.entry((resource, word(gap.why))).or_default() += 1,
                    }
                }
                let differs = *view.facts != facts;
                if differs {
                    view.facts = Arc::new(facts);
                }
                differs
            });
            known = stamps;
        } else {
            // What has not changed is as good as read again.
            sender.send_if_modified(|view| {
                view.whole.values_mut().for_each(|whole| *whole = Instant::now());
                false
            });
        }
        sleep(FILES).await;
    }
}

/// Inode, time of change in seconds and nanoseconds, length.
type Stamp = (u64, i64, i64, u64);

/// What tells one state of the files from another.
fn stamps(inputs: &[Input]) -> Vec<Option<Stamp>> {
    let stamp = |input: &Input| match input {
        Input::Stdin => None,
        // What is not there now may be later; reading it says what is wrong.
        Input::File(path) => std::fs::metadata(path).map(|it| (it.ino(), it.mtime(), it.mtime_nsec(), it.len())).ok(),
    };
    inputs.iter().map(stamp).collect()
}

fn not_yet(facts: &mut ClusterFacts) {
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
