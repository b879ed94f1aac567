//! Polls the three resources that are not watched: Nodes, Pods that wait for free ports, and the settings of the
//! cluster.

use std::{collections::BTreeSet, time::Duration};

use tokio::sync::watch;

use super::resource_feed::ResourceFeed;
use crate::{
    error::Error,
    nodes,
    settings_places::{self, SettingsPlace, SettingsRead},
    waiting_pods,
};
use portreeve_facts::Why;

/// If a place is missing in this number of polls in a row, its settings count as gone. A server that just started may
/// still lack some of its resources. If the settings were dropped immediately, the NodePort range could be wrong.
const POLLS_UNTIL_GONE: u32 = 5;
/// In a cluster with at most this number of Nodes, each agent polls waiting Pods as often as Nodes.
const FEW_NODES: usize = 500;

/// Settings are polled, because the agent's role does not permit a watch of settings. Settings almost never change.
pub(super) async fn poll_settings(feed: ResourceFeed, own: Option<&str>) {
    let mut failures = 0;
    // The places that had settings at the last complete read.
    let mut known: Option<BTreeSet<SettingsPlace>> = None;
    let mut polls_absent = 0;
    loop {
        let read = async { Ok(settings_places::read(&feed.connect().await?, own).await) };
        let failed = match read.await {
            Err(error) => Some(error),
            Ok(SettingsRead { facts, found, absent, failed }) => {
                let was_found = |place: &SettingsPlace| known.as_ref().is_some_and(|known| known.contains(place));
                let mut lost: Vec<Error> =
                    absent.into_iter().filter(|(place, _)| was_found(place)).map(|(_, error)| error).collect();
                polls_absent = if lost.is_empty() { 0 } else { polls_absent + 1 };
                // If the API server refuses the read of a place, the place does not count as gone.
                lost.retain(|error| error.why() == Why::NotPermitted || polls_absent < POLLS_UNTIL_GONE);
                // Before the first complete read, incomplete settings are used too.
                let first_part = known.is_none() && failed.len() < settings_places::COUNT;
                if lost.is_empty() && (failed.is_empty() || first_part) {
                    feed.replace(facts).await;
                }
                if lost.is_empty() && failed.is_empty() {
                    known = Some(found);
                }
                failed.into_iter().map(|(_, error)| error).chain(lost).next()
            }
        };
        feed.wait_for_next_poll(failed, &mut failures, feed.timing.poll_interval).await;
    }
}

/// Nodes are polled. A kubelet changes its Node every five minutes, so a watch of thousands of Nodes would cost more
/// than all other reads. The fields that rules need almost never change.
pub(super) async fn poll_nodes(feed: ResourceFeed, own: Option<&str>, count: watch::Sender<usize>) {
    let mut failures = 0;
    loop {
        let read = async {
            let nodes = nodes::read(&feed.connect().await?, own).await?;
            count.send_replace(nodes.nodes.len());
            feed.replace(nodes).await;
            Ok::<_, Error>(())
        };
        feed.wait_for_next_poll(read.await.err(), &mut failures, feed.timing.poll_interval).await;
    }
}

/// Waiting Pods are polled. A new Pod has no Node, so with a watch the server would send every new Pod to every agent.
pub(super) async fn poll_waiting_pods(feed: ResourceFeed, nodes: watch::Receiver<usize>) {
    let mut failures = 0;
    loop {
        let read = async {
            let facts = waiting_pods::read(&feed.connect().await?).await?;
            let any = !facts.waiting_pods.is_empty();
            feed.replace(facts).await;
            Ok::<_, Error>(any)
        };
        let read = read.await;
        let interval = waiting_interval(feed.timing.poll_interval, *nodes.borrow(), matches!(read, Ok(true)));
        feed.wait_for_next_poll(read.err(), &mut failures, interval).await;
    }
}

/// The time between two polls of waiting Pods. In a cluster with more than [`FEW_NODES`] Nodes, the time grows with the
/// number of Nodes. So the agents of a larger cluster together send no more requests in a minute than the agents of
/// `FEW_NODES` Nodes.
fn waiting_interval(poll_interval: Duration, nodes: usize, any: bool) -> Duration {
    let share = nodes.max(FEW_NODES) as f64 / FEW_NODES as f64;
    poll_interval.mul_f64(if any { share / 10.0 } else { share })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_agents_together_poll_no_more_often_than_few() {
        let interval = |nodes, any| waiting_interval(Duration::from_secs(600), nodes, any).as_secs();
        assert_eq!([interval(0, false), interval(3, true)], [600, 60]);
        assert_eq!([interval(5000, false), interval(5000, true)], [6000, 600]);
    }
}
