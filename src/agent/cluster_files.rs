//! Files about the cluster, read again whenever they change.

use std::{
    collections::BTreeSet,
    os::unix::fs::MetadataExt as _,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::watch::Sender, time::sleep};

use super::cluster_state::LastReading;
use crate::{
    cluster::{self, ClusterSource, Input, Resource},
    facts::{ClusterFacts, Gap, Reading, Source, Why},
    sinks::metrics::word,
};

/// How often files are looked at for a change.
const FILES: Duration = Duration::from_secs(1);

/// Reads files as long as somebody wants to know.
pub(super) async fn follow_files(
    inputs: Vec<Input>,
    node: Option<String>,
    hostname: String,
    sender: Sender<LastReading>,
) {
    let mut known = None;
    // The kinds of objects that the last reading held whole.
    let mut whole = BTreeSet::new();
    let source = ClusterSource::Files(inputs.clone());
    while !sender.is_closed() {
        let stamps = Some(stamps(&inputs));
        if stamps != known {
            let facts = cluster::read(&source, node.as_deref(), &hostname).await;
            whole = kinds(&facts).into_iter().filter(|(_, gap)| gap.is_none()).map(|(kind, _)| kind).collect();
            sender.send_if_modified(|last| take(last, facts));
            known = stamps;
        }
        // What a file that has not changed says counts as read again, but not what it failed to say.
        sender.send_if_modified(|last| {
            last.whole.extend(whole.iter().map(|kind| (*kind, Instant::now())));
            false
        });
        sleep(FILES).await;
    }
}

/// Takes in what was read. True if facts differ.
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

/// Facts of which nothing has been read yet.
pub(super) fn mark_not_yet(facts: &mut ClusterFacts) {
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
        assert!(whole[&Resource::Services] < good + FILES, "garbage is no reading, however often it is looked at");
        assert_eq!(errors[&(Resource::Services, "malformed".to_owned())], 1);
        write(WEB, 3);
        last.wait_for(|last| last.facts.services.seen().is_some()).await.expect("the follower lives");
        time::sleep(FILES / 4).await;
        assert!(last.borrow().whole[&Resource::Services] > good + FILES);
        follower.abort();
    }
}
