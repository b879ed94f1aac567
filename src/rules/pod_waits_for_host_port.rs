//! A pod has no node, because another pod has its hostPort.
//!
//! ## Why it hurts
//! Two pods with the same hostPort and protocol do not run on one node. The scheduler leaves the second one Pending. It
//! says *didn't have free ports for the requested pod ports*, and neither which port nor who has it. ServiceLB of k3s
//! and RKE2 makes such a pod for every LoadBalancer Service and node, with the Service's ports: of two Services with
//! port 80, the second gets no address. A hostNetwork pod has all of its declared ports as hostPorts. A rolling update
//! waits for ever where the new pod needs a port that the old one keeps. A pod that was given to a node by name gets no
//! second chance: the kubelet refuses it, and it stays Failed.
//!
//! ## Silent when
//! - nobody on this node has the port, with the same protocol and an address that both want;
//! - the pod is meant for another node, is nominated for one, or has got one meanwhile;
//! - who has the port is being deleted, until a minute after its time has passed;
//! - the kubelet refused it, and a later one of the same controller too: one stands for all;
//! - it is a pod of the same workload, for ten minutes: a rollout takes the old one away. Of one that the kubelet refused
//!   it is the pod in its place.
//!
//! A pod may be refused on other nodes for other reasons, such as taints, and on this one, too. The rule does not know the
//! labels and taints of nodes: unless each node lacks the port, it says so of who has it here.
//!
//! A process with the port is no reason for the scheduler: `host-port-takes-listener` and
//! `listener-blocks-host-network-pod` say what becomes of the pod.
//!
//! ## Fix
//! Give one of the two another port, or let them run on different nodes.

use std::{collections::HashMap, sync::Arc};

use super::{
    Limits, Patience, Rule,
    pods::{are_siblings, ends_in_time, is_static, ports_conflict},
    remedies::another_port,
    wording::{MOST_LISTED, listed},
};
use crate::{
    facts::{ContainerPort, Pod, Reading, ServiceName, Snapshot, Source, View, WaitingPod, Why},
    findings::{Evidence, Judgement, Judgements, Remedy, RuleId, Severity, Step, Subject, SubjectKind, Verdict},
};

pub(super) static RULE: Rule = Rule {
    id: RuleId("pod-waits-for-host-port"),
    title: "A pod waits for a hostPort that another pod has",
    ceiling: Severity::Warning,
    needs: &[Source::WaitingPods, Source::Pods],
    uses: &[],
    socket_needs: &[],
    patience: Patience::TwoScans,
    page: include_str!("pod_waits_for_host_port.rs"),
    check,
};

/// So long a rollout may take, in seconds: as long as a Deployment waits unless told otherwise.
const ROLLOUT: i64 = 600;

fn check(view: View<'_>, _: &Limits) -> Judgements {
    let snapshot = view.now;
    let waiting = match &snapshot.cluster.waiting_pods {
        Reading::Gap(gap) if gap.why == Why::NotAsked => return Ok(Vec::new()),
        waiting => waiting.get()?,
    };
    let pods = snapshot.cluster.pods.get()?;

    let node = snapshot.node_name();
    let is_here = |pod: &&Pod| pod.node.as_deref() == Some(node) && !pod.finished;
    let here: Vec<&Pod> = pods.iter().map(AsRef::as_ref).filter(is_here).collect();
    let mut judgements = Vec::new();
    let newest = newest_refused(waiting);
    for waiting in waiting.iter().filter(|it| it.may_be_on(node)) {
        if workload_of(waiting).and_then(|workload| newest.get(&workload)).is_some_and(|it| !Arc::ptr_eq(it, waiting)) {
            continue;
        }
        let arrived = |pod: &&Pod| (&pod.namespace, &pod.name) == (&waiting.namespace, &waiting.name);
        if here.iter().any(arrived) {
            continue;
        }
        for port in &waiting.ports {
            let holders: Vec<&Pod> =
                here.iter().copied().filter(|pod| keeps(snapshot, pod, waiting, port)).take(MOST_LISTED).collect();
            judgements.extend(judge(snapshot, waiting, port, &holders));
        }
    }
    Ok(judgements)
}

/// Whose place is taken again and again: the namespace, kind and name of what made a pod that the kubelet refused.
fn workload_of(waiting: &WaitingPod) -> Option<(&str, &str, &str)> {
    let controller = waiting.controller.as_ref().filter(|it| waiting.rejected && !is_static(Some(*it)))?;
    Some((&waiting.namespace, &controller.kind, &controller.name))
}

/// Of the refused pods of a controller the last one. It makes another for each, so that thousands may be there.
fn newest_refused(waiting: &[Arc<WaitingPod>]) -> HashMap<(&str, &str, &str), &Arc<WaitingPod>> {
    let mut newest: HashMap<_, &Arc<WaitingPod>> = HashMap::new();
    for pod in waiting {
        if let Some(workload) = workload_of(pod) {
            let known = newest.entry(workload).or_insert(pod);
            if (known.since, &known.name) < (pod.since, &pod.name) {
                *known = pod;
            }
        }
    }
    newest
}

fn judge(snapshot: &Snapshot, waiting: &WaitingPod, port: &ContainerPort, holders: &[&Pod]) -> Option<Judgement> {
    let first = holders.first()?;
    Some(Judgement {
        subject: subject(snapshot, waiting),
        port: Some(port.host_port?),
        protocol: Some(port.protocol),
        verdict: Verdict::Problem(evidence(waiting, port, first, holders)),
    })
}

/// Whether a pod of this node has a port that another waits for, and does not give it back by itself.
fn keeps(snapshot: &Snapshot, pod: &Pod, waiting: &WaitingPod, wanted: &ContainerPort) -> bool {
    let on_host = |port: &ContainerPort| port.host_port.or(pod.host_network.then_some(port.port));
    let conflicts = |port: &ContainerPort| on_host(port) == wanted.host_port && ports_conflict(port, wanted);
    let siblings =
        are_siblings((&pod.namespace, pod.controller.as_ref()), (&waiting.namespace, waiting.controller.as_ref()));
    let is_new = waiting.since.is_some_and(|since| snapshot.at.as_second() - since.as_second() < ROLLOUT);
    pod.ports.iter().any(conflicts) && !ends_in_time(snapshot, pod) && !(siblings && (is_new || waiting.rejected))
}

/// The Service that nobody serves without the pod, or the pod.
fn subject(snapshot: &Snapshot, waiting: &WaitingPod) -> Subject {
    let WaitingPod { namespace, name, uid, service_lb_of, .. } = waiting;
    let (kind, namespace, name, uid) = match service_lb_of {
        None => (SubjectKind::Pod, namespace, name, uid.clone()),
        Some(ServiceName { namespace, name }) => {
            let mut services = snapshot.cluster.services.seen().into_iter().flatten();
            let service = services.find(|it| (&it.namespace, &it.name) == (namespace, name));
            (SubjectKind::Service, namespace, name, service.and_then(|service| service.uid.clone()))
        }
    };
    Subject { kind, namespace: Some(namespace.clone()), name: name.clone(), uid }
}

fn evidence(waiting: &WaitingPod, port: &ContainerPort, first: &Pod, holders: &[&Pod]) -> Evidence {
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
        // On each node somebody else has it, and one report is enough.
        None => format!("{who}: hostPort {number} is taken on every node where it could."),
    };
    let address = port.host_ip.map_or("every address".to_owned(), |ip| ip.to_string());
    let state = if waiting.rejected { "refused by the kubelet" } else { "pending" };
    let since = if waiting.rejected { "refused since" } else { "pending since" };
    let mut evidence = Evidence::new(Severity::Warning, sentence)
        .value(state, format!("pod {namespace}/{name}"))
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
            .value("not known", "whether this node would take the pod: other nodes refuse it for other reasons");
    }
    if meant_for.is_none() {
        evidence = evidence.in_cluster();
    }
    if are_siblings((&first.namespace, first.controller.as_ref()), (namespace, controller.as_ref())) {
        let replace = "have the update strategy take the old pod away first: maxSurge 0, maxUnavailable 1";
        let fewer = "ask for no more pods than there are nodes: each node has the port once";
        return evidence.remedy(Step::advice(replace)).remedy(Step::advice(fewer));
    }
    let other = |service: &Option<ServiceName>, pod: Step| match service {
        Some(service) => Step::advice(format!("give Service {service} another port than {number}")),
        None => pod,
    };
    let mut own = Remedy::from(other(service_lb_of, another_port(namespace, name, controller.as_ref())));
    // Nobody can delete a static pod, and it is tried again once its manifest changes.
    if waiting.rejected && !is_static(controller.as_ref()) {
        own = own.then(Step::advice(format!("delete pod {namespace}/{name}: the kubelet does not try it again")));
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

/// `pod default/edge`.
fn title(pod: &Pod) -> String {
    format!("pod {}/{}", pod.namespace, pod.name)
}

#[cfg(test)]
mod tests;
