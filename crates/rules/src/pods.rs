//! The pods that controllers will make, and the replacement of pods by their controllers.

use std::{collections::HashSet, fmt, sync::Arc};

use crate::findings::{Evidence, Judgement, Severity, Subject, Verdict};
use portreeve_dataplane::Port;
use portreeve_facts::{
    ClaimOf, ContainerPort, Controller, Gap, NodeAddressKind, NodePortRange, Pod, Protocol, RangeSource, Reading,
    Snapshot, Source, Unread, Why, Workload, WorkloadKind,
};

/// The longest time between two failures of a container, in seconds: a pause of five minutes, then five minutes until
/// the next failure.
pub(super) const LONGEST_BACK_OFF: i64 = 600;
/// If a pod still runs this number of seconds after its grace period, rules assume that the pod does not end.
pub(super) const OVERDUE: i64 = 60;
/// The longest grace period that rules wait for, in seconds. Some pods have a grace period of a week.
const LONGEST_END: i64 = 3600;

pub(super) fn unread_pod(snapshot: &Snapshot) -> Option<Judgement> {
    let gap = snapshot.cluster.unread_pod()?;
    Some(Judgement::of(Subject::this_node(snapshot), Verdict::Unknown(gap.clone())))
}

/// Like [`unread_pod`], but a Pod whose node is unknown counts only if the Pod matters to the rule.
pub(super) fn unread_pod_that(snapshot: &Snapshot, matters: impl Fn(&Pod) -> bool) -> Option<Judgement> {
    let cluster = &snapshot.cluster;
    let is_rejected = cluster.rejected.iter().any(|gap| gap.source == Source::Pods);
    unread_pod(snapshot).filter(|_| is_rejected || cluster.unplaced_pods().any(matters))
}

/// Whether an unready pod in the host's network needs one of these ports.
pub(super) fn waits_for(pod: &Pod, is_one: impl Fn(Port) -> bool) -> bool {
    let mut ports = pod.ports.iter().chain(&pod.probed).chain(&pod.reported_in_use);
    let is_unready = pod.host_network && !pod.ready && pod.ends.is_none();
    is_unready && ports.any(|it| is_one((it.protocol, it.port)))
}

/// Whether a container ended with an error, and has run for less than [`LONGEST_BACK_OFF`] since its last start.
pub(super) fn is_failing(snapshot: &Snapshot, pod: &Pod) -> bool {
    let runs_for = pod.restarted.map(|since| snapshot.at.as_second() - since.as_second());
    pod.failing && runs_for.is_none_or(|seconds| seconds < LONGEST_BACK_OFF)
}

/// Whether a pod is being deleted, and will soon release its ports.
pub(super) fn ends_in_time(snapshot: &Snapshot, pod: &Pod) -> bool {
    let left = |ends: jiff::Timestamp| ends.as_second() - snapshot.at.as_second();
    pod.ends.is_some_and(|ends| (-OVERDUE..=LONGEST_END).contains(&left(ends)))
}

/// Whether two pods belong to one workload. Each argument is a pod's namespace and controller.
pub(super) fn are_siblings(one: (&str, Option<&Controller>), other: (&str, Option<&Controller>)) -> bool {
    let (Some(mine), Some(theirs)) = (one.1.and_then(workload), other.1.and_then(workload)) else { return false };
    one.0 == other.0 && mine == theirs
}

/// Whether two ports with one number conflict for the scheduler (kubernetes pkg/scheduler/framework/types.go
/// `CheckConflict`).
pub(super) fn ports_conflict(one: &ContainerPort, other: &ContainerPort) -> bool {
    let every = is_for_every_address;
    one.protocol == other.protocol && (every(one) || every(other) || one.host_ip == other.host_ip)
}

/// Whether the scheduler treats a port as a port on every address.
pub(super) fn is_for_every_address(port: &ContainerPort) -> bool {
    port.host_ip.is_none_or(|ip| ip.is_unspecified() && ip.is_ipv4())
}

/// The workloads that have pods: namespace, kind and name.
pub(super) struct WithPods<'a>(HashSet<(&'a str, (&'a str, &'a str))>);

impl<'a> WithPods<'a> {
    /// The workloads that have a pod on a node. Unread pods are treated as missing: check [`pods_before`] too.
    pub(super) fn placed(snapshot: &'a Snapshot) -> Self {
        let pods = snapshot.cluster.pods.known_part(Unread::Assumed("that no pod is there")).iter();
        Self::of(pods.map(|pod| (&*pod.namespace, pod.controller.as_ref())))
    }

    pub(super) fn placed_or_waiting(snapshot: &'a Snapshot) -> Self {
        let waiting = snapshot.cluster.waiting_pods.known_part(Unread::Assumed("that no pod waits")).iter();
        let waiting = Self::of(waiting.map(|pod| (&*pod.namespace, pod.controller.as_ref())));
        Self(&Self::placed(snapshot).0 | &waiting.0)
    }

    fn of(pods: impl Iterator<Item = (&'a str, Option<&'a Controller>)>) -> Self {
        Self(pods.filter_map(|(namespace, controller)| Some((namespace, workload(controller?)?))).collect())
    }

    pub(super) fn has(&self, of: &Workload) -> bool {
        self.0.contains(&(&*of.namespace, (of.kind.name(), &*of.name)))
    }
}

/// The workloads without a known pod on a node. The pods of these workloads may still wait for a node, or may be
/// unread.
pub(super) fn to_come(snapshot: &Snapshot) -> impl Iterator<Item = &Workload> {
    let with_pods = WithPods::placed(snapshot);
    snapshot.cluster.workloads.iter().map(AsRef::as_ref).filter(move |it| !with_pods.has(it))
}

/// The existing pods. If Pods were not requested, and workloads will make pods, the list is empty.
///
/// # Errors
/// Fails if the pods could not be read, or if Pods were not requested and no workload will make pods.
pub(super) fn pods_before(snapshot: &Snapshot) -> Result<&[Arc<Pod>], Gap> {
    match &snapshot.cluster.pods {
        Reading::Gap(gap) if gap.why == Why::NotRequested && to_come(snapshot).next().is_some() => Ok(&[]),
        pods => pods.get().map(Vec::as_slice),
    }
}

/// A pod as the workload would make it on this node. The pod has the workload's name. If the workload uses the host's
/// network, the pod has the node's addresses. If Pods were read, the pod certainly does not run yet.
pub(super) fn next_pod(snapshot: &Snapshot, workload: &Workload) -> Pod {
    let Workload { kind, namespace, name, host_network, ports, probed, .. } = workload;
    let addresses = snapshot.own_node().filter(|_| *host_network).into_iter().flat_map(|node| &node.addresses);
    let ips = addresses.filter(|it| it.kind == NodeAddressKind::InternalIp).map(|it| it.ip).collect();
    Pod {
        namespace: namespace.clone(),
        name: name.clone(),
        controller: Some(Controller { kind: kind.name().to_owned(), name: name.clone() }),
        host_network: *host_network,
        running: snapshot.cluster.pods.known(Unread::Doubted).map(|_| false),
        ips,
        ports: ports.clone(),
        probed: probed.clone(),
        ..Pod::default()
    }
}

pub(super) fn is_everywhere(workload: &Workload) -> bool {
    workload.kind == WorkloadKind::DaemonSet && workload.selects.is_empty() && workload.avoids.is_empty()
}

/// The pod that has a port of the node, or the workload whose pod will have the port.
#[derive(Clone, Copy)]
pub(super) enum PortOf<'a> {
    Pod(&'a Pod),
    Workload(&'a Workload),
}

impl PortOf<'_> {
    /// The pod, as subject. A pod that does not exist yet has no name, so its problem is about `other`, the other claim
    /// to the port.
    pub(super) fn subject_or(self, other: Subject) -> Subject {
        if let Self::Pod(pod) = self { Subject::pod(pod) } else { other }
    }

    pub(super) fn named_in(self, evidence: Evidence, number: u16, protocol: Protocol) -> Evidence {
        let evidence = evidence.about(self.field(number, protocol));
        match self {
            Self::Pod(Pod { namespace, name, .. }) => evidence.value("pod", format!("{namespace}/{name}")),
            Self::Workload(workload) => evidence.value("wanted by", workload),
        }
    }

    pub(super) fn field(self, number: u16, protocol: Protocol) -> Option<ClaimOf> {
        match self {
            Self::Pod(_) => None,
            Self::Workload(workload) => Some(ClaimOf::pod_port(workload, number, protocol)),
        }
    }

    /// The severity of a port in the NodePort range. If a workload has a pod on each node, no Service can use the
    /// number, and the severity is a warning. If the range is assumed, the severity is information.
    pub(super) fn in_range(self, range: &NodePortRange) -> Severity {
        match self {
            Self::Workload(workload) if range.source != RangeSource::Assumed && is_everywhere(workload) => {
                Severity::Warning
            }
            _ => Severity::Info,
        }
    }
}

impl fmt::Display for PortOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(Pod { namespace, name, .. }) => write!(f, "pod {namespace}/{name}"),
            Self::Workload(workload) => workload.fmt(f),
        }
    }
}

/// The kind and the name of a controller's workload. A ReplicaSet's name is the name of its Deployment with a hash.
/// `None` for static pods, which have no workload.
pub fn workload(controller: &Controller) -> Option<(&str, &str)> {
    let (kind, name) = (controller.kind.as_str(), controller.name.as_str());
    match kind {
        _ if controller.is_node() => None,
        "ReplicaSet" => Some(match name.rsplit_once('-').filter(|(_, hash)| is_hash(hash)) {
            Some((deployment, _)) => (WorkloadKind::Deployment.name(), deployment),
            None => (kind, name),
        }),
        // The name of each Job of a CronJob has the minute of its run (kubernetes pkg/controller/cronjob/utils.go
        // `getJobName`).
        "Job" => Some(match name.rsplit_once('-').filter(|(_, minute)| is_minute(minute)) {
            Some((cron_job, _)) => ("CronJob", cron_job),
            None => (kind, name),
        }),
        _ => Some((kind, name)),
    }
}

pub(super) fn is_static(controller: Option<&Controller>) -> bool {
    controller.is_some_and(Controller::is_node)
}

/// Whether the text has only letters of Kubernetes' hashes (kubernetes apimachinery/pkg/util/rand `SafeEncodeString`).
fn is_hash(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| "bcdfghjklmnpqrstvwxz2456789".contains(letter))
}

/// Whether the text is a minute since 1970, with eight digits (1989 to 2160). Numbers up to 21000000 (a minute in 2009)
/// are excluded, because they may be dates such as 20240115. No CronJob is so old.
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
