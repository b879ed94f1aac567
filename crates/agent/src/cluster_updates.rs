//! Starts the tasks that keep the state of the cluster up to date, and requests endpoints from them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{
    sync::watch::{Sender, channel},
    time::timeout,
};

use super::{
    cluster_files::{follow_files, mark_not_yet},
    cluster_state::{ClusterState, LastReading},
    tasks::Tasks,
};
use portreeve_cluster::{self as cluster, ClusterSource, Resource, Watch};
use portreeve_facts::ClusterFacts;

/// How long to wait for endpoints that were requested.
const ENDPOINTS_TIMEOUT: Duration = Duration::from_secs(1);

/// Requests endpoints for the loop. There is one for each agent, because a new request replaces the last one. The API server gets
/// only requests for these endpoints. Files have all endpoints anyway.
#[derive(Debug)]
pub(super) struct EndpointsRequest {
    wanted: Sender<Arc<BTreeSet<String>>>,
    state: ClusterState,
}

impl EndpointsRequest {
    /// Puts the endpoints of the Services of these names into `facts`, if they become known in time. From then on only these
    /// are watched. Returns whether the facts are now the latest.
    pub(super) async fn fill_in(&self, names: BTreeSet<String>, facts: &mut ClusterFacts) -> bool {
        let mut state = self.state.clone();
        let updated = async {
            self.wanted.send_if_modified(|wanted| {
                let new = **wanted != names;
                if new {
                    *wanted = Arc::new(names.clone());
                }
                new
            });
            state.endpoints_of(&names).await
        };
        let Ok(known) = timeout(ENDPOINTS_TIMEOUT, updated).await else { return false };
        facts.endpoint_slices = known.endpoint_slices.clone();
        facts.endpoints_of = known.endpoints_of.clone();
        *facts == *known
    }
}

/// Starts reading in `tasks`; from an API server only these resources. Returns at once, with a state in which nothing has been read yet.
pub(super) async fn start(
    source: ClusterSource,
    resources: &[Resource],
    node: Option<String>,
    hostname: String,
    tasks: &mut Tasks,
) -> (ClusterState, EndpointsRequest) {
    let (wanted, endpoints_of) = channel(Arc::default());
    let state = match source {
        ClusterSource::Api(access) => {
            let (mut watch, view) = Watch::start(access, resources, node, hostname, endpoints_of);
            tasks.spawn_with_reason("watching the cluster", async move { watch.ended().await });
            ClusterState::Watched(view)
        }
        ClusterSource::Files(inputs) => {
            let mut facts = cluster::read(&ClusterSource::None, node.as_deref(), &hostname).await;
            mark_not_yet(&mut facts);
            let (sender, last) = channel(LastReading::of(facts));
            tasks.spawn("reading the files of the cluster", follow_files(inputs, node, hostname, sender));
            ClusterState::Read(last)
        }
        ClusterSource::None => {
            let facts = cluster::read(&ClusterSource::None, node.as_deref(), &hostname).await;
            ClusterState::Read(channel(LastReading::of(facts)).1)
        }
    };
    let endpoints = EndpointsRequest { wanted, state: state.clone() };
    (state, endpoints)
}
