//! How pods follow each other: one ends, and another of the same controller comes.

use crate::facts::{ContainerPort, Controller, Pod, Snapshot, Workload, WorkloadKind};

/// So long after a pod should have ended, in seconds, it counts as one that does not.
pub(super) const OVERDUE: i64 = 60;

/// Whether a pod is being deleted, and gives its ports back in time.
pub(super) fn ends_in_time(snapshot: &Snapshot, pod: &Pod) -> bool {
    pod.ends.is_some_and(|ends| snapshot.at.as_second() <= ends.as_second() + OVERDUE)
}

/// Whether two pods, each by its namespace and its controller, are of one workload: one replaces the other.
pub(super) fn are_siblings(one: (&str, Option<&Controller>), other: (&str, Option<&Controller>)) -> bool {
    let (Some(mine), Some(theirs)) = (one.1, other.1) else { return false };
    one.0 == other.0 && mine.kind == theirs.kind && workload_name(mine) == workload_name(theirs)
}

/// Whether two ports of a node with one number are one for the scheduler (kubernetes pkg/scheduler/framework/types.go
/// `CheckConflict`).
pub(super) fn ports_conflict(one: &ContainerPort, other: &ContainerPort) -> bool {
    let every = |port: &ContainerPort| port.host_ip.is_none_or(|ip| ip.is_unspecified() && ip.is_ipv4());
    one.protocol == other.protocol && (every(one) || every(other) || one.host_ip == other.host_ip)
}

/// Whether a pod is one of a workload.
pub(super) fn is_of(pod: &Pod, workload: &Workload) -> bool {
    let Some(controller) = &pod.controller else { return false };
    let kind = if workload.kind == WorkloadKind::Deployment { "ReplicaSet" } else { workload.kind.name() };
    pod.namespace == workload.namespace && controller.kind == kind && workload_name(controller) == workload.name
}

/// The name of what is rolled out: a Deployment names each of its ReplicaSets after itself and a hash.
fn workload_name(controller: &Controller) -> &str {
    let name = controller.name.as_str();
    let deployment = name.rsplit_once('-').filter(|_| controller.kind == "ReplicaSet");
    deployment.map_or(name, |(deployment, _)| deployment)
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
        assert!(!are_siblings(("a", Some(&set)), ("a", None)) && !are_siblings(("a", None), ("a", None)));
    }
}
