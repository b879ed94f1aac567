//! Two workloads, or several pods of one workload, want the same hostPort on the same nodes.

use std::{collections::HashMap, net::IpAddr};

use super::{
    Limits, Round, Rule, ids,
    pods::{WithPods, is_everywhere, is_for_every_address},
    wording::listed,
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{ByPort, Port};
use portreeve_facts::{
    ClaimOf, ContainerPort, Gap, Protocol, Snapshot, Source, Why, Workload, WorkloadKind, if_requested,
};

pub(super) static RULE: Rule = Rule::of(&ids::POD_WAITS_FOR_PORT, &["workloads", "replicas"], &[Source::Pods], check);

/// The largest number of pairs of workloads to compare. A user can write a file with any number of workloads.
const MOST_COMPARED: usize = 1 << 22;

type Claim<'a> = (&'a Workload, &'a ContainerPort);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    if let Some(gap) = snapshot.cluster.pods.gap().filter(|gap| gap.why != Why::NotRequested) {
        return Err(gap.clone());
    }
    let with_pods = WithPods::placed_or_waiting(snapshot);
    let workloads = || snapshot.cluster.workloads.iter().map(AsRef::as_ref);
    let by_port = ByPort::of(workloads().flat_map(|workload: &Workload| {
        workload.node_ports().map(move |(number, port)| ((port.protocol, number), (workload, port)))
    }));
    // `pod-waits-for-port/pod` reports workloads whose pods wait, so this rule needs the waiting pods.
    let waiting = if_requested(snapshot.cluster.waiting_pods.get()).err();
    let found = |evidence| match &waiting {
        Some(gap) => Verdict::Unknown(gap.clone()),
        None => Verdict::Problem(evidence),
    };
    let mut left = MOST_COMPARED;
    let judgement = |((protocol, number), claims): (Port, &[Claim<'_>])| {
        let verdict = match left.checked_sub(claims.len().saturating_mul(claims.len())) {
            None => Verdict::Unknown(too_many(number, protocol, claims.len())),
            Some(fewer) => {
                left = fewer;
                let in_conflict = in_conflict(claims, &with_pods);
                if in_conflict.is_empty() {
                    return None;
                }
                found(evidence(number, protocol, &in_conflict))
            }
        };
        Some(Judgement::on_port(Subject::cluster(), (protocol, number), verdict))
    };
    let alone = workloads().filter(|workload| !with_pods.has(workload));
    let alone = alone.filter_map(|it| against_itself(snapshot, it, found));
    Ok(by_port.ports().filter_map(judgement).chain(alone).collect())
}

/// Judges a workload that conflicts with itself. Either several of its pods want the same port, so each pod needs its
/// own node. Or each possible node has an old pod, and a rollout starts a new pod before an old pod ends.
fn against_itself(snapshot: &Snapshot, workload: &Workload, found: impl Fn(Evidence) -> Verdict) -> Option<Judgement> {
    let (number, port) = workload.node_ports().next()?;
    let (replicas, protocol) = (workload.replicas.unwrap_or(1), port.protocol);
    let nodes = if_requested(snapshot.cluster.nodes.get()).map(|nodes| nodes.map(Vec::len));
    let is_on_one = workload.selects.iter().any(|it| it.strip_prefix(ONE_HOST).is_some_and(|it| !it.contains(',')));
    let is_daemon_set = workload.kind == WorkloadKind::DaemonSet;
    let count = nodes.as_ref().ok().copied().flatten().and_then(|nodes| i64::try_from(nodes).ok());
    let too_few = count.filter(|nodes| *nodes < replicas);
    let old_pods = match replicas {
        _ if !workload.keeps_old_pods => None,
        _ if is_daemon_set => Some(", and on each node the old pod has".to_owned()),
        1 if is_on_one || matches!(nodes, Ok(Some(1)) | Err(_)) => {
            Some(". Only one node is possible, and on this node the old pod has".to_owned())
        }
        2.. if count == Some(replicas) => Some(format!(", and on each of the {replicas} nodes an old pod has")),
        _ => None,
    };
    let (severity, summary, advice) = match (old_pods, replicas) {
        (Some(old_pods), _) => {
            let strategy = if is_daemon_set { "" } else { "strategy `type: Recreate`, or " };
            (
                Severity::Warning,
                format!(
                    "A roll-out of {workload} keeps the old pod until the new pod is ready{old_pods} port {number}/{protocol}: the new pod waits forever."
                ),
                format!("make {workload} end the old pod first: {strategy}maxSurge 0 and maxUnavailable 1"),
            )
        }
        (None, ..=1) => return None,
        (None, _) => {
            let end = too_few.map(|nodes| format!(", and there are {nodes} nodes")).unwrap_or_default();
            let summary = format!(
                "{workload} wants {replicas} pods with port {number}/{protocol} of their node: only one of them runs on a node{end}."
            );
            let severity = if too_few.is_some() { Severity::Warning } else { Severity::Info };
            (
                severity,
                summary,
                format!("change {workload} to a DaemonSet, or remove the port of the node from its template"),
            )
        }
    };
    let mut evidence = Evidence::new(severity, summary)
        .in_cluster()
        .variant("replicas")
        .about([ClaimOf::pod_port(workload, number, protocol)])
        .remedy(Step::advice(advice));
    if !is_daemon_set {
        evidence = evidence.value("replicas", replicas);
    }
    let verdict = match nodes {
        // The severity depends on the number of nodes.
        Err(gap) if !is_daemon_set && (replicas > 1 || !is_on_one) => Verdict::Unknown(gap),
        _ => found(evidence),
    };
    Some(Judgement::on_port(Subject::cluster(), (protocol, number), verdict))
}

/// The first words of a selector for one node in [`Workload::selects`].
const ONE_HOST: &str = "kubernetes.io/hostname In ";

fn too_many(number: u16, protocol: Protocol, workloads: usize) -> Gap {
    let detail = format!("{workloads} workloads want hostPort {number}/{protocol}: too many to compare all pairs");
    Gap::new(Source::Pods, Why::TooMuch, detail)
}

/// The workloads that certainly want the same node as another workload in `claims`, sorted and without duplicates.
///
/// Two workloads with pods are left out: `pod-waits-for-port/pod` reports the pods that wait.
fn in_conflict<'a>(claims: &[Claim<'a>], with_pods: &WithPods<'_>) -> Vec<&'a Workload> {
    let meet = |one: &Workload, other: &Workload| {
        !is_same(one, other) && share_a_node(one, other) && !(with_pods.has(one) && with_pods.has(other))
    };
    // For each address, the workloads that want the port number on this address. The key `None` means every address.
    // Equal ports of one workload are next to each other.
    let mut by_address: HashMap<Option<IpAddr>, Vec<&Workload>> = HashMap::new();
    for (workload, port) in claims {
        let workloads = by_address.entry(port.host_ip.filter(|_| !is_for_every_address(port))).or_default();
        if !workloads.last().is_some_and(|last| is_same(last, workload)) {
            workloads.push(workload);
        }
    }
    let everywhere = by_address.remove(&None).unwrap_or_default();
    let mut all: Vec<&Workload> = by_address.values().flatten().chain(&everywhere).copied().collect();
    dedup(&mut all);
    let in_both = |some: &[&'a Workload], others: &[&Workload]| {
        let met = some.iter().copied().filter(|one| others.iter().any(|other| meet(one, other)));
        met.collect::<Vec<_>>()
    };
    let mut found = in_both(&all, &everywhere);
    found.extend(in_both(&everywhere, &all));
    found.extend(by_address.values().flat_map(|here| in_both(here, here)));
    dedup(&mut found);
    found
}

/// Whether pods of both workloads certainly want the same node: at least one workload is a DaemonSet, with a pod on
/// each of its nodes.
fn share_a_node(one: &Workload, other: &Workload) -> bool {
    let is_daemon_set = |workload: &Workload| workload.kind == WorkloadKind::DaemonSet;
    let narrow_in_wide = |narrow: &Workload, wide: &Workload| {
        is_everywhere(wide) && narrow.tolerates.iter().all(|taint| wide.tolerates.contains(taint))
    };
    let alike = (&one.selects, &one.avoids) == (&other.selects, &other.avoids);
    match (one.selects.is_empty(), other.selects.is_empty()) {
        _ if !is_daemon_set(one) && !is_daemon_set(other) => false,
        (true, true) => true,
        (false, false) => alike,
        (false, true) => narrow_in_wide(one, other),
        (true, false) => narrow_in_wide(other, one),
    }
}

fn dedup(workloads: &mut Vec<&Workload>) {
    workloads.sort_by_key(|it| (&it.namespace, &it.name, it.kind.name()));
    workloads.dedup_by(|one, other| is_same(one, other));
}

/// Whether two workloads are the same object. The input may contain an object twice.
fn is_same(one: &Workload, other: &Workload) -> bool {
    (one.kind, &one.namespace, &one.name) == (other.kind, &other.namespace, &other.name)
}

fn evidence(number: u16, protocol: Protocol, workloads: &[&Workload]) -> Evidence {
    let names = listed(workloads.iter());
    let sentence = format!("{names} want hostPort {number}/{protocol}: on one node, pods of only one of them run.");
    let fields = workloads.iter().map(|workload| ClaimOf::pod_port(workload, number, protocol));
    let how = |it: &Workload| if it.host_network { "in the host's network" } else { "as hostPort" };
    Evidence::new(Severity::Warning, sentence)
        .in_cluster()
        .about(fields)
        .list("wanted by", workloads.iter().map(|workload| format!("{workload} {}", how(workload))))
        .remedy(Step::advice(format!(
            "give each of them another port of the node than {number}/{protocol}, or nodeSelectors that select different nodes"
        )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        expectations::{expect_healthy, expect_problem, expect_unknown, wanting},
        findings::Scope,
    };
    use portreeve_facts::{
        Controller,
        healthy::{gap, ip, seen},
    };

    fn workload(kind: WorkloadKind, name: &str) -> Workload {
        wanting(8080, |it| (it.kind, it.name) = (kind, name.to_owned()))
    }

    fn two(change: impl FnOnce(&mut Workload)) -> Snapshot {
        let mut other = workload(WorkloadKind::DaemonSet, "other");
        change(&mut other);
        let mut world = Snapshot::healthy();
        world.cluster.workloads = [workload(WorkloadKind::DaemonSet, "agent"), other].map(Into::into).into();
        world
    }

    fn subject() -> Subject {
        Subject::cluster()
    }

    #[test]
    fn two_daemon_sets_with_one_host_port_are_one_problem_of_the_cluster() {
        let evidence = expect_problem(&RULE, &two(|_| ()), &subject());
        assert_eq!((evidence.severity, evidence.scope), (Severity::Warning, Scope::Cluster));
        assert_eq!(
            evidence.summary,
            "DaemonSet default/agent, DaemonSet default/other want hostPort 8080/tcp: on one node, pods of only one of \
             them run."
        );
        let host_network =
            |it: &mut Workload| (it.host_network, it.ports[0].port, it.ports[0].host_port) = (true, 8080, None);
        let evidence = expect_problem(&RULE, &two(host_network), &subject());
        assert!(evidence.values.contains(&("wanted by", "DaemonSet default/other in the host's network".to_owned())));
        expect_problem(&RULE, &two(|it| it.kind = WorkloadKind::Deployment), &subject());
        expect_problem(&RULE, &two(|it| it.ports[0].host_ip = Some(ip("192.0.2.1"))), &subject());
    }

    #[test]
    fn so_many_that_they_cannot_be_compared_hide_nothing_of_another_port() {
        let many = |number: usize, port: u16| {
            (0..number).map(move |index| {
                let mut it = workload(WorkloadKind::DaemonSet, &format!("d{port}-{index}"));
                (it.ports[0].host_port, it.selects) = (Some(port), vec![format!("pool In {}", index / 2)]);
                it.into()
            })
        };
        let mut world = Snapshot::healthy();
        world.cluster.workloads = many(2100, 8080).chain(many(4, 8081)).chain(many(4, 80)).collect();
        let judged = check(&Round::of(&world, None, 60), &Limits::default()).expect("judged");
        let problem = |port| judged.iter().any(|it| it.port == Some(port) && matches!(it.verdict, Verdict::Problem(_)));
        assert!(problem(80) && problem(8081));
        let unknown = judged.iter().find(|it| it.port == Some(8080)).expect("a judgement");
        assert!(matches!(&unknown.verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch), "{unknown:?}");
    }

    #[test]
    fn what_may_run_apart_is_silent() {
        let changes: [fn(&mut Workload); 5] = [
            // The second DaemonSet tolerates a taint, so perhaps it runs only on nodes without pods of the first
            // DaemonSet.
            |it| (it.selects, it.tolerates) = (vec!["pool In a".to_owned()], vec!["pool Equal a".to_owned()]),
            |it| it.ports[0].host_port = Some(8081),
            |it| it.ports[0].protocol = Protocol::Udp,
            |it| (it.ports[0].port, it.ports[0].host_port) = (8080, None),
            // The input contains one DaemonSet twice.
            |it| it.name = "agent".to_owned(),
        ];
        for change in changes {
            expect_healthy(&RULE, &two(change), &subject());
        }
        let addresses = two(|it| it.ports[0].host_ip = Some(ip("192.0.2.1")));
        let apart = |mut world: Snapshot| {
            let mut first = Workload::clone(&world.cluster.workloads[0]);
            first.ports[0].host_ip = Some(ip("192.0.2.2"));
            world.cluster.workloads[0] = first.into();
            world
        };
        expect_healthy(&RULE, &apart(addresses), &subject());
        let mut deployments = two(|it| it.kind = WorkloadKind::Deployment);
        deployments.cluster.workloads[0] = workload(WorkloadKind::StatefulSet, "agent").into();
        expect_healthy(&RULE, &deployments, &subject());
    }

    #[test]
    fn what_both_are_meant_for_is_where_they_meet() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let both = |change: fn(&mut Workload), other: &dyn Fn(&mut Workload)| {
            let mut world = two(|it| other(it));
            change(std::sync::Arc::make_mut(&mut world.cluster.workloads[0]));
            world
        };
        let ingress = |it: &mut Workload| it.selects = vec!["ingress In true".to_owned()];
        let fargate = |it: &mut Workload| it.avoids = vec!["type NotIn fargate".to_owned()];
        let meets = |world: &Snapshot| expect_problem(&RULE, world, &subject());
        let apart = |world: &Snapshot| expect_healthy(&RULE, world, &subject());
        meets(&both(ingress, &ingress));
        meets(&both(ingress, &|_| ()));
        meets(&both(fargate, &fargate));
        meets(&both(fargate, &|_| ()));
        apart(&both(ingress, &|it| it.selects = texts(&["pool In a"])));
        apart(&both(ingress, &fargate));
        apart(&both(fargate, &|it| it.selects = texts(&["type In fargate"])));
        apart(&both(ingress, &|it| it.kind = WorkloadKind::Deployment));
        meets(&both(ingress, &|it| (it.kind, it.selects) = (WorkloadKind::Deployment, texts(&["ingress In true"]))));
        meets(&both(|_| (), &|it| (it.kind, it.selects) = (WorkloadKind::Deployment, texts(&["ingress In true"]))));
    }

    #[test]
    fn several_pods_of_one_workload_do_not_run_on_one_node() {
        let of = |replicas| {
            let mut world = Snapshot::healthy();
            let workload = Workload { replicas, ..workload(WorkloadKind::Deployment, "web") };
            world.cluster.workloads.push(workload.into());
            world
        };
        let evidence = expect_problem(&RULE, &of(Some(2)), &subject());
        assert_eq!((evidence.severity, evidence.variant), (Severity::Info, "replicas"), "there are two nodes");
        let evidence = expect_problem(&RULE, &of(Some(3)), &subject());
        assert_eq!(
            evidence.summary,
            "Deployment default/web wants 3 pods with port 8080/tcp of their node: only one of them runs on a node, and \
             there are 2 nodes."
        );
        assert_eq!(evidence.severity, Severity::Warning);
        let mut unread = of(Some(3));
        unread.cluster.nodes = gap(Source::Nodes, Why::NotRequested);
        assert_eq!(expect_problem(&RULE, &unread, &subject()).severity, Severity::Info);
        unread.cluster.nodes = gap(Source::Nodes, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &unread, &subject()).source, Source::Nodes, "they may be too few");
        for replicas in [None, Some(1)] {
            expect_healthy(&RULE, &of(replicas), &subject());
        }
        let of_set = |name: &str| Some(Controller { kind: "ReplicaSet".to_owned(), name: name.to_owned() });
        let there = of(Some(3)).pod("web-1", |pod| pod.controller = of_set("web-7d9"));
        expect_healthy(&RULE, &there, &subject());
    }

    #[test]
    fn a_roll_out_that_keeps_the_old_pod_waits_for_its_own_port() {
        let of = |nodes: usize, change: fn(&mut Workload)| {
            let mut web = workload(WorkloadKind::Deployment, "web");
            (web.replicas, web.keeps_old_pods) = (Some(1), true);
            change(&mut web);
            let mut world = Snapshot::healthy();
            seen(&mut world.cluster.nodes).truncate(nodes);
            world.cluster.workloads.push(web.into());
            world
        };
        let one_host = |it: &mut Workload| it.selects = vec!["kubernetes.io/hostname In n1".to_owned()];
        for world in [of(1, |_| ()), of(2, one_host), of(1, |it| it.replicas = None)] {
            let evidence = expect_problem(&RULE, &world, &subject());
            assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "replicas"));
            assert!(evidence.summary.ends_with("the new pod waits forever."), "{evidence:?}");
            assert!(evidence.remedies[0].steps[0].text.contains("type: Recreate"), "{evidence:?}");
        }
        let mut unread = of(2, |_| ());
        unread.cluster.nodes = gap(Source::Nodes, Why::NotRequested);
        let two_hosts = of(2, |it| it.selects = vec!["kubernetes.io/hostname In n1,n2".to_owned()]);
        // The pod may run on another node.
        for world in [unread, two_hosts] {
            expect_healthy(&RULE, &world, &subject());
        }
        expect_healthy(&RULE, &of(2, |_| ()), &subject());
        expect_healthy(&RULE, &of(1, |it| it.keeps_old_pods = false), &subject());
        expect_healthy(&RULE, &of(1, |it| it.ports.clear()), &subject());
        let of_set = Some(Controller { kind: "ReplicaSet".to_owned(), name: "web-7d9".to_owned() });
        expect_healthy(&RULE, &of(1, |_| ()).pod("web-1", |pod| pod.controller = of_set), &subject());
        let evidence = expect_problem(&RULE, &of(2, |it| it.replicas = Some(2)), &subject());
        assert_eq!(evidence.severity, Severity::Warning);
        assert!(evidence.summary.contains("on each of the 2 nodes an old pod has port 8080/tcp"), "{evidence:?}");
        let info = of(2, |it| (it.replicas, it.keeps_old_pods) = (Some(2), false));
        assert_eq!(expect_problem(&RULE, &info, &subject()).severity, Severity::Info);
    }

    #[test]
    fn a_roll_out_of_a_daemon_set_that_keeps_the_old_pod_waits_on_each_node() {
        let of = |keeps_old_pods: bool| {
            let mut world = Snapshot::healthy();
            let agent = Workload { keeps_old_pods, ..workload(WorkloadKind::DaemonSet, "agent") };
            world.cluster.workloads.push(agent.into());
            world
        };
        let mut unread = of(true);
        unread.cluster.nodes = gap(Source::Nodes, Why::Unreachable);
        for world in [of(true), unread] {
            let evidence = expect_problem(&RULE, &world, &subject());
            assert_eq!((evidence.severity, evidence.variant), (Severity::Warning, "replicas"));
            assert!(evidence.summary.contains("on each node the old pod has port 8080/tcp"), "{evidence:?}");
            assert!(!evidence.values.iter().any(|(name, _)| *name == "replicas"), "{evidence:?}");
            let advice = "make DaemonSet default/agent end the old pod first: maxSurge 0 and maxUnavailable 1";
            assert_eq!(evidence.remedies[0].steps[0].text, advice);
        }
        expect_healthy(&RULE, &of(false), &subject());
    }

    #[test]
    fn pods_that_could_not_be_read_may_be_there_and_those_that_nobody_gave_are_not() {
        let without = |why| {
            let mut world = two(|_| ());
            world.cluster.pods = gap(Source::Pods, why);
            world
        };
        assert_eq!(expect_unknown(&RULE, &without(Why::Unreachable), &subject()).source, Source::Pods);
        expect_problem(&RULE, &without(Why::NotRequested), &subject());
    }

    #[test]
    fn pods_that_wait_and_could_not_be_read_may_be_another_rules() {
        let mut world = two(|_| ());
        world.cluster.waiting_pods = gap(Source::WaitingPods, Why::NotRequested);
        expect_problem(&RULE, &world, &subject());
        world.cluster.waiting_pods = gap(Source::WaitingPods, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &subject()).source, Source::WaitingPods);
        let mut none = Snapshot::healthy();
        none.cluster.waiting_pods = world.cluster.waiting_pods;
        expect_healthy(&RULE, &none, &subject());
    }

    #[test]
    fn where_pods_are_there_another_rule_judges_them() {
        let of = |name: &str| Some(Controller { kind: "DaemonSet".to_owned(), name: name.to_owned() });
        let running = two(|_| ()).pod("agent-1", |pod| pod.controller = of("agent"));
        expect_problem(&RULE, &running, &subject());
        let both = running.pod("other-1", |pod| pod.controller = of("other"));
        expect_healthy(&RULE, &both, &subject());
        expect_problem(&RULE, &two(|_| ()).pod("third-1", |pod| pod.controller = of("third")), &subject());
    }
}
