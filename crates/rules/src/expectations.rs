//! Assertions for tests of rules: a problem, no problem, or an unknown result.

use std::sync::Arc;

use super::{Limits, Round, Rule, endpoints_needed, ids::can_be_of_objects, reservation::FEWEST_LEFT, skipped};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Scope, Step, StepKind, Subject, SubjectKind, Verdict};
use portreeve_facts::{
    ContainerPort, Gap, PortRange, PortSet, Protocol, Reading, Snapshot, Source, Why, Workload, WorkloadKind,
};

/// Runs a rule twice: with all facts, and with only the facts and endpoints that are read for this rule. The results
/// must be equal.
#[track_caller]
fn ask(rule: &Rule, snapshot: &Snapshot) -> Judgements {
    let judge = |snapshot| rule.judge(&Round::of(snapshot, None, 60), &Limits::default());
    let mut narrow = snapshot.clone();
    let names = endpoints_needed(snapshot);
    if let Reading::Seen(slices) = &mut narrow.cluster.endpoint_slices {
        slices.retain(|slice| names.contains(&slice.service));
        narrow.cluster.endpoints_of = Some(Arc::new(names));
    }
    skipped(&[rule]).into_iter().for_each(|source| blank(&mut narrow, source));
    let judgements = judge(snapshot);
    for judgement in judgements.iter().flatten() {
        let is_object = judgement.subject.kind.is_object();
        assert!(!is_object || can_be_of_objects(rule.name().0, rule.variants), "{}: no object", rule.rows());
        if let Verdict::Problem(evidence) = &judgement.verdict {
            evidence.remedies.iter().for_each(|remedy| assert_sound(snapshot, remedy));
            let variant = rule.variants.iter().find(|it| **it == evidence.variant).and_then(|it| rule.id.variant(it));
            let variant = variant.unwrap_or_else(|| panic!("{}: no variant {:?}", rule.rows(), evidence.variant));
            assert!(
                variant.severities.iter().chain(variant.in_manifests).any(|it| *it == evidence.severity),
                "{}/{}: {}",
                rule.name(),
                variant.name,
                evidence.severity
            );
            assert!(variant.of_objects || !is_object, "{}/{}: {}", rule.name(), variant.name, judgement.subject);
            let is_placed = !evidence.about.is_empty() || !evidence.beside.is_empty();
            assert!(
                !variant.never_in_manifests || !is_placed,
                "{}/{}: lint would report it",
                rule.name(),
                variant.name
            );
            let is_cluster = judgement.subject.kind == SubjectKind::Node && evidence.scope == Scope::Cluster;
            assert!(!is_cluster, "{}: no other node reports what is about a Node", rule.rows());
        }
    }
    assert_eq!(
        judge(&narrow),
        judgements,
        "{} used a fact outside its `needs` and `uses`, which an agent or `--rule` may not read",
        rule.rows()
    );
    judgements
}

const PROGRAMS: [&str; 11] =
    ["kubectl", "sysctl", "echo", "ip", "ss", "nft", "ipvsadm", "iptables-save", "kube-proxy", "systemctl", "crictl"];

#[track_caller]
fn assert_leaves_ports(snapshot: &Snapshot, command: &str) {
    let Some(list) = command.strip_prefix("sysctl -w net.ipv4.ip_local_reserved_ports=") else { return };
    let reserved: PortSet = list.trim_matches('"').parse().expect("a list");
    let range = snapshot.kernel.sysctls.ip_local_port_range.seen().copied().unwrap_or(PortRange::DEFAULT_EPHEMERAL);
    let choosable = PortSet::from(range);
    let left = choosable.minus(&reserved).len();
    assert!(left >= FEWEST_LEFT.min(choosable.len() * 9 / 10), "{left} ports are left: {command}");
}

/// Fails if a command does not begin with a known program, or if advice is not a sentence. `tests/anywhere` runs the
/// commands in a shell.
#[track_caller]
fn assert_sound(snapshot: &Snapshot, remedy: &Remedy) {
    assert!(!remedy.steps.is_empty(), "nothing to do");
    for Step { kind, text, .. } in &remedy.steps {
        match kind {
            StepKind::Command => {
                assert!(PROGRAMS.iter().any(|program| text.starts_with(&format!("{program} "))), "no command: {text}");
                assert_leaves_ports(snapshot, text);
                assert!(!text.contains(['\n', '<']) && !text.ends_with([',', ':']), "words in a command: {text}");
            }
            StepKind::Advice => {
                let words: Vec<&str> = text.split(' ').collect();
                let joins = [words.first(), words.last()].into_iter().flatten().any(|it| ["or", "then"].contains(it));
                assert!(!joins && !text.ends_with([',', ':', ';']), "half a sentence: {text}");
                let program = words.first().is_some_and(|first| PROGRAMS.contains(first));
                assert!(!program, "a command that is called advice: {text}");
            }
        }
    }
}

/// The evidence about a subject, merged from all judgements about this subject. Fails if there is no judgement of a
/// problem.
#[track_caller]
pub fn expect_problem(rule: &Rule, snapshot: &Snapshot, subject: &Subject) -> Evidence {
    let judgements = ask(rule, snapshot).expect("the rule can judge");
    let problems = judgements.iter().filter(|judgement| judgement.subject == *subject).filter_map(|judgement| {
        match &judgement.verdict {
            Verdict::Problem(evidence) => Some(evidence.clone()),
            _ => None,
        }
    });
    problems.reduce(Evidence::merge).unwrap_or_else(|| panic!("no problem of {subject} in {judgements:#?}"))
}

/// Fails if a judgement about a subject is unknown.
#[track_caller]
pub fn expect_certain(rule: &Rule, snapshot: &Snapshot, subject: &Subject) {
    let judgements = ask(rule, snapshot).expect("the rule can judge");
    let unknown = |it: &&Judgement| it.subject == *subject && matches!(it.verdict, Verdict::Unknown(_));
    let unknown = judgements.iter().find(unknown);
    assert!(unknown.is_none(), "{subject} is known: {unknown:#?}");
}

/// Fails if a judgement about a subject is a problem or unknown.
#[track_caller]
pub fn expect_healthy(rule: &Rule, snapshot: &Snapshot, subject: &Subject) {
    let judgements = ask(rule, snapshot).expect("the rule can judge");
    let wrong = judgements
        .iter()
        .find(|judgement| judgement.subject == *subject && !matches!(judgement.verdict, Verdict::Healthy));
    assert!(wrong.is_none(), "{subject} should be healthy: {wrong:#?}");
}

/// The reason why a rule cannot judge a subject, or cannot judge at all. Fails if the rule can judge.
#[track_caller]
pub fn expect_unknown(rule: &Rule, snapshot: &Snapshot, subject: &Subject) -> Gap {
    let judgements = match ask(rule, snapshot) {
        Err(gap) => return gap,
        Ok(judgements) => judgements,
    };
    let gap =
        judgements.iter().filter(|judgement| judgement.subject == *subject).find_map(|judgement| {
            match &judgement.verdict {
                Verdict::Unknown(gap) => Some(gap.clone()),
                _ => None,
            }
        });
    gap.unwrap_or_else(|| panic!("nothing unknown about {subject} in {judgements:#?}"))
}

pub(super) fn wanting(number: u16, change: impl FnOnce(&mut Workload)) -> Workload {
    let port = ContainerPort { port: 80, host_port: Some(number), host_ip: None, protocol: Protocol::Tcp };
    let mut workload = Workload {
        kind: WorkloadKind::DaemonSet,
        namespace: "default".to_owned(),
        name: "agent".to_owned(),
        replicas: None,
        keeps_old_pods: false,
        probed: Vec::new(),
        host_network: false,
        selects: Vec::new(),
        avoids: Vec::new(),
        tolerates: Vec::new(),
        ports: vec![port],
    };
    change(&mut workload);
    workload
}

pub(super) fn blank(world: &mut Snapshot, source: Source) {
    fn gap<T>(reading: &mut Reading<T>, source: Source) {
        *reading = Reading::Gap(Gap::new(source, Why::NotPermitted, "so the test says"));
    }
    let (kernel, cluster) = (&mut world.kernel, &mut world.cluster);
    match source {
        Source::Listeners => gap(&mut kernel.listeners, source),
        Source::Clients => gap(&mut kernel.clients, source),
        Source::EphemeralUse => gap(&mut kernel.ephemeral, source),
        Source::Sockstat => gap(&mut kernel.sockstat, source),
        Source::Sysctls => {
            gap(&mut kernel.sysctls.ip_local_port_range, source);
            gap(&mut kernel.sysctls.ip_local_reserved_ports, source);
        }
        Source::Addresses => gap(&mut kernel.interfaces, source),
        Source::ResolvConf => gap(&mut kernel.nameservers, source),
        Source::ProxyMode => gap(&mut kernel.proxy.mode, source),
        Source::ProxyConfig => gap(&mut kernel.proxy.config, source),
        Source::ProxyMetrics => gap(&mut kernel.proxy.metrics, source),
        Source::ProxyProcess => gap(&mut kernel.proxy.fds, source),
        Source::IpVs => gap(&mut kernel.ip_vs, source),
        Source::IpVsConn => gap(&mut kernel.ip_vs_connections, source),
        Source::Conntrack => {
            gap(&mut kernel.masquerade, source);
            gap(&mut kernel.masquerade_pools, source);
        }
        Source::Netfilter => gap(&mut kernel.netfilter, source),
        Source::PodNamespaces => gap(&mut kernel.pod_namespaces, source),
        Source::HealthChecks => gap(&mut kernel.health_checks, source),
        Source::Services => gap(&mut cluster.services, source),
        Source::EndpointSlices => gap(&mut cluster.endpoint_slices, source),
        Source::Pods => gap(&mut cluster.pods, source),
        Source::WaitingPods => gap(&mut cluster.waiting_pods, source),
        Source::Nodes => gap(&mut cluster.nodes, source),
        Source::NodePortRange => gap(&mut cluster.node_port_range, source),
        Source::OwnPort => gap(&mut world.own_port, source),
        Source::Processes | Source::Cgroups | Source::ConfigMaps | Source::Agent => {
            panic!("{source:?} is reported per socket, object or node, so no rule can need it as a whole")
        }
    }
}
