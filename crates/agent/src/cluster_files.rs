//! Files about the cluster. The agent reads them again when they change.

use std::{
    collections::BTreeSet,
    os::unix::fs::MetadataExt as _,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::watch::Sender, time::sleep};
use tracing::{info, warn};

use super::cluster_state::LastReading;
use crate::metrics::word;
use portreeve_cluster::{self as cluster, ClusterSource, Input, Resource};
use portreeve_facts::{ClusterFacts, Gap, Reading, Source, Why};

/// The pause between two checks for a change.
const FILES: Duration = Duration::from_secs(1);

/// Reads files as long as a receiver is left.
pub(super) async fn follow_files(
    inputs: Vec<Input>,
    node: Option<String>,
    hostname: String,
    sender: Sender<LastReading>,
) {
    let mut known = None;
    let mut was_broken = false;
    // The kinds of objects that the last reading had whole.
    let mut whole = BTreeSet::new();
    let source = ClusterSource::Files(inputs.clone());
    while !sender.is_closed() {
        let stamps = Some(stamps(&inputs));
        if stamps != known {
            let mut facts = cluster::read(&source, node.as_deref(), &hostname).await;
            let broke = broken(&facts).cloned();
            if let Some(gap) = &broke {
                warn!(
                    detail = gap.detail,
                    "the files of the cluster cannot be read completely; findings do not change"
                );
                // A part is used only if no facts are known yet.
                if known.is_some() {
                    mark_unread(&mut facts, gap.why, &gap.detail);
                    facts.node_name = facts.node_name.or_else(|| sender.borrow().facts.node_name.clone());
                }
            } else if was_broken {
                info!("the files of the cluster can be read completely again");
            }
            was_broken = broke.is_some();
            whole = kinds(&facts).into_iter().filter(|(_, gap)| gap.is_none()).map(|(kind, _)| kind).collect();
            sender.send_if_modified(|last| take(last, facts));
            known = stamps;
        }
        // The objects of an unchanged file are treated as read again, but not objects that could not be read.
        sender.send_if_modified(|last| {
            last.whole.extend(whole.iter().map(|kind| (*kind, Instant::now())));
            false
        });
        sleep(FILES).await;
    }
}

/// Stores the new facts. True if they differ from the last ones.
fn take(last: &mut LastReading, facts: ClusterFacts) -> bool {
    for (kind, gap) in kinds(&facts) {
        if let Some(gap) = gap {
            *last.errors.entry((kind, word(gap.why))).or_default() += 1;
        }
    }
    let differs = *last.facts != facts;
    if differs {
        last.facts = Arc::new(facts);
    }
    differs
}

/// Why a file was not read, or not to its end. A kind of object that is missing in a whole file is no error.
fn broken(facts: &ClusterFacts) -> Option<&Gap> {
    facts.endpoint_slices.gap().filter(|gap| gap.why != Why::NotRequested)
}

/// Marks all facts as not read yet.
pub(super) fn mark_not_yet(facts: &mut ClusterFacts) {
    facts.configured = true;
    mark_unread(facts, Why::NotYet, "the cluster has not answered yet");
}

/// Marks all facts as unknown for this reason, so that findings about them stay open.
fn mark_unread(facts: &mut ClusterFacts, why: Why, detail: &str) {
    fn gap<T>(reading: &mut Reading<T>, source: Source, (why, detail): (Why, &str)) {
        *reading = Reading::Gap(Gap::new(source, why, detail));
    }
    let reason = (why, detail);
    gap(&mut facts.services, Source::Services, reason);
    gap(&mut facts.endpoint_slices, Source::EndpointSlices, reason);
    gap(&mut facts.pods, Source::Pods, reason);
    gap(&mut facts.waiting_pods, Source::WaitingPods, reason);
    gap(&mut facts.nodes, Source::Nodes, reason);
    gap(&mut facts.node_port_range, Source::NodePortRange, reason);
    gap(&mut facts.proxy_config, Source::ConfigMaps, reason);
}

/// Inode, time of change in seconds and nanoseconds, length.
type Stamp = (u64, i64, i64, u64);

/// One stamp for each file. The stamps differ when a file has changed.
fn stamps(inputs: &[Input]) -> Vec<Option<Stamp>> {
    let stamp = |input: &Input| match input {
        Input::Stdin => None,
        // A missing file may come later. Reading it reports the error.
        Input::File(path) => std::fs::metadata(path).map(|it| (it.ino(), it.mtime(), it.mtime_nsec(), it.len())).ok(),
    };
    inputs.iter().map(stamp).collect()
}

fn kinds(facts: &ClusterFacts) -> [(Resource, Option<&Gap>); 4] {
    [
        (Resource::Services, facts.services.gap()),
        (Resource::EndpointSlices, facts.endpoint_slices.gap()),
        (Resource::Pods, facts.pods.gap()),
        (Resource::Nodes, facts.nodes.gap()),
    ]
}

#[cfg(test)]
mod tests {
    use std::{fs, time::SystemTime};

    use tokio::{sync::watch::channel, time};

    use super::*;

    const WEB: &str = r#"{"kind":"List","items":[{"kind":"Service","metadata":{"name":"web"},"spec":{}}]}"#;

    /// A file that the agent follows.
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

        async fn becomes(&mut self, text: &str) {
            self.seconds += 1;
            fs::write(&self.path, text).expect("a file");
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(self.seconds);
            fs::File::options().append(true).open(&self.path).and_then(|it| it.set_modified(time)).expect("a time");
            self.last.changed().await.expect("the follower lives");
        }

        fn services(&self) -> Result<Vec<String>, Why> {
            let facts = Arc::clone(&self.last.borrow().facts);
            let services = facts.services.get().map_err(|gap| gap.why)?;
            Ok(services.iter().map(|service| service.name.clone()).collect())
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
                assert!(facts.rejected.len() == 1 && facts.nodes.gap().is_some() && facts.pods.gap().is_some());
                assert_eq!(facts.node_name.as_deref(), Some("n1"));
            }
        }
        let errors = || file.last.borrow().errors[&(Resource::Services, "malformed".to_owned())];
        let before = errors();
        time::sleep(2 * FILES).await;
        assert_eq!(errors(), before, "an unchanged file is not read again");
    }

    #[tokio::test]
    async fn the_age_of_a_file_is_that_of_its_last_good_reading() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("services.json");
        let write = |text: &str, seconds: u64| {
            fs::write(&path, text).expect("a file");
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            fs::File::options().append(true).open(&path).and_then(|it| it.set_modified(time)).expect("a time");
        };
        write(WEB, 1);
        let source = ClusterSource::None;
        let (sender, mut last) = channel(LastReading::of(cluster::read(&source, Some("n1"), "").await));
        let follower = tokio::spawn(follow_files(vec![path.clone().into()], None, "n1".to_owned(), sender));
        last.changed().await.expect("the follower lives");
        time::sleep(FILES / 4).await;
        let good = last.borrow().whole[&Resource::Services];
        write("{", 2);
        last.changed().await.expect("the follower lives");
        time::sleep(2 * FILES).await;
        let LastReading { whole, errors, .. } = last.borrow().clone();
        assert!(whole[&Resource::Services] < good + FILES, "a broken file is never treated as read");
        assert_eq!(errors[&(Resource::Services, "malformed".to_owned())], 1);
        write(WEB, 3);
        last.wait_for(|last| last.facts.services.seen().is_some()).await.expect("the follower lives");
        time::sleep(FILES / 4).await;
        assert!(last.borrow().whole[&Resource::Services] > good + FILES);
        follower.abort();
    }
}
