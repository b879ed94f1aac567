//! A pod waits because another pod has its hostPort, or a future pod of a DaemonSet will wait.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    Limits, Round, Rule,
    capped::Capped,
    ids,
    pods::{WithPods, are_siblings, ends_in_time, is_everywhere, is_static, ports_conflict},
    remedies::another_port,
    wording::{MOST_LISTED, listed},
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, SubjectKind, Verdict};
use portreeve_dataplane::ByPort;
use portreeve_facts::{
    ClaimOf, ContainerPort, Controller, Pod, Protocol, Reading, ServiceName, Snapshot, Source, Unread, WaitingPod, Why,
    Workload,
};

pub(super) static RULE: Rule =
    Rule::of(&ids::POD_WAITS_FOR_PORT, &["pod"], &[Source::WaitingPods, Source::Pods], check);

/// The time for a rollout, in seconds: the default of a Deployment (`progressDeadlineSeconds`).
const ROLLOUT: i64 = 600;
/// The longest time, in seconds, until a controller replaces a failed pod. The DaemonSet controller waits longest
/// (kubernetes cmd/kube-controller-manager/app/apps.go, 15 minutes).
const LONGEST_RETRY: i64 = 1200;
/// The kinds of controllers that replace a failed pod if there are fewer pods than wanted.
const MAKE_ANOTHER: [&str; 4] = ["DaemonSet", "ReplicaSet", "ReplicationController", "StatefulSet"];
/// A toleration of every taint, in the form of [`Workload::tolerates`]: only the operator `Exists`, with empty key,
/// value and effect.
const EVERY_TAINT: &str = " Exists  ";
/// The largest number of ports to compare for one number. A pod may have one number thousands of times, each time on
/// another address.
const MOST_COMPARED: usize = 1 << 18;

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let with_pods = WithPods::placed_or_waiting(snapshot);
    let workloads = snapshot.cluster.workloads.iter().map(AsRef::as_ref);
    let to_come: Vec<&Workload> = workloads.filter(|it| !with_pods.has(it) && is_everywhere(it)).collect();
    let waiting = match &snapshot.cluster.waiting_pods {
        Reading::Gap(gap) if gap.why == Why::NotRequested && to_come.is_empty() => return Ok(Vec::new()),
        Reading::Gap(gap) if gap.why == Why::NotRequested => &[][..],
        waiting => waiting.get()?,
    };
    let pods = snapshot.cluster.pods.get()?;

    let node = snapshot.node_name();
    let is_here = |pod: &&Pod| pod.node.as_deref() == Some(node) && !pod.finished;
    let here: Vec<&Pod> = pods.iter().map(AsRef::as_ref).filter(is_here).collect();
    let arrived: HashSet<_> = here.iter().map(|pod| (&pod.namespace, &pod.name)).collect();
    let waits_here = |pod: &&WaitingPod| {
        pod.may_be_on(node) && !arrived.contains(&(&pod.namespace, &pod.name)) && !is_over(&here, pod)
    };
    let by_port = by_port(here.iter().copied());
    let mut capped = Capped::of(snapshot, Source::WaitingPods);
    let mut left = MOST_COMPARED;
    let every = all_alike(waiting.iter().map(AsRef::as_ref).filter(waits_here));
    for alike in in_turns(every).into_iter().filter(|alike| !alike.is_given_up(snapshot)) {
        for port in &alike.oldest.ports {
            let held = port.host_port.map_or(&[][..], |number| by_port.at((port.protocol, number)));
            let Some(fewer) = left.checked_sub(held.len()) else {
                capped.leave_out();
                return Ok(capped.all());
            };
            left = fewer;
            let holders = holders(snapshot, held, alike.oldest, port);
            judge(snapshot, &alike, port, &holders).into_iter().for_each(|judgement| capped.push(judgement));
        }
    }
    let mut judgements = capped.all();
    judgements.extend(judge_to_come(snapshot, pods, &to_come));
    Ok(judgements)
}

/// The problems of DaemonSets: a pod will wait on each node on which another pod has the port.
fn judge_to_come(snapshot: &Snapshot, pods: &[Arc<Pod>], to_come: &[&Workload]) -> Vec<Judgement> {
    let stays = |pod: &&Pod| pod.node.is_some() && !pod.finished && !ends_in_time(snapshot, pod);
    let by_port = by_port(pods.iter().map(AsRef::as_ref).filter(stays).filter(|_| !to_come.is_empty()));
    let mut judgements = Vec::new();
    for workload in to_come {
        for (number, wanted) in workload.node_ports() {
            let mut held = by_port.at((wanted.protocol, number)).iter();
            let Some((holder, _)) = held.find(|(_, port)| ports_conflict(port, wanted)) else { continue };
            judgements.push(Judgement::on_port(
                Subject::cluster(),
                (wanted.protocol, number),
                Verdict::Problem(evidence_to_come(workload, number, wanted.protocol, holder)),
            ));
        }
    }
    judgements
}

fn evidence_to_come(workload: &Workload, number: u16, protocol: Protocol, holder: &Pod) -> Evidence {
    let whose = format!("{} on {}", title(holder), holder.node.as_deref().unwrap_or_default());
    let (severity, end) = match workload.tolerates.iter().any(|it| it == EVERY_TAINT) {
        true => (Severity::Warning, "the pod for that node stays Pending"),
        false => (Severity::Info, "the pod for that node stays Pending, unless a taint excludes it from that node"),
    };
    Evidence::new(severity, format!("{whose} has port {number}/{protocol}, which {workload} wants: {end}."))
        .in_cluster()
        .about([ClaimOf::pod_port(workload, number, protocol)])
        .value("taken by", whose)
        .remedy(Step::advice(format!("give {workload} another port of the node than {number}/{protocol}")))
}

/// Sorts the pods by turns: the first pod of each namespace, then the second pod of each namespace. So a user with many
/// waiting pods in one namespace cannot hide the pods of other namespaces.
fn in_turns<'a>(alike: Vec<Alike<'a>>) -> Vec<Alike<'a>> {
    let mut of_namespace: HashMap<&'a str, usize> = HashMap::new();
    let turn = |it: Alike<'a>| {
        let turn = of_namespace.entry(&it.oldest.namespace).or_default();
        *turn += 1;
        (*turn, it)
    };
    let mut turns: Vec<_> = alike.into_iter().map(turn).collect();
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, it)| it).collect()
}

type Held<'a> = (&'a Pod, &'a ContainerPort);

fn by_port<'a>(pods: impl Iterator<Item = &'a Pod>) -> ByPort<Held<'a>> {
    ByPort::of(pods.flat_map(|pod| pod.node_ports().map(move |(number, port)| ((port.protocol, number), (pod, port)))))
}

/// Pods of one controller that wait for one port, and differ only in their names.
struct Alike<'a> {
    /// Every scan names this pod, even if the controller makes new pods.
    oldest: &'a WaitingPod,
    /// The time at which the newest pod began to wait.
    latest: Option<Timestamp>,
    all: usize,
}

impl Alike<'_> {
    /// Whether the kubelet refused the pods, and the controller stopped making new pods.
    fn is_given_up(&self, snapshot: &Snapshot) -> bool {
        let makes_another = self.oldest.controller.as_ref().is_some_and(|it| MAKE_ANOTHER.contains(&it.kind.as_str()));
        let is_long_ago = |at: Timestamp| snapshot.at.as_second() - at.as_second() > LONGEST_RETRY;
        self.oldest.rejected && makes_another && self.latest.is_some_and(is_long_ago)
    }
}

/// The waiting pods, the oldest first. Pods of one controller that are for the same node are one entry. Pods that the
/// kubelet refused and other pods are separate entries. The controller replaces each refused pod, so thousands of
/// refused pods may exist.
fn all_alike<'a>(waiting: impl Iterator<Item = &'a WaitingPod>) -> Vec<Alike<'a>> {
    let age = |pod: &'a WaitingPod| (pod.since, &pod.namespace, &pod.name);
    let (mut single, mut alike): (Vec<Alike<'_>>, HashMap<_, Alike<'_>>) = Default::default();
    for pod in waiting {
        let Some(controller) = pod.controller.as_ref().filter(|it| !is_static(Some(*it))) else {
            single.push(Alike { oldest: pod, latest: pod.since, all: 1 });
            continue;
        };
        let key = (&pod.namespace, &controller.kind, &controller.name, &pod.meant_for, pod.rejected);
        let known = alike.entry(key).or_insert(Alike { oldest: pod, latest: pod.since, all: 0 });
        known.all += 1;
        known.latest = known.latest.max(pod.since);
        if age(pod) < age(known.oldest) {
            known.oldest = pod;
        }
    }
    single.extend(alike.into_values());
    single.sort_by_key(|it| age(it.oldest));
    single
}

/// Whether a refused pod needs no report, because another pod of its workload is ready. Refused pods are not deleted
/// automatically.
fn is_over(here: &[&Pod], waiting: &WaitingPod) -> bool {
    waiting.rejected && here.iter().any(|pod| pod.ready && is_sibling(pod, waiting))
}

fn is_sibling(pod: &Pod, waiting: &WaitingPod) -> bool {
    are_siblings((&pod.namespace, pod.controller.as_ref()), (&waiting.namespace, waiting.controller.as_ref()))
}

fn judge(snapshot: &Snapshot, alike: &Alike<'_>, port: &ContainerPort, holders: &[&Pod]) -> Option<Judgement> {
    let first = holders.first()?;
    Some(Judgement::on_port(
        subject(snapshot, alike.oldest),
        (port.protocol, port.host_port?),
        Verdict::Problem(evidence(alike, port, first, holders)),
    ))
}

/// The pods of this node that have the port and keep the port. Pods that soon release the port in a rollout or a
/// deletion are left out. A pod whose deletion hangs stays in the list.
fn holders<'a>(snapshot: &Snapshot, held: &[Held<'a>], waiting: &WaitingPod, wanted: &ContainerPort) -> Vec<&'a Pod> {
    let is_new = waiting.since.is_some_and(|since| snapshot.at.as_second() - since.as_second() < ROLLOUT);
    let mut holders: Vec<&Pod> = Vec::new();
    for (pod, _) in held.iter().filter(|(_, port)| ports_conflict(port, wanted)) {
        // In `held`, the ports of one pod follow each other.
        let is_known = holders.last().is_some_and(|last| std::ptr::eq(*last, *pod));
        let gives_way = || is_sibling(pod, waiting) && (is_new || waiting.rejected);
        if !is_known && holders.len() < MOST_LISTED && !ends_in_time(snapshot, pod) && !gives_way() {
            holders.push(pod);
        }
    }
    holders
}

/// The Service for which ServiceLB made the pod, or the pod itself.
fn subject(snapshot: &Snapshot, waiting: &WaitingPod) -> Subject {
    let WaitingPod { namespace, name, uid, service_lb_of, .. } = waiting;
    let (kind, namespace, name, uid) = match service_lb_of {
        None => (SubjectKind::Pod, namespace, name, uid.clone()),
        Some(ServiceName { namespace, name }) => {
            let mut services = snapshot.cluster.services.known_part(Unread::Adds).iter();
            let service = services.find(|it| (&it.namespace, &it.name) == (namespace, name));
            (SubjectKind::Service, namespace, name, service.and_then(|it| it.uid.as_ref().map(ToString::to_string)))
        }
    };
    Subject { kind, namespace: Some(namespace.clone()), name: name.clone(), uid }
}

fn evidence(alike: &Alike<'_>, port: &ContainerPort, first: &Pod, holders: &[&Pod]) -> Evidence {
    let waiting = alike.oldest;
    let WaitingPod { namespace, name, controller, service_lb_of, meant_for, .. } = waiting;
    let number = format!("{}/{}", port.host_port.unwrap_or(port.port), port.protocol);
    let has_it = match (&first.service_lb_of, holders) {
        (Some(service), [_]) => format!("that of Service {service}"),
        _ => format!("in the hands of {}", listed(holders.iter().map(|it| title(it)))),
    };
    let who = match service_lb_of {
        Some(service) => format!("ServiceLB cannot serve Service {service}"),
        None => format!("Pod {namespace}/{name} cannot run"),
    };
    let sentence = match meant_for {
        Some(_) => format!("{who} on this node: hostPort {number} is {has_it}."),
        // For a pod without a node, the port is in use on every node that the pod could use. One report is enough.
        None => format!("{who}: hostPort {number} is taken on every node that it could use."),
    };
    let address = port.host_ip.map_or("every address".to_owned(), |ip| ip.to_string());
    let state = if waiting.rejected { "refused by the kubelet" } else { "pending" };
    let since = if waiting.rejected { "refused since" } else { "pending since" };
    let mut evidence = Evidence::new(Severity::Warning, sentence)
        .value(state, format!("pod {namespace}/{name}"))
        .and_more(state, alike.all, 1)
        .value("hostPort", format!("{number} on {address}"));
    for holder in holders {
        let node = holder.node.as_deref().unwrap_or_default();
        evidence = evidence.value("held by", format!("{} on {node}", title(holder)));
        evidence.values.extend(holder.service_lb_of.as_ref().map(|it| ("which serves", format!("Service {it}"))));
    }
    evidence.values.extend(waiting.since.map(|at| (since, at.to_string())));
    let certain = meant_for.is_some() || waiting.everywhere;
    if !certain {
        evidence = evidence
            .value("not known", "whether the pod could run on this node: other nodes refuse the pod for other reasons");
    }
    if meant_for.is_none() {
        evidence = evidence.in_cluster();
    }
    if holders.iter().all(|holder| is_sibling(holder, waiting)) {
        // Only Deployments use maxSurge by default. If two ReplicaSets belong to one Deployment, the pods of the two
        // ReplicaSets are the Deployment's old and new pods.
        let is_older = |holder: &&Pod| holder.controller != waiting.controller;
        if waiting.controller.as_ref().is_some_and(|it| it.kind == "ReplicaSet") && holders.iter().any(is_older) {
            return evidence
                .remedy(Step::advice(
                    "set the update strategy to delete the old pod first: maxSurge 0, maxUnavailable 1",
                ))
                .remedy(Step::advice(
                    "give the pods more nodes than there are replicas: a roll-out then has a node without an old pod",
                ));
        }
        return evidence
            .remedy(Step::advice("set at most as many replicas as there are nodes: each node has the port once"));
    }
    let other = |service: &Option<ServiceName>, pod: Step| match service {
        Some(service) => Step::advice(format!("give Service {service} another port than {number}")),
        None => pod,
    };
    let mut own = Remedy::from(other(service_lb_of, another_port(namespace, name, controller.as_ref())));
    // A static pod cannot be deleted. The kubelet starts the pod again only when the manifest changes.
    if waiting.rejected && !is_static(controller.as_ref()) {
        let refused = match controller {
            Some(Controller { kind, name }) => {
                format!(
                    "delete all pods of {kind} {namespace}/{name} that the kubelet refused: the kubelet does not start them again"
                )
            }
            None => format!("delete pod {namespace}/{name}: the kubelet does not start it again"),
        };
        own = own.then(Step::advice(refused));
    }
    evidence = evidence.remedy(own);
    if certain {
        let moves = holders
            .iter()
            .map(|it| other(&it.service_lb_of, another_port(&it.namespace, &it.name, it.controller.as_ref())));
        evidence = evidence.remedy(Remedy { steps: moves.collect() });
    }
    match (service_lb_of, &first.service_lb_of) {
        (Some(_), Some(_)) => evidence.remedy(Step::advice(
            "give each Service nodes of its own: the label svccontroller.k3s.cattle.io/lbpool on both, and \
             svccontroller.k3s.cattle.io/enablelb=true on the nodes (rke2 instead of k3s there)",
        )),
        _ => evidence,
    }
}

fn title(pod: &Pod) -> String {
    format!("pod {}/{}", pod.namespace, pod.name)
}

#[cfg(test)]
mod tests;
