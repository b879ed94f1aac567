//! Connections to one destination use most of the local ports.

use std::net::SocketAddr;

use super::{
    Limits, Round, Rule,
    ephemeral::effective_ephemeral,
    ids,
    needed_ports::NeededPorts,
    node_ports::ports_in_words,
    remedies::{LAST_BY_DEFAULT, choose_from, choose_in_pod},
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{owner_evidence, pod_of_uid};
use portreeve_facts::{
    DestinationUse, EphemeralUse, Extent, Gap, Pod, PodNamespace, PortRange, PortSet, Reading, Snapshot, Source,
    Unread, Why,
};

/// The value of `net.ipv4.tcp_tw_reuse` that lets connections to every destination reuse ports in TIME_WAIT.
const REUSE: u8 = 1;
/// The value that lets only connections on loopback reuse ports: the default of a network namespace.
const REUSE_ON_LOOPBACK: u8 = 2;

pub(super) static RULE: Rule =
    Rule::of(&ids::EPHEMERAL_PORTS_NEAR_EXHAUSTION, &["node", "pod"], &[Source::EphemeralUse, Source::Sysctls], check)
        .uses(&[Source::Sockstat, Source::PodNamespaces]);

fn check(round: &Round<'_>, limits: &Limits) -> Judgements {
    let snapshot = round.now;
    let used = snapshot.kernel.ephemeral.get()?;
    let sysctls = &snapshot.kernel.sysctls;
    let ports = Ports {
        set: effective_ephemeral(snapshot)?,
        range: sysctls.ip_local_port_range.get()?.to_string(),
        reserved: ports_in_words(sysctls.ip_local_reserved_ports.get()?),
        assumed: false,
        tw_reuse: sysctls.tcp_tw_reuse.get().copied(),
    };
    let verdict = judge(snapshot, limits, used, &ports, Whose::Node);
    let host = Judgement::of(Subject::this_node(snapshot), verdict);
    Ok(std::iter::once(host).chain(pods(snapshot, limits)).collect())
}

/// The judgements of all pods. If network namespaces were not read, each result is unknown.
fn pods(snapshot: &Snapshot, limits: &Limits) -> Vec<Judgement> {
    let unknown = |subject, gap| Judgement::of(subject, Verdict::Unknown(gap));
    let pods = match &snapshot.cluster.pods {
        Reading::Seen(pods) => pods,
        // If Pods were not read, the owner of a network namespace has no name. If Pods were not requested, each
        // namespace counts as one pod.
        Reading::Gap(gap) => {
            let some = match &snapshot.kernel.pod_namespaces {
                Reading::Seen(namespaces) => !namespaces.is_empty(),
                Reading::Gap(_) => gap.why != Why::NotRequested,
            };
            return some.then(|| unknown(Subject::this_node(snapshot), gap.clone())).into_iter().collect();
        }
    };
    match &snapshot.kernel.pod_namespaces {
        Reading::Gap(gap) => pods
            .iter()
            .filter(|pod| !pod.host_network && !pod.finished)
            .map(|pod| unknown(Subject::pod(pod), gap.clone()))
            .collect(),
        Reading::Seen(namespaces) => namespaces
            .iter()
            .filter_map(|namespace| Some((namespace, pod_of_uid(pods, &namespace.pod_uid)?)))
            .map(|(namespace, pod)| Judgement::of(Subject::pod(pod), pod_verdict(snapshot, limits, namespace, pod)))
            .collect(),
    }
}

/// The judgement of one pod. The settings come from the pod's specification, or are the defaults. To read the settings
/// from the kernel, the agent would need CAP_SYS_ADMIN and a thread in the pod's namespace.
fn pod_verdict(snapshot: &Snapshot, limits: &Limits, namespace: &PodNamespace, pod: &Pod) -> Verdict {
    let used = match namespace.ephemeral.get() {
        Ok(used) => used,
        Err(gap) => return Verdict::Unknown(gap),
    };
    let (range, place) = match pod.ip_local_port_range {
        Some(range) => (range, "the pod's securityContext"),
        None => (PortRange::DEFAULT_EPHEMERAL, "assumed: the default of a new network namespace"),
    };
    let ports = Ports {
        set: pod.ephemeral_ports(),
        range: format!("{range} ({place})"),
        reserved: match &pod.ip_local_reserved_ports {
            Some(reserved) => format!("{} (the pod's securityContext)", ports_in_words(reserved)),
            None => "none (assumed: the default of a new network namespace)".to_owned(),
        },
        assumed: pod.ip_local_port_range.is_none(),
        tw_reuse: Ok(REUSE_ON_LOOPBACK),
    };
    judge(snapshot, limits, used, &ports, Whose::Pod(pod, namespace))
}

#[derive(Clone)]
struct Ports {
    set: PortSet,
    range: String,
    reserved: String,
    /// Whether the range is assumed, because no range was configured.
    assumed: bool,
    tw_reuse: Result<u8, Gap>,
}

#[derive(Clone, Copy)]
enum Whose<'a> {
    Node,
    Pod(&'a Pod, &'a PodNamespace),
}

impl Ports {
    fn proven(&self, severity: Severity) -> Severity {
        if self.assumed { severity.min(Severity::Warning) } else { severity }
    }
}

impl Whose<'_> {
    fn in_words(self) -> (String, Vantage, &'static str) {
        match self {
            Self::Node => ("This node".to_owned(), Vantage::Node, "node"),
            Self::Pod(pod, _) => (format!("Pod {}/{}", pod.namespace, pod.name), Vantage::Pods, "pod"),
        }
    }
}

/// Judges the use of the ports. The sentence of a problem names the worst destination.
fn judge(snapshot: &Snapshot, limits: &Limits, used: &EphemeralUse, ports: &Ports, whose: Whose<'_>) -> Verdict {
    if ports.set.is_empty() {
        return Verdict::Problem(none_left(ports, whose));
    }
    let mut unknown = uncounted(limits, used, ports, whose);
    let found = used.busiest.iter().filter_map(|destination| match severity(limits, destination, ports) {
        Ok(severity) => Some(evidence((snapshot, limits), destination, ports, whose, severity?)),
        Err(gap) => {
            unknown = Some(gap);
            None
        }
    });
    match (found.reduce(Evidence::merge), unknown) {
        (Some(evidence), _) => Verdict::Problem(evidence),
        (None, Some(gap)) => Verdict::Unknown(gap),
        (None, None) => Verdict::Healthy,
    }
}

/// The reason why a count is missing. `None` if all counts are known, or if no destination can use most of these ports.
fn uncounted(limits: &Limits, used: &EphemeralUse, ports: &Ports, whose: Whose<'_>) -> Option<Gap> {
    let capacity = ports.set.len();
    let tw_reuse = ports.tw_reuse.as_ref().ok().copied();
    let is_walked = used.not_walked(&ports.set, tw_reuse) == Some(0);
    let is_each_counted = !used.busiest.is_empty() && is_walked;
    let bound = used.bound(&ports.set, tw_reuse);
    if is_each_counted || bound.is_some_and(|bound| reached(limits, bound, capacity).is_none()) {
        return None;
    }
    let (source, why, who) = match whose {
        Whose::Node => (Source::EphemeralUse, Why::NotCounted, "this node".to_owned()),
        // A user can give a pod such a small range that the scan does not count the pod's connections. With
        // `Ambiguous`, the missing count does not change the result of a command.
        Whose::Pod(pod, _) => (Source::PodNamespaces, Why::Ambiguous, format!("pod {}/{}", pod.namespace, pod.name)),
    };
    let detail = match used.extent {
        Extent::Walked { .. } if !is_walked => {
            format!("the sockets of {who} were counted for other settings, not for these {capacity} ephemeral ports")
        }
        _ => format!(
            "{} sockets of {who} may use the {capacity} ephemeral ports, and were not counted for each destination",
            used.at_most
        ),
    };
    Some(Gap::new(source, why, detail))
}

fn reached(limits: &Limits, used: u32, capacity: u32) -> Option<Severity> {
    let is_at = |percent: u32| u64::from(used) * 100 >= u64::from(percent) * u64::from(capacity);
    let [critical, warning] = [limits.ephemeral_critical_percent, limits.ephemeral_warning_percent].map(is_at);
    critical.then_some(Severity::Critical).or(warning.then_some(Severity::Warning))
}

fn severity(limits: &Limits, destination: &DestinationUse, ports: &Ports) -> Result<Option<Severity>, Gap> {
    let capacity = ports.set.len();
    if ports.assumed && destination.used > capacity {
        let detail = "a pod uses more ports than the default range has, so its range must be larger";
        return Err(Gap::new(Source::PodNamespaces, Why::Ambiguous, detail));
    }
    let of = |used| reached(limits, used, capacity);
    let (all, without_time_wait) = (of(destination.used), of(destination.used.saturating_sub(destination.time_wait)));
    let loopback = destination.destination.to_canonical().is_loopback();
    let severity = if all == without_time_wait {
        all
    } else {
        match &ports.tw_reuse {
            Ok(reuse) if *reuse == REUSE || *reuse == REUSE_ON_LOOPBACK && loopback => without_time_wait,
            Ok(_) => all,
            Err(gap) => match without_time_wait {
                Some(severity) => Some(severity),
                None => return Err(gap.clone()),
            },
        }
    };
    Ok(severity.map(|severity| ports.proven(severity)))
}

fn none_left(ports: &Ports, whose: Whose<'_>) -> Evidence {
    let (who, vantage, variant) = whose.in_words();
    let sentence = format!("{who} has no ephemeral port: new outgoing connections fail.");
    Evidence::new(ports.proven(Severity::Critical), sentence)
        .variant(variant)
        .value("ip_local_port_range", &ports.range)
        .value("ip_local_reserved_ports", &ports.reserved)
        .affects([vantage])
        .remedy(Step::advice("take ports of ip_local_port_range out of ip_local_reserved_ports"))
}

fn evidence(
    (snapshot, limits): (&Snapshot, &Limits),
    destination: &DestinationUse,
    ports: &Ports,
    whose: Whose<'_>,
    severity: Severity,
) -> Evidence {
    let DestinationUse { protocol, source, destination: to, port, used, time_wait, owner } = destination;
    let capacity = ports.set.len();
    let (who, vantage, variant) = whose.in_words();
    let to = SocketAddr::new(*to, *port);
    let (share, will) = match severity {
        Severity::Critical => ("almost every local port", "new ones are about to fail"),
        Severity::Warning | Severity::Info => ("most local ports", "new ones may soon fail"),
    };
    let sentence = format!("{who} uses {share} for connections to {to}/{protocol}: {will}.");
    let mut evidence =
        Evidence::new(severity, sentence).variant(variant).value("connections", format!("{protocol} {source} -> {to}"));
    evidence.values.extend(owner_evidence(snapshot, owner));
    evidence = evidence
        .value("local ports used", format!("{used} of {capacity}, {time_wait} of them in TIME_WAIT"))
        .value("ip_local_port_range", &ports.range)
        .value("ip_local_reserved_ports", &ports.reserved);
    if *used >= capacity {
        evidence = evidence.affects([vantage]);
    }
    evidence = evidence
        .remedy(Step::advice("make the program reuse connections: keep-alive, a connection pool, fewer retries"));
    let widest = match whose {
        Whose::Node => wider(snapshot),
        Whose::Pod(pod, namespace) => widest_in_pod(pod, namespace),
    };
    let Some((set, remedy)) = widest else { return evidence };
    // If the connections soon use the added ports too, a wider range only delays the problem.
    evidence.remedy(match is_enough(limits, destination, ports, set) {
        true => remedy,
        false => remedy.then(Step::advice(NOT_ENOUGH)),
    })
}

/// The widest range for a pod, without the ports of the pod's servers: a server cannot restart while a connection has
/// its port. If the servers' ports are not known, only the end of the range changes. `None` if the wider range adds at
/// most [`FEW`] ports.
fn widest_in_pod(pod: &Pod, namespace: &PodNamespace) -> Option<(PortSet, Remedy)> {
    let range = pod.ip_local_port_range.unwrap_or(PortRange::DEFAULT_EPHEMERAL);
    let PortRange { first, last } = match namespace.listening {
        Some(_) => WIDEST,
        None => PortRange { last: WIDEST.last, ..range },
    };
    let widest = PortSet::from(PortRange { first, last });
    let declared = pod.own_ports.iter().map(|port| port.port).collect();
    let servers = [namespace.listening.as_ref(), pod.ip_local_reserved_ports.as_ref(), Some(&declared)];
    let reserved = servers.into_iter().flatten().fold(PortSet::default(), |all, some| all.union(some));
    let reserved = reserved.intersection(&widest);
    let set = widest.minus(&reserved);
    if set.minus(&pod.ephemeral_ports()).len() <= FEW {
        return None;
    }
    let change = (range != PortRange { first, last }).then_some(PortRange { first, last });
    Some((set, choose_in_pod(pod, change, reserved).into()))
}

fn is_enough(limits: &Limits, destination: &DestinationUse, ports: &Ports, set: PortSet) -> bool {
    severity(limits, destination, &Ports { set, assumed: false, ..ports.clone() }) == Ok(None)
}

const NOT_ENOUGH: &str = "that alone is not enough: make the program reuse connections too";

/// A remedy must add more ports than this number.
const FEW: u32 = 1024;

/// The range of a pod that needs many ports: all unprivileged ports.
const WIDEST: PortRange = PortRange { first: 1024, last: u16::MAX };

/// The host's range with a higher end: the default end, or 65535 if the range already ends at the default end or above.
/// `None` if the range ends at 65535, if an added port is needed, or if an input was not read.
fn wider(snapshot: &Snapshot) -> Option<(PortSet, Remedy)> {
    let sysctls = &snapshot.kernel.sysctls;
    let range = sysctls.ip_local_port_range.known(Unread::Adds)?;
    let higher = [LAST_BY_DEFAULT, u16::MAX].into_iter().find(|last| *last > range.last)?;
    let reserved = sysctls.ip_local_reserved_ports.known(Unread::Adds)?;
    let taken_in = PortSet::from(PortRange::new(range.last + 1, higher)?).minus(reserved);
    // If NodePorts or Pods were not read, a server or a Service may need an added port.
    let node_ports = PortSet::from(snapshot.cluster.node_port_range.known(Unread::Adds)?.range);
    let needed = NeededPorts::among(&taken_in, &Limits::default().round(snapshot, None));
    let is_free = needed.ports().union(&node_ports.intersection(&taken_in)).is_empty() && needed.unread().is_none();
    let wider = PortRange::new(range.first, higher).filter(|_| is_free)?;
    Some((PortSet::from(wider).minus(reserved), choose_from(wider)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        expectations::{expect_healthy, expect_problem, expect_unknown},
        findings::Effect,
    };
    use portreeve_facts::{
        Protocol,
        healthy::{gap, ip, objects, seen, squatter},
    };

    const CAPACITY: u32 = 28_232;

    fn node() -> Subject {
        Subject::node("n1", None)
    }

    fn towards(address: &str, used: u32, time_wait: u32) -> EphemeralUse {
        let owner = squatter();
        let destination = ip(address);
        let destination = DestinationUse {
            protocol: Protocol::Tcp,
            source: ip("192.0.2.1"),
            destination,
            port: 443,
            used,
            time_wait,
            owner,
        };
        let (ports, tcp_tw_reuse) = (PortRange { first: 1, last: u16::MAX }.into(), Some(0));
        let extent = Extent::Walked { ports, tcp_tw_reuse, every: None };
        EphemeralUse { at_most: used, busiest: vec![destination], extent }
    }

    fn host(used: u32) -> Snapshot {
        let mut world = Snapshot::healthy();
        world.kernel.ephemeral = Reading::Seen(towards("198.51.100.7", used, 10));
        world
    }

    fn pod(used: u32, range: Option<&str>) -> (Snapshot, Subject) {
        let range = range.map(|range| range.parse().expect("a range"));
        let mut world = Snapshot::healthy().pod("busy", |pod| pod.ip_local_port_range = range);
        let listening = Some("80,8000".parse().expect("ports"));
        let of_busy = PodNamespace::with_use("uid-busy", Ok(towards("198.51.100.7", used, 0)));
        seen(&mut world.kernel.pod_namespaces).push(PodNamespace { listening, ..of_busy });
        let subject = Subject::pod(&world.cluster.pods.seen().expect("pods")[0]);
        (world, subject)
    }

    #[test]
    fn eighty_per_cent_is_a_warning_and_ninety_five_critical() {
        let warning = CAPACITY * 80 / 100 + 1;
        let critical = CAPACITY * 95 / 100 + 1;
        expect_healthy(&RULE, &host(warning - 1), &node());
        for (used, severity) in
            [(warning, Severity::Warning), (critical - 1, Severity::Warning), (critical, Severity::Critical)]
        {
            assert_eq!(expect_problem(&RULE, &host(used), &node()).severity, severity, "{used}");
        }
        let reserved = host(warning - 1).ephemeral("32768 60999", "33000-33999");
        assert_eq!(expect_problem(&RULE, &reserved, &node()).severity, Severity::Warning, "fewer ports are left");
    }

    #[test]
    fn the_evidence_names_the_destination_the_count_and_an_owner() {
        let evidence = expect_problem(&RULE, &host(CAPACITY), &node());
        let found = format!("{evidence:?}");
        assert!(
            found.contains("This node uses almost every local port for connections to 198.51.100.7:443/tcp"),
            "{found}"
        );
        assert!(
            found.contains("28232 of 28232, 10 of them in TIME_WAIT") && found.contains("process nginx"),
            "{found}"
        );
        assert!(found.contains("ip_local_port_range=\\\"32768 65535\\\""), "{found}");
        assert!(evidence.affects.contains(&Vantage::Node), "no port is left");
        assert!(expect_problem(&RULE, &host(CAPACITY - 1), &node()).affects.is_empty());
    }

    #[test]
    fn time_wait_counts_only_where_it_cannot_be_reused() {
        let (loopback, elsewhere) = ("127.0.0.1", "198.51.100.7");
        for (address, reuse, counts) in [
            (loopback, 2, false),
            ("::1", 1, false),
            (loopback, 0, true),
            (elsewhere, 0, true),
            (elsewhere, 1, false),
            (elsewhere, 2, true),
        ] {
            let mut world = host(0);
            world.kernel.sysctls.tcp_tw_reuse = Reading::Seen(reuse);
            world.kernel.ephemeral = Reading::Seen(towards(address, CAPACITY, CAPACITY / 2));
            match counts {
                true => assert_eq!(expect_problem(&RULE, &world, &node()).severity, Severity::Critical),
                false => expect_healthy(&RULE, &world, &node()),
            }
            world.kernel.sysctls.tcp_tw_reuse = gap(Source::Sysctls, Why::NotPermitted);
            assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::Sysctls);
        }
        let mut none_waits = host(0);
        none_waits.kernel.sysctls.tcp_tw_reuse = Reading::Seen(1);
        none_waits.kernel.ephemeral = Reading::Seen(towards(elsewhere, CAPACITY, 0));
        assert_eq!(expect_problem(&RULE, &none_waits, &node()).severity, Severity::Critical);
    }

    #[test]
    fn a_pods_range_comes_from_its_specification_else_it_is_assumed() {
        let (world, subject) = pod(CAPACITY, None);
        let assumed = expect_problem(&RULE, &world, &subject);
        assert_eq!(assumed.severity, Severity::Warning, "an assumed range proves nothing critical");
        assert_eq!(assumed.variant, "pod");
        assert!(format!("{assumed:?}").contains("assumed"));
        let (world, subject) = pod(64_000, Some("1024 65535"));
        let evidence = expect_problem(&RULE, &world, &subject);
        assert_eq!(evidence.severity, Severity::Critical);
        assert!(evidence.summary.starts_with("Pod default/busy uses almost every"), "{}", evidence.summary);
        assert_eq!((assumed.remedies.len(), evidence.remedies.len()), (2, 1), "it has the widest range");
        let (world, subject) = pod(CAPACITY, Some("1024 65535"));
        expect_healthy(&RULE, &world, &subject);
    }

    #[test]
    fn what_is_advised_gives_connections_no_port_that_somebody_needs() {
        let widens = |world: &Snapshot| {
            let remedies = expect_problem(&RULE, world, &node()).remedies;
            let steps: Vec<_> = remedies.into_iter().flat_map(|it| it.steps).collect();
            steps.iter().any(|it| it.text.contains("sysctl -w"))
        };
        assert!(widens(&host(CAPACITY)));
        assert!(!widens(&host(CAPACITY).node_port_range("61000-65535")), "NodePorts are above the range");
        let reserved = host(CAPACITY).node_port_range("61000-65535").ephemeral("32768 60999", "61000-65535");
        assert!(widens(&reserved), "no connection gets them");
        let mut pods = host(CAPACITY).pod("storage", |pod| {
            pod.host_network = true;
            pod.ports.push(portreeve_facts::ContainerPort {
                port: 61_500,
                host_port: None,
                host_ip: None,
                protocol: Protocol::Tcp,
            });
        });
        assert!(!widens(&pods), "a pod on the host's network needs one of them");
        pods.cluster.pods = Reading::Seen(Vec::new());
        assert!(widens(&pods));
        pods.cluster.pods = gap(Source::Pods, Why::Unreachable);
        assert!(!widens(&pods), "a pod that was not read may need one");
        let mut unread = host(CAPACITY);
        unread.cluster.node_port_range = gap(Source::NodePortRange, Why::Unreachable);
        assert!(!widens(&unread), "NodePorts may be above the range");
        let at_most = 32_768 * 80 / 100;
        let whole = |used| {
            let remedies = expect_problem(&RULE, &host(used), &node()).remedies;
            !remedies[1].steps.iter().any(|step| step.text.contains("that alone is not enough"))
        };
        assert!(whole(at_most) && !whole(at_most + 1), "32,768 ports are soon used up, too");
    }

    /// The range and the reserved ports that the remedy gives a pod, and whether the remedy is enough.
    fn advised(world: &Snapshot, subject: &Subject) -> (String, String, bool) {
        let remedies = expect_problem(&RULE, world, subject).remedies;
        let [step, rest @ ..] = &remedies[1].steps[..] else { panic!("nothing to do") };
        let Some(Effect::ChooseInPod(pod, Some(range), reserved)) = step.effect() else { panic!("{step:?}") };
        assert_eq!(*pod, ("default".to_owned(), "busy".to_owned()));
        let value = format!("to \"{} {}\"", range.first, range.last);
        assert!(step.text.contains(&value) && step.text.contains(&reserved.to_string()), "{}", step.text);
        (range.to_string(), reserved.to_string(), rest.is_empty())
    }

    #[test]
    fn a_wider_range_of_a_pod_leaves_its_servers_their_ports() {
        let (world, subject) = pod(CAPACITY, None);
        assert_eq!(advised(&world, &subject), ("1024-65535".to_owned(), "8000".to_owned(), true));
        let (mut world, subject) = pod(2_900, Some("40000 42999"));
        objects(&mut world.cluster.pods)[0].ip_local_reserved_ports = "42000-42099".parse().ok();
        let reserved = "8000,42000-42099".to_owned();
        assert_eq!(advised(&world, &subject), ("1024-65535".to_owned(), reserved, true));
        let (mut unknown, subject) = pod(CAPACITY, None);
        seen(&mut unknown.kernel.pod_namespaces)[0].listening = None;
        assert_eq!(advised(&unknown, &subject), ("32768-65535".to_owned(), String::new(), false), "no server is known");
    }

    #[test]
    fn a_pod_is_judged_by_its_own_range_less_its_own_reserved_ports() {
        let with_reserved = |used, reserved: &str| {
            let (mut world, subject) = pod(used, Some("40000 42999"));
            objects(&mut world.cluster.pods)[0].ip_local_reserved_ports = reserved.parse().ok();
            (world, subject)
        };
        let (world, subject) = with_reserved(1_200, "");
        expect_healthy(&RULE, &world, &subject);
        let (world, subject) = with_reserved(2_850, "");
        let evidence = expect_problem(&RULE, &world, &subject);
        assert_eq!(evidence.severity, Severity::Critical);
        assert!(format!("{evidence:?}").contains("2850 of 3000"), "{evidence:?}");
        let (world, subject) = with_reserved(1_200, "40000-41499");
        let evidence = expect_problem(&RULE, &world, &subject);
        assert_eq!(evidence.severity, Severity::Warning, "1,200 of 1,500");
        let (mut world, subject) = with_reserved(2_850, "");
        let reused = Reading::Seen(towards("127.0.0.1", 2_850, 2_800));
        seen(&mut world.kernel.pod_namespaces)[0].ephemeral = reused;
        expect_healthy(&RULE, &world, &subject);
    }

    #[test]
    fn a_pod_that_uses_more_than_the_default_has_another_range() {
        let (world, subject) = pod(CAPACITY + 1, None);
        assert_eq!(expect_unknown(&RULE, &world, &subject).why, Why::Ambiguous);
    }

    #[test]
    fn the_host_is_judged_without_pods_and_each_pod_is_held() {
        let (mut world, subject) = pod(CAPACITY, None);
        world.kernel.pod_namespaces = gap(Source::PodNamespaces, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &subject).source, Source::PodNamespaces);
        expect_healthy(&RULE, &world, &node());
        let (mut world, _) = pod(CAPACITY, None);
        world.cluster.pods = gap(Source::Pods, Why::Unreachable);
        assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::Pods);
        world.kernel.pod_namespaces = gap(Source::PodNamespaces, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::Pods, "there may be one");
        world.cluster.pods = gap(Source::Pods, Why::NotRequested);
        expect_healthy(&RULE, &world, &node());
    }

    #[test]
    fn a_range_without_a_port_that_is_not_reserved_is_critical() {
        let evidence = expect_problem(&RULE, &host(0).ephemeral("32768 60999", "30000-60999"), &node());
        assert_eq!((evidence.severity, evidence.variant), (Severity::Critical, "node"));
        assert_eq!(evidence.summary, "This node has no ephemeral port: new outgoing connections fail.");
        assert!(evidence.affects.contains(&Vantage::Node));
        let (mut world, subject) = pod(10, Some("40000 42999"));
        objects(&mut world.cluster.pods)[0].ip_local_reserved_ports = "1-65535".parse().ok();
        let evidence = expect_problem(&RULE, &world, &subject);
        assert_eq!((evidence.severity, evidence.variant), (Severity::Critical, "pod"));
    }

    #[test]
    fn sockets_that_were_not_counted_by_destination_are_unknown_from_the_share_that_warns() {
        let uncounted = EphemeralUse::of_every_socket;
        let of_node = |at_most| {
            let mut world = host(0).ephemeral("40000 42000", "");
            world.kernel.ephemeral = Reading::Seen(uncounted(at_most));
            world
        };
        expect_healthy(&RULE, &of_node(1600), &node());
        let gap = expect_unknown(&RULE, &of_node(1601), &node());
        assert_eq!((gap.source, gap.why), (Source::EphemeralUse, Why::NotCounted));
        let of_pod = |at_most| {
            let (mut world, subject) = pod(0, Some("40000 42000"));
            seen(&mut world.kernel.pod_namespaces)[0].ephemeral = Reading::Seen(uncounted(at_most));
            (world, subject)
        };
        let (world, subject) = of_pod(1600);
        expect_healthy(&RULE, &world, &subject);
        let gap = expect_unknown(&RULE, &of_pod(1601).0, &subject);
        assert_eq!((gap.source, gap.why), (Source::PodNamespaces, Why::Ambiguous), "its author chooses the range");
    }

    #[test]
    fn a_count_for_other_ports_is_a_bound_only_with_the_ports_that_were_not_counted() {
        // `every` is the number of the node's sockets. On the ports 40000-49999, 700 connections go to one destination.
        let with = |every, range| {
            let mut world = host(700).ephemeral(range, "");
            let walked = Extent::Walked { ports: "40000-49999".parse().expect("ports"), tcp_tw_reuse: Some(2), every };
            seen(&mut world.kernel.ephemeral).extent = walked;
            world
        };
        expect_healthy(&RULE, &with(None, "40000 49999"), &node());
        expect_healthy(&RULE, &with(None, "41000 42000"), &node());
        expect_healthy(&RULE, &with(None, "40000 50000"), &node());
        expect_healthy(&RULE, &with(None, "49000 50498"), &node());
        for range in ["49000 50499", "20000 21500"] {
            for every in [None, Some(60_000)] {
                let gap = expect_unknown(&RULE, &with(every, range), &node());
                assert_eq!((gap.source, gap.why), (Source::EphemeralUse, Why::NotCounted), "{range}");
                assert!(gap.detail.contains("counted for other settings"), "{}", gap.detail);
            }
            expect_healthy(&RULE, &with(Some(900), range), &node());
        }
        assert_eq!(expect_problem(&RULE, &with(None, "40000 40800"), &node()).severity, Severity::Warning);
    }

    #[test]
    fn a_count_without_time_wait_is_no_bound_if_time_wait_counts() {
        for (then, now, lasts) in
            [(1, 2, false), (1, 0, false), (2, 0, false), (1, 1, true), (2, 1, true), (2, 2, true), (0, 2, true)]
        {
            let mut world = host(9);
            world.kernel.sysctls.tcp_tw_reuse = Reading::Seen(now);
            let with = |every| {
                let mut world = world.clone();
                let ports = PortRange { first: 1, last: u16::MAX }.into();
                let walked = Extent::Walked { ports, tcp_tw_reuse: Some(then), every };
                seen(&mut world.kernel.ephemeral).extent = walked;
                world
            };
            match lasts {
                true => expect_healthy(&RULE, &with(None), &node()),
                false => assert_eq!(expect_unknown(&RULE, &with(None), &node()).why, Why::NotCounted, "{then} {now}"),
            }
            expect_healthy(&RULE, &with(Some(99)), &node());
        }
    }

    #[test]
    fn a_count_that_does_not_tell_its_settings_holds_for_those_that_were_read() {
        let mut world = host(9);
        seen(&mut world.kernel.ephemeral).extent = Extent::NotRecorded;
        expect_healthy(&RULE, &world, &node());
    }

    #[test]
    fn unread_is_unknown() {
        let mut world = host(CAPACITY);
        world.kernel.ephemeral = gap(Source::EphemeralUse, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::EphemeralUse);
        let mut world = host(CAPACITY);
        world.kernel.sysctls.ip_local_reserved_ports = gap(Source::Sysctls, Why::NotPermitted);
        assert_eq!(expect_unknown(&RULE, &world, &node()).source, Source::Sysctls);
        let (mut world, subject) = pod(CAPACITY, None);
        seen(&mut world.kernel.pod_namespaces)[0].ephemeral = gap(Source::PodNamespaces, Why::Torn);
        assert_eq!(expect_unknown(&RULE, &world, &subject).source, Source::PodNamespaces);
    }
}
