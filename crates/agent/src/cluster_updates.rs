//! The tasks that keep the state of the cluster up to date: watches on the API server, or files that are read again
//! when they change.

use std::{collections::BTreeSet, mem, os::unix::fs::MetadataExt as _, sync::Arc, time::Duration};

use tokio::{
    sync::watch::{Sender, channel},
    time::{sleep, timeout},
};
use tracing::{info, warn};

use super::{
    cluster_state::{ClusterState, LastReading},
    tasks::Tasks,
};
use portreeve_cluster::{self as cluster, ClusterSource, Input, Resource, Watch, WatchTiming};
use portreeve_facts::{ClusterFacts, Gap, Source, Why};

/// The time between two checks for changed files.
const FILES: Duration = Duration::from_secs(1);
const ENDPOINTS_TIMEOUT: Duration = Duration::from_secs(1);

/// Requests endpoints for the loop of an agent, or for the bind hook of a guard. A new request replaces the last
/// request, so a process has only one `EndpointsRequest`. From the API server, the process reads only the requested
/// endpoints. Files contain all endpoints.
#[derive(Debug)]
pub(super) struct EndpointsRequest {
    wanted: Sender<Arc<BTreeSet<String>>>,
    state: ClusterState,
}

impl EndpointsRequest {
    /// Requests the endpoints of the Services with these names, and puts them into `facts` if they arrive in time. From
    /// now on, the agent watches only these endpoints. Returns whether `facts` are now the latest facts.
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
        let is_of_slice = |gap: &&Gap| gap.source == Source::EndpointSlices;
        let rejected: Vec<Gap> = known.rejected.iter().filter(is_of_slice).cloned().collect();
        if !facts.rejected.iter().filter(is_of_slice).eq(&rejected) {
            facts.rejected.retain(|gap| gap.source != Source::EndpointSlices);
            facts.rejected.extend(rejected);
        }
        *facts == *known
    }
}

/// Starts the tasks, and does not wait until they have read the cluster. From an API server, only `resources` are read.
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
            let timing = WatchTiming::default();
            let (mut watch, view) = Watch::start(access, resources, node, hostname, endpoints_of, timing);
            tasks.spawn_with_reason("watching the cluster", async move { watch.ended().await });
            ClusterState::Watched(view)
        }
        ClusterSource::Files(inputs) => {
            let facts = cluster::unread("none", node.clone(), Why::NotYet, "the cluster has not answered yet");
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

/// Reads changed files again. Ends when the last receiver is dropped.
async fn follow_files(inputs: Vec<Input>, node: Option<String>, hostname: String, sender: Sender<LastReading>) {
    let source = ClusterSource::Files(inputs.clone());
    let (mut known, mut is_broken, mut was_whole) = (None, false, false);
    while !sender.is_closed() {
        let stamps = Some(stamps(&inputs));
        if stamps != known {
            let mut facts = cluster::read(&source, node.as_deref(), &hostname).await;
            // If a complete file has no objects of a kind, the file is still valid.
            let torn = facts.endpoint_slices.gap().filter(|gap| gap.why != Why::NotRequested).cloned();
            // A list of one namespace lacks the Services of other namespaces, and must not replace a list of all
            // namespaces.
            let lacking = facts.lacks_services();
            let is_whole = torn.is_none() && lacking.is_none() && facts.services.gap().is_none();
            let is_torn = torn.is_some();
            if let Some(gap) = torn.or(lacking.filter(|_| was_whole)) {
                warn!(
                    detail = gap.detail,
                    "the files of the cluster are not complete, so findings and reserved ports do not change. Write \
                     complete files, or restart Portreeve to use these files"
                );
                is_broken = true;
                // Incomplete files are used only before the first complete facts.
                if known.is_some() {
                    let name = facts.node_name.or_else(|| sender.borrow().facts.node_name.clone());
                    let rest = cluster::unread(&facts.origin, name, gap.why, &gap.detail);
                    // The Nodes of a list of one namespace are complete, because Nodes have no namespace.
                    let nodes = if is_torn { rest.nodes } else { facts.nodes };
                    facts = ClusterFacts { rejected: facts.rejected, nodes, ..rest };
                }
            } else if mem::take(&mut is_broken) {
                info!("the files of the cluster are complete again");
            }
            sender.send_if_modified(|last| last.take(facts));
            (known, was_whole) = (stamps, was_whole || is_whole);
        }
        sender.send_if_modified(|last| {
            last.confirm();
            false
        });
        sleep(FILES).await;
    }
}

/// The inode, the time of the last change in seconds and nanoseconds, and the length.
type Stamp = (u64, i64, i64, u64);

fn stamps(inputs: &[Input]) -> Vec<Option<Stamp>> {
    let stamp = |input: &Input| match input {
        Input::Stdin => None,
        // A missing file may appear later. The reader of the file reports the error.
        Input::File(path) => std::fs::metadata(path).map(|it| (it.ino(), it.mtime(), it.mtime_nsec(), it.len())).ok(),
    };
    inputs.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, time::SystemTime};

    use tokio::time::Instant;

    use super::*;
    use portreeve_cluster::{Resource, ResourceStatus};
    use portreeve_facts::Snapshot;

    const WEB: &str = r#"{"kind":"List","items":[{"kind":"Service","metadata":{"name":"web"},"spec":{}}]}"#;

    fn service(namespace: &str, name: &str) -> String {
        format!(r#"{{"kind":"Service","metadata":{{"namespace":"{namespace}","name":"{name}"}},"spec":{{}}}}"#)
    }

    struct Followed {
        _directory: tempfile::TempDir,
        path: std::path::PathBuf,
        last: tokio::sync::watch::Receiver<LastReading>,
        follower: tokio::task::JoinHandle<()>,
        seconds: u64,
    }

    impl Followed {
        async fn file(text: &str) -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let path = directory.path().join("services.json");
            let (sender, last) = channel(LastReading::of(cluster::read(&ClusterSource::None, Some("n1"), "").await));
            fs::write(&path, text).expect("a file");
            let follower = tokio::spawn(follow_files(vec![path.clone().into()], None, "n1".to_owned(), sender));
            let mut followed = Self { _directory: directory, path, last, follower, seconds: 1 };
            followed.last.changed().await.expect("the follower lives");
            followed
        }

        /// Writes this text into the file. Returns whether the state changes soon after the write.
        async fn becomes(&mut self, text: &str) -> bool {
            self.seconds += 1;
            fs::write(&self.path, text).expect("a file");
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(self.seconds);
            fs::File::options().append(true).open(&self.path).and_then(|it| it.set_modified(time)).expect("a time");
            timeout(2 * FILES, self.last.changed()).await.is_ok_and(|alive| alive.is_ok())
        }

        fn services(&self) -> Result<Vec<String>, Why> {
            let facts = Arc::clone(&self.last.borrow().facts);
            let services = facts.services.get().map_err(|gap| gap.why)?;
            Ok(services.iter().map(|service| service.name.clone()).collect())
        }

        /// The time at which the Services were last read completely, and the number of readings with malformed
        /// Services.
        fn of_services(&self) -> (Instant, u64) {
            let ResourceStatus { confirmed, errors, .. } = self.last.borrow().statuses[&Resource::Services].clone();
            (confirmed.expect("a good reading"), errors.get("malformed").copied().unwrap_or_default())
        }
    }

    impl Drop for Followed {
        fn drop(&mut self) {
            self.follower.abort();
        }
    }

    #[tokio::test]
    async fn a_file_that_breaks_halfway_leaves_what_was_in_its_other_half_unknown() {
        let service =
            |name: &str| format!(r#"{{"kind":"Service","metadata":{{"name":"{name}"}},"spec":{{"clusterIP":""}}}}"#);
        let (a, b) = (service("a"), service("b"));
        let mut file = Followed::file(&format!("[{a},{{")).await;
        assert_eq!(file.services(), Ok(vec!["a".to_owned()]), "a part is better than nothing");
        for half in [format!("[{b},{{"), format!("[{a},{b},{{")] {
            file.becomes(&format!("[{a},{b},{{\"kind\":\"Node\",\"metadata\":{{\"name\":\"n1\"}}}}]")).await;
            assert_eq!(file.services(), Ok(vec!["a".to_owned(), "b".to_owned()]));
            for further in ["", " "] {
                file.becomes(&format!("{half}{further}")).await;
                assert_eq!(file.services(), Err(Why::Malformed));
                let facts = Arc::clone(&file.last.borrow().facts);
                assert!(!facts.rejected.is_empty() && facts.nodes.gap().is_some() && facts.pods.gap().is_some());
                assert_eq!(facts.node_name.as_deref(), Some("n1"));
            }
        }
        let (_, before) = file.of_services();
        sleep(2 * FILES).await;
        assert_eq!(file.of_services().1, before, "an unchanged file is not read again");
    }

    #[tokio::test]
    async fn a_file_of_one_namespace_after_a_file_of_all_namespaces_leaves_the_others_unknown() {
        let (api, office) = (service("default", "kubernetes"), service("office", "mail"));
        let mut file = Followed::file(&format!("[{office}]")).await;
        assert_eq!(file.services(), Ok(vec!["mail".to_owned()]), "a part is better than nothing");
        for _ in 0..2 {
            file.becomes(&format!("[{api},{office},{}]", service("shop", "web"))).await;
            assert_eq!(file.services().map(|all| all.len()), Ok(3));
            file.becomes(&format!("[{office},{{\"kind\":\"Node\",\"metadata\":{{\"name\":\"n1\"}}}}]")).await;
            assert_eq!(file.services(), Err(Why::Malformed));
            assert!(file.last.borrow().facts.nodes.gap().is_none(), "Nodes have no namespace");
        }
        file.becomes(&format!("[{api}]")).await;
        assert_eq!(file.services(), Ok(vec!["kubernetes".to_owned()]), "all other Services were deleted");
        let mut file = Followed::file(&format!("[{api},{office},{{")).await;
        file.becomes(&format!("[{office}]")).await;
        assert_eq!(file.services(), Ok(vec!["mail".to_owned()]), "a torn file shows no whole cluster");
    }

    #[tokio::test]
    async fn a_file_of_one_namespace_after_a_part_of_a_file_is_used() {
        let (api, office) = (service("default", "kubernetes"), service("office", "mail"));
        let mut file = Followed::file(&format!("[{api},{{")).await;
        assert_eq!(file.services(), Ok(vec!["kubernetes".to_owned()]));
        file.becomes(&format!("[{office}]")).await;
        assert_eq!(file.services(), Ok(vec!["mail".to_owned()]), "no file was complete before");
    }

    #[tokio::test]
    async fn a_slice_that_was_not_understood_is_named_with_the_endpoints_that_were_read() {
        let mut facts = Snapshot::healthy().cluster;
        let known = Snapshot::healthy().rejects(Source::EndpointSlices).cluster;
        let (wanted, last) = (channel(Arc::default()).0, channel(LastReading::of(known.clone())).1);
        let request = EndpointsRequest { wanted, state: ClusterState::Read(last) };
        assert!(request.fill_in(BTreeSet::new(), &mut facts).await);
        assert_eq!(facts, known);
    }

    #[tokio::test]
    async fn a_file_that_is_written_again_with_the_same_objects_is_no_change() {
        let mut file = Followed::file(WEB).await;
        assert!(!file.becomes(&format!("{WEB} ")).await);
        assert!(file.becomes(&WEB.replace("web", "next")).await);
    }

    #[tokio::test]
    async fn the_age_of_a_file_is_that_of_its_last_good_reading() {
        let mut file = Followed::file(WEB).await;
        sleep(FILES / 4).await;
        let (good, _) = file.of_services();
        file.becomes("{").await;
        sleep(2 * FILES).await;
        let (last, errors) = file.of_services();
        assert!(last < good + FILES, "a broken file is never treated as read");
        assert_eq!(errors, 1);
        file.becomes(WEB).await;
        sleep(FILES / 4).await;
        assert_eq!(file.services(), Ok(vec!["web".to_owned()]));
        assert!(file.of_services().0 > good + FILES);
    }
}
