//! A remedy ends its problem and makes no new problem. The test applies the changes of the remedy to the snapshot, and
//! judges the snapshot again.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use portreeve_dataplane::{Own, Proxy};
use portreeve_facts::{HealthCheckAnswer, IPVS_LINKS, Interfaces, Mode, PortSet, Reading, Service, Snapshot};
use portreeve_rules::{
    FreePorts,
    findings::{Effect, Finding, PodRef, Remedy, ServiceRef, Severity, Step, StepKind},
    ledger::Board,
};

use crate::every_node::{board, one_of_each_plane, pair, reported_by, severities, small};

/// The first words of advice that this test skips. Some of the advice changes no fact that a rule judges. The effect of
/// the remedy's command includes the result of the other advice.
const BESIDE: [&str; 5] = [
    "to refuse new external IPs",
    "if Antrea serves NodePortLocal",
    "make sure that no other program",
    "if the command ends with an error",
    "restart kube-proxy: the rules of its current mode",
];

fn is_whole(remedy: &Remedy) -> bool {
    let is_done = |step: &Step| match step.kind {
        StepKind::Advice => step.effect().is_some() || BESIDE.iter().any(|it| step.text.starts_with(it)),
        StepKind::Command => step.effect().is_some() || step.text.starts_with("echo '"),
    };
    remedy.steps.iter().any(|step| step.effect().is_some()) && remedy.steps.iter().all(is_done)
}

fn services(snapshot: &mut Snapshot) -> &mut [Arc<Service>] {
    match &mut snapshot.cluster.services {
        Reading::Seen(services) => services,
        Reading::Gap(_) => &mut [],
    }
}

/// Changes all copies of a Service, because a file may contain the Service twice.
fn change(snapshot: &mut Snapshot, (namespace, name): &ServiceRef, change: impl Fn(&mut Service)) {
    let of_name = services(snapshot).iter_mut().filter(|it| (&it.namespace, &it.name) == (namespace, name));
    of_name.for_each(|service| change(Arc::make_mut(service)));
}

fn interfaces(snapshot: &mut Snapshot, change: impl Fn(&mut Interfaces)) {
    if let Reading::Seen(interfaces) = &mut snapshot.kernel.interfaces {
        change(Arc::make_mut(interfaces));
    }
}

/// Applies a change of a remedy to the snapshot, and also the proxy's reaction to the change.
fn apply(snapshot: &mut Snapshot, effect: &Effect) {
    match effect {
        Effect::Reserve(ports) => snapshot.kernel.sysctls.ip_local_reserved_ports = Reading::Seen(ports.clone()),
        Effect::ChooseFrom(range) => snapshot.kernel.sysctls.ip_local_port_range = Reading::Seen(*range),
        Effect::ChooseInPod(pod, range, reserved) => {
            let pods = match &mut snapshot.cluster.pods {
                Reading::Seen(pods) => pods.as_mut_slice(),
                Reading::Gap(_) => &mut [],
            };
            for pod in pods.iter_mut().filter(|it| (&it.namespace, &it.name) == (&pod.0, &pod.1)).map(Arc::make_mut) {
                pod.ip_local_port_range = range.or(pod.ip_local_port_range);
                pod.ip_local_reserved_ports = Some(reserved.clone());
            }
        }
        Effect::MoveService(service, port, numbers) => move_service(snapshot, service, *port, *numbers),
        Effect::Release(service, ip) => {
            change(snapshot, service, |it| it.external_ips.retain(|its| its != ip));
            let is_left = |it: &Arc<Service>| it.external_ips.contains(ip) || it.load_balancer_ips.contains(ip);
            if !services(snapshot).iter().any(is_left) {
                interfaces(snapshot, |it| it.addresses.retain(|its| its.ip != *ip || !its.is_ipvs()));
            }
        }
        Effect::AnswerWithPodsOnly(service, local) => {
            let number = FreePorts::of(snapshot).ports().last().filter(|_| *local);
            change(snapshot, service, |it| {
                it.external_local = *local;
                it.health_check_node_port = number;
            });
            if let (Some(port), Reading::Seen(answers)) = (number, &mut snapshot.kernel.health_checks) {
                let names = Reading::Seen(Some(format!("{}/{}", service.0, service.1)));
                answers.push(HealthCheckAnswer { port, service: names });
            }
        }
        Effect::DeleteAddress(ip, link) => {
            interfaces(snapshot, |it| it.addresses.retain(|its| its.ip != *ip || *its.link != **link));
        }
        Effect::DeleteRule(chain, handle) => {
            if let Reading::Seen(netfilter) = &mut snapshot.kernel.netfilter
                && let Reading::Seen(redirections) = &mut netfilter.redirections
            {
                redirections.retain(|it| (&it.chain, it.handle) != (chain, *handle));
            }
        }
        Effect::CleanUp(mode) => clean_up(snapshot, *mode),
    }
}

fn move_service(snapshot: &mut Snapshot, service: &ServiceRef, port: u16, [from, to]: [u16; 2]) {
    let proxys: BTreeSet<u64> = {
        let proxy = Proxy::of(snapshot);
        let sockets = snapshot.kernel.listeners.seen().into_iter().flatten();
        let held = sockets.filter(|it| it.local_port == from && proxy.owns(it) == Own::Yes);
        held.map(|socket| socket.inode).collect()
    };
    change(snapshot, service, |it| {
        let its = it.ports.iter_mut().filter(|it| (it.port, it.node_port) == (port, Some(from)));
        its.for_each(|it| it.node_port = Some(to));
    });
    if let Reading::Seen(sockets) = &mut snapshot.kernel.listeners {
        let its = sockets.iter_mut().filter(|it| it.local_port == from && proxys.contains(&it.inode));
        its.for_each(|socket| socket.local_port = to);
    }
    let is_node_port = |it: &IpAddr, addresses: &[IpAddr]| addresses.contains(it);
    let addresses: Vec<IpAddr> =
        snapshot.kernel.interfaces.seen().into_iter().flat_map(|it| &it.addresses).map(|it| it.ip).collect();
    if let Reading::Seen(servers) = &mut snapshot.kernel.ip_vs {
        let its = servers.iter_mut().filter(|it| it.port == from && is_node_port(&it.ip, &addresses));
        its.for_each(|server| server.port = to);
    }
}

/// Chains that kube-proxy makes only in ipvs mode.
const OF_IPVS: [&str; 4] = [" KUBE-NODE-PORT", " KUBE-LOAD-BALANCER", " KUBE-IPVS-FILTER", " KUBE-IPVS-OUT-FILTER"];

/// Removes rules of kube-proxy: the rules of `mode`, even if `mode` is the present mode. Without `mode`, removes the
/// rules of all modes except the present mode.
fn clean_up(snapshot: &mut Snapshot, mode: Option<Mode>) {
    let present = snapshot.proxy_mode().ok().map(|it| it.value);
    let goes = |of: Mode| mode.map_or(present != Some(of), |mode| mode == of);
    if let Reading::Seen(netfilter) = &mut snapshot.kernel.netfilter {
        if goes(Mode::Nftables) {
            netfilter.tables.retain(|it| !it.ends_with(" kube-proxy"));
        }
        let stays = |chain: &String| match present {
            Some(Mode::Iptables) => !OF_IPVS.iter().any(|it| chain.ends_with(it)),
            Some(Mode::Ipvs) => OF_IPVS.iter().any(|it| chain.ends_with(it)),
            _ => false,
        };
        if mode.is_none() {
            netfilter.chains.retain(stays);
        }
    }
    if goes(Mode::Ipvs) {
        if let Reading::Seen(servers) = &mut snapshot.kernel.ip_vs {
            servers.clear();
        }
        interfaces(snapshot, |it| {
            it.links.retain(|link| !IPVS_LINKS.contains(&&*link.name));
            it.addresses.retain(|address| !address.is_ipvs());
        });
    }
}

/// The ports of a pod's servers that the kernel may also choose for the pod's connections.
fn of_its_servers<'a>(snapshot: &'a Snapshot, (namespace, name): &PodRef) -> impl Iterator<Item = u16> + use<'a> {
    let pods = snapshot.cluster.pods.seen().into_iter().flatten();
    let pod = pods.into_iter().find(|it| (&it.namespace, &it.name) == (namespace, name)).expect("the pod");
    let namespaces = snapshot.kernel.pod_namespaces.seen().into_iter().flatten();
    let own = namespaces.filter(|it| pod.uids_of_cgroups().any(|uid| uid == it.pod_uid));
    let ports =
        own.flat_map(|it| it.listening.iter().flat_map(PortSet::iter)).chain(pod.own_ports.iter().map(|it| it.port));
    let choosable = pod.ephemeral_ports();
    ports.filter(move |port| choosable.contains(*port))
}

/// The errors of a remedy: problems that remain or appear after the remedy.
fn wrong(snapshot: &Snapshot, before: &Board, finding: &Finding, remedy: &Remedy) -> Vec<String> {
    let with_all = severities(&before.findings);
    let mut then = snapshot.clone();
    let mut wrong = Vec::new();
    for effect in remedy.steps.iter().filter_map(Step::effect) {
        if let (Effect::Reserve(ports), Some(reserved)) = (effect, then.kernel.sysctls.ip_local_reserved_ports.seen()) {
            let lost = reserved.minus(ports);
            if !lost.is_empty() {
                wrong.push(format!("forgets that {lost} is reserved"));
            }
        }
        apply(&mut then, effect);
        if let Effect::ChooseInPod(pod, ..) = effect {
            wrong.extend(of_its_servers(&then, pod).map(|port| format!("gives connections port {port} of {pod:?}")));
        }
    }
    let after = severities(&board(&then).findings);
    let (own, severity) = (pair(&finding.key), finding.evidence.severity);
    if is_whole(remedy) && after.contains_key(&own) {
        wrong.push(format!("leaves it as {:?}", after[&own]));
    }
    // A remedy may reveal a hidden finding of severity info, for example a listener on a port without a Service.
    let counts = severity.max(Severity::Warning);
    for (other, its) in after.iter().filter(|(other, its)| **its >= counts && **other != own) {
        // A problem may appear because its result was unknown before the remedy.
        let was_hidden = before.unknown.iter().any(|it| {
            let rule = reported_by(it.rows.rule, it.rows.variants[0]);
            it.subject.as_ref().is_some_and(|subject| other.starts_with(&format!("{rule} {subject} ")))
        });
        if with_all.get(other) < Some(its) && !was_hidden {
            wrong.push(format!("brings {its:?} {other}"));
        }
    }
    wrong.iter().map(|it| format!("{severity:?} {own}: {it}: {:?}", texts(remedy))).collect()
}

fn texts(remedy: &Remedy) -> Vec<&str> {
    remedy.steps.iter().map(|step| step.text.as_str()).collect()
}

/// The errors of a node's remedies, and each rule's number of tested remedies. If several findings have the same rule
/// and outcome, the function tests only the first two.
pub(crate) fn wrong_remedies(snapshot: &Snapshot, board: &Board) -> (Vec<String>, BTreeMap<&'static str, usize>) {
    const ALIKE: usize = 2;
    let (mut complaints, mut applied, mut alike) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for finding in &board.findings {
        let seen: &mut usize = alike.entry((finding.key.rule, finding.evidence.outcome)).or_default();
        *seen += 1;
        if *seen > ALIKE {
            continue;
        }
        for remedy in finding.evidence.remedies.iter().filter(|it| it.steps.iter().any(|it| it.effect().is_some())) {
            *applied.entry(finding.key.rule.0).or_default() += 1;
            complaints.extend(wrong(snapshot, board, finding, remedy));
        }
    }
    (complaints, applied)
}

/// Two kinds of errors in remedies: a number that remedies give to two Services, and a nodePort that remedies change to
/// two different numbers.
pub(crate) fn numbers_told_twice(board: &Board) -> Vec<String> {
    let remedies = board.findings.iter().flat_map(|it| &it.evidence.remedies);
    let moves: BTreeSet<(&ServiceRef, u16, [u16; 2])> = remedies
        .flat_map(|it| it.steps.iter().filter_map(Step::effect))
        .filter_map(|effect| match effect {
            Effect::MoveService(service, port, numbers) => Some((service, *port, *numbers)),
            _ => None,
        })
        .collect();
    let twice = |(place, one): (usize, &(&ServiceRef, u16, [u16; 2]))| {
        let mut others = moves.iter().skip(place + 1);
        let is_same = |it: &(&ServiceRef, u16, [u16; 2])| (it.0, it.1, it.2[0]) == (one.0, one.1, one.2[0]);
        let other = others.find(|it| it.2[1] == one.2[1] || is_same(it))?;
        Some(format!("{one:?} and {other:?}"))
    };
    moves.iter().enumerate().filter_map(twice).collect()
}

/// The same node, with a reserved port that no rule needs.
fn reserving(mut snapshot: Snapshot) -> Snapshot {
    if let Reading::Seen(reserved) = &mut snapshot.kernel.sysctls.ip_local_reserved_ports {
        *reserved = reserved.union(&[2_703].into_iter().collect());
    }
    snapshot
}

#[test]
fn a_remedy_ends_its_problem_and_makes_no_other_one() {
    let (mut complaints, mut applied) = (Vec::new(), BTreeMap::new());
    let reserving = small().into_iter().map(|(name, snapshot)| (name, reserving(snapshot)));
    for (name, snapshot) in small().into_iter().chain(reserving).chain(one_of_each_plane()) {
        let (wrong, of_rules) = wrong_remedies(&snapshot, &board(&snapshot));
        complaints.extend(wrong.into_iter().map(|it| format!("{name}: {it}")));
        of_rules.into_iter().for_each(|(rule, count)| *applied.entry(rule).or_default() += count);
    }
    assert!(complaints.is_empty(), "{}\n{}\n{applied:?}", complaints.len(), complaints.join("\n"));
    let all: usize = applied.values().sum();
    assert!(all >= 100 && applied.len() >= 10, "{applied:?}");
}

#[test]
fn one_report_hands_out_no_number_twice() {
    let mut numbers = 0;
    for (name, snapshot) in small().into_iter().chain(one_of_each_plane()) {
        let board = board(&snapshot);
        assert_eq!(numbers_told_twice(&board), [""; 0], "{name}");
        let remedies = board.findings.iter().flat_map(|it| &it.evidence.remedies);
        let effects = remedies.flat_map(|it| it.steps.iter().filter_map(Step::effect));
        numbers += effects.filter(|it| matches!(it, Effect::MoveService(..))).count();
    }
    assert!(numbers >= 100, "{numbers} numbers");
}
