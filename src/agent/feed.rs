//! What the cluster says: read over and over beside the loop, and handed on when it is another.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt as _,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::watch::{Receiver, Sender, channel},
    time::sleep,
};

use crate::{
    cluster::{self, ClusterSource, Input},
    facts::{ClusterFacts, Gap, Reading, Source, Why},
    sinks::metrics::ViewAge,
};

/// How often files are looked at for a change.
const FILES: Duration = Duration::from_secs(1);
/// How often an API server is read.
const API: Duration = Duration::from_secs(30);

/// The cluster as it was last read.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) facts: Arc<ClusterFacts>,
    /// What reading it took.
    pub(super) took: Duration,
    /// When each kind of object was last seen whole.
    whole: BTreeMap<&'static str, Instant>,
    /// Failures by kind of object and reason.
    errors: BTreeMap<(&'static str, Why), u64>,
}

impl View {
    /// Age and failures of each kind of object.
    pub(super) fn ages(&self, now: Instant) -> Vec<ViewAge> {
        let kinds = kinds(&self.facts).map(|(resource, _)| resource);
        let of = |resource| ViewAge {
            resource,
            age: self.whole.get(resource).map(|whole| now.saturating_duration_since(*whole)),
            errors: self.errors.iter().filter(|((kind, _), _)| *kind == resource).map(code).collect(),
        };
        kinds.into_iter().map(of).collect()
    }
}

/// Starts reading; the receiver has a view at once, in which nothing has been looked for yet.
pub(super) async fn start(source: ClusterSource, node: Option<String>, hostname: String) -> Receiver<View> {
    let mut facts = cluster::read(&ClusterSource::None, node.as_deref(), &hostname).await;
    if source != ClusterSource::None {
        not_yet(&mut facts);
    }
    let view = View { facts: Arc::new(facts), took: Duration::ZERO, whole: BTreeMap::new(), errors: BTreeMap::new() };
    let (sender, receiver) = channel(view);
    if source != ClusterSource::None {
        tokio::spawn(read(source, node, hostname, sender));
    }
    receiver
}

async fn read(source: ClusterSource, node: Option<String>, hostname: String, sender: Sender<View>) {
    let mut known = None;
    while !sender.is_closed() {
        let stamps = stamps(&source);
        let pause = if stamps.is_some() { FILES } else { API };
        if stamps.is_none() || stamps != known {
            let begun = Instant::now();
            let facts = cluster::read(&source, node.as_deref(), &hostname).await;
            let took = begun.elapsed();
            sender.send_if_modified(|view| {
                for (resource, gap) in kinds(&facts) {
                    match gap {
                        None => drop(view.whole.insert(resource, Instant::now())),
                        Some(gap) => *view.errors.entry((resource, gap.why)).or_default() += 1,
                    }
                }
                view.took = took;
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
        sleep(pause).await;
    }
}

/// Inode, time of change in seconds and nanoseconds, length.
type Stamp = (u64, i64, i64, u64);

/// What tells one state of the files from another; nothing where there is no file to ask.
fn stamps(source: &ClusterSource) -> Option<Vec<Option<Stamp>>> {
    let ClusterSource::Files(inputs) = source else { return None };
    let stamp = |input: &Input| match input {
        Input::Stdin => None,
        // What is not there now may be later; reading it says what is wrong.
        Input::File(path) => std::fs::metadata(path).map(|it| (it.ino(), it.mtime(), it.mtime_nsec(), it.len())).ok(),
    };
    Some(inputs.iter().map(stamp).collect())
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

/// The reason as a word, and how often.
fn code(((_, why), count): (&(&'static str, Why), &u64)) -> (String, u64) {
    let word = serde_json::to_value(why).ok().and_then(|word| word.as_str().map(str::to_owned));
    (word.unwrap_or_else(|| "other".to_owned()), *count)
}
