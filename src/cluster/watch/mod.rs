//! A live view of the cluster: what a LIST told, kept up to date by watches.
//!
//! ```text
//! watcher (Services) ───────┐
//! watcher (EndpointSlices) ─┤                      scopes: which Pods, which EndpointSlices
//! watcher (Pods) ───────────┼─ News ─> Index ─┬──────────────────────────────> watchers
//! Nodes and settings, ──────┤                 └─> View
//! read rarely               │
//! whose endpoints ──────────┘
//! somebody asks about
//! ```
//!
//! A resource is whole or absent. Once it was whole, no failure takes it away: it grows old, which [`Standing`] tells,
//! until its watcher has recovered by itself.
//!
//! Two are watched always. Services are what all is about. Pods of this node name the owner of every socket and tell
//! hostPorts; there is no node on which nothing asks for them. EndpointSlices change with every pod of the cluster, and
//! rules ask about those of few Services: only these are read, and watched as long as they are asked about.
//!
//! Whether an address is some other Node's can only be told with the addresses of all, which servicelb and externalIPs, an
//! IPVS proxy, and the arguments of k3s' servers all need. But a kubelet changes its Node every five minutes, though it
//! beats into a Lease: five thousand agents that watched five thousand Nodes would be sent 80,000 changes a second. So
//! Nodes are read now and then.

mod event;
mod index;
mod pace;
mod row;
mod scope;
mod watcher;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    join,
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use tracing::{info, warn};

pub use self::pace::Pace;
use self::{
    index::Index,
    row::Rows,
    scope::Scope,
    watcher::{Line, nodes, settings, watcher},
};
use super::{connect::Access, error::Error};
use crate::facts::{ClusterFacts, Gap, Source};

/// News that may wait to be taken in.
const QUEUE: usize = 256;

/// What is watched, each with a standing of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Services that a proxy serves.
    Services,
    /// EndpointSlices of Services about whose endpoints somebody asks.
    EndpointSlices,
    /// Pods of this node.
    Pods,
    /// Nodes: read again now and then, not watched.
    Nodes,
    /// ConfigMaps, platform objects, `/flagz`: read again now and then, not watched.
    Settings,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Self; 5] = [Self::Services, Self::EndpointSlices, Self::Pods, Self::Nodes, Self::Settings];

    /// Its name in metrics and logs, e.g. `endpointslices`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Settings => "settings",
        }
    }

    fn source(self) -> Source {
        match self {
            Self::Services => Source::Services,
            Self::EndpointSlices => Source::EndpointSlices,
            Self::Pods => Source::Pods,
            Self::Nodes => Source::Nodes,
            Self::Settings => Source::ConfigMaps,
        }
    }
}

/// The names of the Services about whose endpoints somebody asks. Whoever asks about all of them, asks for many.
pub type EndpointsOf = watch::Receiver<Arc<BTreeSet<String>>>;

/// How well one resource is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// When the server last confirmed what is known; `None` until it was read as a whole.
    pub confirmed: Option<Instant>,
    /// What has failed since then; `None` while all is well.
    pub trouble: Option<Gap>,
    /// Failures so far by code: a status like `410`, or `timed-out`, `unreachable`, `malformed`, `credentials`.
    pub errors: BTreeMap<String, u64>,
}

impl Standing {
    /// How old the knowledge is; `None` until there is any.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.confirmed.map(|confirmed| now.saturating_duration_since(confirmed))
    }
}

/// What is known of the cluster.
#[derive(Clone, Debug)]
pub struct View {
    /// The facts; each resource that was never read as a whole is a gap.
    pub facts: Arc<ClusterFacts>,
    /// How well each resource is known.
    pub standings: BTreeMap<Resource, Standing>,
}

/// The watches; they end when this is dropped.
#[derive(Debug)]
pub struct Watch(JoinHandle<()>);

impl Watch {
    /// Watches the API server. `node` is this node's name where a person or the downward API said it; `hostname` finds
    /// it among the Nodes otherwise.
    ///
    /// Endpoints are read of the Services whose names `endpoints_of` holds; facts say of which they are known.
    ///
    /// The receiver is told of a change when the facts change. Standings change without a word: borrow them when they
    /// are needed. The channel closes only if the watches end, which is a bug.
    pub fn start(
        access: Access,
        node: Option<String>,
        hostname: String,
        endpoints_of: EndpointsOf,
    ) -> (Self, watch::Receiver<Arc<View>>) {
        Self::paced(access, node, hostname, endpoints_of, Pace::default())
    }

    /// [`Watch::start`] at a pace of one's own.
    pub fn paced(
        access: Access,
        node: Option<String>,
        hostname: String,
        mut endpoints_of: EndpointsOf,
        pace: Pace,
    ) -> (Self, watch::Receiver<Arc<View>>) {
        let index = Index::new(node, hostname, Arc::clone(&endpoints_of.borrow_and_update()));
        let (views, receiver) =
            watch::channel(Arc::new(View { facts: Arc::new(index.facts()), standings: index.standings() }));
        (Self(tokio::spawn(run(access, pace, index, endpoints_of, views))), receiver)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One thing that a watcher tells.
#[derive(Debug)]
enum News {
    /// The address of the server.
    Reached(String),
    /// Everything within a scope.
    Replaced(Scope, Rows),
    /// One object as it is now.
    Applied(Rows),
    /// An object that is no more, by its title.
    Deleted(String),
    /// The names of the Services about whose endpoints somebody asks.
    Wanted(Arc<BTreeSet<String>>),
    /// Nothing has changed.
    Confirmed,
    /// It could not be read.
    Failed(Error),
}

/// All of it is one task: if a part panics, everything ends, and whoever holds a receiver learns of it.
async fn run(access: Access, pace: Pace, index: Index, mut endpoints_of: EndpointsOf, views: watch::Sender<Arc<View>>) {
    let (news, incoming) = mpsc::channel(QUEUE);
    let (pods, pods_scope) = watch::channel(None);
    let (slices, slices_scope) = watch::channel(index.wanted(Resource::EndpointSlices));
    let (_services, services_scope) = watch::channel(Some(Scope::Served));
    let own = index.said().map(str::to_owned);
    let line = |resource| Line { resource, access: access.clone(), pace: pace.clone(), news: news.clone() };
    let scopes = BTreeMap::from([(Resource::Pods, pods), (Resource::EndpointSlices, slices)]);
    join!(
        watcher(line(Resource::Services), ("/api/v1/services", "Service"), services_scope),
        watcher(
            line(Resource::EndpointSlices),
            ("/apis/discovery.k8s.io/v1/endpointslices", "EndpointSlice"),
            slices_scope
        ),
        watcher(line(Resource::Pods), ("/api/v1/pods", "Pod"), pods_scope),
        nodes(line(Resource::Nodes), own.as_deref()),
        settings(line(Resource::Settings)),
        async {
            while endpoints_of.changed().await.is_ok() {
                let names = Arc::clone(&endpoints_of.borrow_and_update());
                news.send((Resource::EndpointSlices, News::Wanted(names))).await.expect("the publisher lives");
            }
        },
        publish(index, incoming, &scopes, &views, pace.gather),
    );
}

/// Takes news in, and publishes what becomes of it.
async fn publish(
    mut index: Index,
    mut incoming: mpsc::Receiver<(Resource, News)>,
    scopes: &BTreeMap<Resource, watch::Sender<Option<Scope>>>,
    views: &watch::Sender<Arc<View>>,
    gather: Duration,
) {
    while let Some((resource, news)) = incoming.recv().await {
        let began = Instant::now();
        let mut changed = take(&mut index, resource, news);
        if changed {
            offer(&index, scopes);
        }
        // Changes come in crowds. The endpoints of a new Service are worth a longer wait than the next crowd.
        loop {
            let end = began + if index.is_settled() { gather } else { 4 * gather };
            let Ok(Some((resource, news))) = timeout_at(end, incoming.recv()).await else { break };
            if take(&mut index, resource, news) {
                changed = true;
                offer(&index, scopes);
            }
        }
        let fresh = changed.then(|| Arc::new(index.facts()));
        views.send_if_modified(|view| {
            let fresh = fresh.filter(|fresh| *fresh != view.facts);
            let differs = fresh.is_some();
            let facts = fresh.unwrap_or_else(|| Arc::clone(&view.facts));
            *view = Arc::new(View { facts, standings: index.standings() });
            differs
        });
    }
}

/// Takes one piece of news in; trouble is logged when it begins and when it ends. Says whether facts may have changed.
fn take(index: &mut Index, resource: Resource, news: News) -> bool {
    let before = index.trouble(resource).map(|gap| gap.why);
    let changed = index.take(resource, news, Instant::now());
    match (before, index.trouble(resource)) {
        (was, Some(gap)) if was != Some(gap.why) => {
            warn!(resource = resource.name(), detail = %gap.detail, "cannot read the cluster; what is known is kept");
        }
        (Some(_), None) => info!(resource = resource.name(), "the cluster can be read again"),
        _ => {}
    }
    changed
}

/// Tells the watchers whose scope follows from what is known. A scope that serves for the new one stays as it is.
fn offer(index: &Index, scopes: &BTreeMap<Resource, watch::Sender<Option<Scope>>>) {
    for (resource, sender) in scopes {
        let Some(wanted) = index.wanted(*resource) else { continue };
        sender.send_if_modified(|scope| {
            let new = !scope.as_ref().is_some_and(|scope| scope.serves(&wanted));
            if new {
                *scope = Some(wanted);
            }
            new
        });
    }
}
