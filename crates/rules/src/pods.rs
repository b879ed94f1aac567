//! How pods follow each other: one ends, and another of the same controller comes.

use std::collections::HashSet;

use portreeve_facts::{ContainerPort, Controller, Pod, Snapshot, Workload, WorkloadKind};

/// So long after a pod should have ended, in seconds, it counts as one that does not.
pub(super) const OVERDUE: i64 = 60;
/// A pod may take so long to end, in seconds. Some are given a week: whoever waits for their ports waits in vain.
const LONGEST_END: i64 = 3600;

/// Whether a pod is being deleted, and gives its ports back in time.
pub(super) fn ends_in_time(snapshot: &Snapshot, pod: &Pod) -> bool {
    let left = |ends: jiff::Timestamp| ends.as_second() - snapshot.at.as_second();
    pod.ends.is_some_and(|ends| (-OVERDUE..=LONGEST_END).contains(&left(ends)))
}

/// Whether two pods, each by its namespace and its controller, are of one workload: one replaces the other.
pub(super) fn are_siblings(one: (&str, Option<&Controller>), other: (&str, Option<&Controller>)) -> bool {
    let (Some(mine), Some(theirs)) = (one.1.and_then(workload), other.1.and_then(workload)) else { return false };
    one.0 == other.0 && mine == theirs
}

/// Whether two ports of a node with one number are one for the scheduler (kubernetes pkg/scheduler/framework/types.go
/// `CheckConflict`).
pub(super) fn ports_conflict(one: &ContainerPort, other: &ContainerPort) -> bool {
    let every = is_for_every_address;
    one.protocol == other.protocol && (every(one) || every(other) || one.host_ip == other.host_ip)
}

/// Whether the scheduler takes a port of a node for one on every address.
pub(super) fn is_for_every_address(port: &ContainerPort) -> bool {
    port.host_ip.is_none_or(|ip| ip.is_unspecified() && ip.is_ipv4())
}

/// The workloads of which pods are there, each by its namespace, its kind and its name.
pub(super) struct WithPods<'a>(HashSet<(&'a str, (&'a str, &'a str))>);

impl<'a> WithPods<'a> {
    /// Those whose pods have a node, as far as pods were read.
    pub(super) fn placed(snapshot: &'a Snapshot) -> Self {
        let pods = snapshot.cluster.pods.seen().into_iter().flatten();
        Self::of(pods.map(|pod| (&*pod.namespace, pod.controller.as_ref())))
    }

    /// The same with those whose pods wait for one.
    pub(super) fn placed_or_waiting(snapshot: &'a Snapshot) -> Self {
        let waiting = snapshot.cluster.waiting_pods.seen().into_iter().flatten();
        let waiting = Self::of(waiting.map(|pod| (&*pod.namespace, pod.controller.as_ref())));
        Self(&Self::placed(snapshot).0 | &waiting.0)
    }

    /// Those of pods, each by its namespace and its controller.
    fn of(pods: impl Iterator<Item = (&'a str, Option<&'a Controller>)>) -> Self {
        Self(pods.filter_map(|(namespace, controller)| Some((namespace, workload(controller?)?))).collect())
    }

    /// Whether a workload is one of them.
    pub(super) fn has(&self, of: &Workload) -> bool {
        self.0.contains(&(&*of.namespace, (of.kind.name(), &*of.name)))
    }
}

/// The kind and the name of what is rolled out: a Deployment names each of its ReplicaSets after itself and a hash.
/// Nothing rolls out static pods.
pub fn workload(controller: &Controller) -> Option<(&str, &str)> {
    let (kind, name) = (controller.kind.as_str(), controller.name.as_str());
    match kind {
        _ if controller.is_node() => None,
        "ReplicaSet" => Some(match name.rsplit_once('-').filter(|(_, hash)| is_hash(hash)) {
            Some((deployment, _)) => (WorkloadKind::Deployment.name(), deployment),
            None => (kind, name),
        }),
        // Each run is a Job named after its minute (kubernetes pkg/controller/cronjob/utils.go `getJobName`).
        "Job" => Some(match name.rsplit_once('-').filter(|(_, minute)| is_minute(minute)) {
            Some((cron_job, _)) => ("CronJob", cron_job),
            None => (kind, name),
        }),
        _ => Some((kind, name)),
    }
}

/// Whether a node's kubelet made a pod from a file of that node.
pub(super) fn is_static(controller: Option<&Controller>) -> bool {
    controller.is_some_and(Controller::is_node)
}

/// By the letters in it (kubernetes apimachinery/pkg/util/rand `SafeEncodeString`).
fn is_hash(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| "bcdfghjklmnpqrstvwxz2456789".contains(letter))
}

/// Minutes since 1970 have eight digits until the year 2160. Those up to 2009 look like dates of this century, and no CronJob is as old.
fn is_minute(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit()) && text > "21000000"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_sets_of_one_deployment_are_siblings() {
        let of = |kind: &str, name: &str| Controller { kind: kind.to_owned(), name: name.to_owned() };
        let siblings = |one: &Controller, other: &Controller| are_siblings(("a", Some(one)), ("a", Some(other)));
        assert!(siblings(&of("ReplicaSet", "web-7d9"), &of("ReplicaSet", "web-5c4")));
        assert!(!siblings(&of("ReplicaSet", "web-7d9"), &of("ReplicaSet", "api-7d9")));
        assert!(!siblings(&of("DaemonSet", "web-7d9"), &of("DaemonSet", "web-5c4")));
        let set = of("DaemonSet", "web");
        assert!(siblings(&set, &set) && !siblings(&set, &of("StatefulSet", "web")));
        assert!(!are_siblings(("a", Some(&set)), ("b", Some(&set))));
        assert!(!siblings(&of("ReplicaSet", "my-app"), &of("ReplicaSet", "my-api")), "no Deployment made them");
        assert!(!siblings(&of("Node", "n1"), &of("Node", "n1")), "two static pods");
        assert!(siblings(&of("Job", "backup-29400000"), &of("Job", "backup-29400060")), "two runs of a CronJob");
        assert!(!siblings(&of("Job", "backup-1"), &of("Job", "backup-2")), "two Jobs of a person");
        assert!(!siblings(&of("Job", "migrate-20260101"), &of("Job", "migrate-20260102")), "with dates");
        assert!(!are_siblings(("a", Some(&set)), ("a", None)) && !are_siblings(("a", None), ("a", None)));
    }
}
