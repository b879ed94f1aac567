//! The meaning of the binds that the hook reports. All functions here are pure functions of a snapshot.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use portreeve_bind_hook::{Answer, Bind, Claim, ClaimId, Exempt, Protocol as Bound, Who};
use portreeve_dataplane::{Addressed, Own, Part, Round, cilium_range, owner_name, place, pod_of, serves, service_port};
use portreeve_facts::{
    Cgroup, ContainerPort, Family, Gap, Holder, KernelFacts, Owner, Pod, PortRange, Process, Protocol, Reading,
    Service, Snapshot, Socket, Source, State, Unread, Why, text,
};
use portreeve_rules::{
    Limits, RULES,
    findings::{Evidence, Key, Severity, Step, Subject, Verdict},
    ids::{HOST_PORT_CONFLICT, LISTENER_ON_NODE_PORT},
};

/// The greatest number of claimed addresses for one port and one family. The hook compares a `bind` to the wildcard
/// address with each claimed address of the port.
const ADDRESSES: usize = 64;
/// The greatest number of claims of all ports. The BPF map has space for 131,072 keys. A claim needs up to two keys,
/// and up to four keys while new claims replace old claims.
const CLAIMS: usize = 30_000;
/// The longest name of a thread in the kernel, in bytes.
const COMMAND: usize = 15;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claimed {
    pub(super) claims: Vec<Claim>,
    pub(super) exempt: Vec<Exempt>,
    /// Claims on ports that a pod of this node may serve with its own socket. `None` stands for all NodePorts: the
    /// proxy opens a socket for each NodePort.
    pub(super) own: HashSet<Option<ClaimId>>,
    /// Whether the proxy certainly opens no sockets for NodePorts.
    pub(super) is_proxy_without_sockets: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    /// The control group of each pod, by the pod's uid.
    pub(super) pods: HashMap<String, u64>,
    /// The control group of the proxy, if it is known and is not the root group.
    pub(super) proxy: Option<u64>,
    pub(super) allowed: Vec<u64>,
}

/// The id does not depend on other Services, so it stays when Services are created or deleted.
fn id(number: u16, protocol: Bound, is_host_port: bool) -> ClaimId {
    ClaimId(u32::from(number) | u32::from(protocol == Bound::Udp) << 16 | u32::from(is_host_port) << 17)
}

fn bound(protocol: Protocol) -> Option<Bound> {
    match protocol {
        Protocol::Tcp => Some(Bound::Tcp),
        Protocol::Udp => Some(Bound::Udp),
        Protocol::Sctp => None,
    }
}

fn every(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The claims: NodePorts that this node serves, and hostPorts of its pods.
///
/// The hook refuses a bind if the conflict is certain: the port is a NodePort, and the node answers on the address. The
/// hook reports other binds, and [`conflict`] judges them. A bind of a hostPort is only reported, because some
/// container runtimes open hostPorts themselves. If a pod of the Service may listen on the port itself, a bind is only
/// reported: the pod may start before the guard reads it. If the proxy opens sockets for NodePorts, all binds are only
/// reported: the next pod of the proxy has another control group.
pub(super) fn claimed(round: &Round<'_>, groups: &Groups) -> Claimed {
    let of_all = groups.allowed.iter().chain(&groups.proxy);
    let mut exempt: Vec<Exempt> = of_all.map(|group| Exempt { who: Who::Cgroup(*group), claim: None }).collect();
    let held = are_held(round);
    let (mut claims, mut all_own) = (Vec::new(), HashSet::new());
    all_own.extend((held == Some(true)).then_some(None));
    let of_pods = |gap: &&Gap| matches!(gap.source, Source::Pods | Source::Nodes) && gap.hides_ports();
    let hides_pods = round.now.cluster.rejected.iter().any(|gap| of_pods(&gap));
    // The hook's thread makes claims only if Services, Pods and addresses were read.
    let checked = Unread::Doubted;
    let host_ports = round.host_ports().known(checked);
    let is_host_port = |port| host_ports.is_some_and(|it| it.ports().any(|(host_port, _)| host_port == port));
    if let (Some(addressed), Some(node_ports)) = (round.addressed().known(checked), round.node_ports().known(checked)) {
        let of_ports = (CLAIMS / node_ports.ports().count().max(1) / 2).clamp(1, ADDRESSES);
        // Outside of its NodePort range, Cilium serves fewer addresses. If the range was not read, either every port
        // has the same addresses, or the default range is assumed.
        let range = cilium_range(round.now).unwrap_or_else(|_| PortRange::DEFAULT_NODE_PORTS.into());
        let mut known: BTreeMap<(Family, bool), Vec<IpAddr>> = BTreeMap::new();
        for ((of_port, number), services) in node_ports.ports() {
            let Some(protocol) = bound(of_port) else { continue };
            let id = id(number, protocol, false);
            let served = services.iter().map(|(service, _)| (service, serves(round, service, Part::NodePorts)));
            let served: Vec<_> = served.filter(|(_, is_served)| *is_served != Ok(false)).collect();
            let own = served.iter().flat_map(|(service, _)| own_pods(round.now, service, of_port, number));
            let own: Vec<&Pod> = own.collect();
            let groups = own.iter().filter_map(|pod| pod.uids_of_cgroups().find_map(|uid| groups.pods.get(uid)));
            exempt.extend(groups.map(|it| Exempt { who: Who::Cgroup(*it), claim: Some(id) }));
            all_own.extend((!own.is_empty()).then_some(Some(id)));
            // A pod on the host's network listens on the target port, even if the pod does not declare the port.
            let is_target = services.iter().any(|(_, port)| port.target == Some(number));
            // After a restore of etcd, for example, two Services can have the same NodePort.
            let is_certain = served.iter().all(|(_, is_served)| *is_served == Ok(true))
                && held == Some(false)
                && own.is_empty()
                && !is_target
                && !hides_pods
                && !is_host_port((of_port, number));
            let in_range = range.contains(number);
            for family in served.iter().flat_map(|(service, _)| service.families) {
                let find = || answering(addressed, *family, number).take(of_ports).collect();
                let claim = |ip, is_refused| Claim { protocol, at: SocketAddr::new(ip, number), id, is_refused };
                let answering = known.entry((*family, in_range)).or_insert_with(find);
                claims.extend(answering.iter().map(|ip| claim(*ip, is_certain)));
                claims.push(claim(every(*family), false));
            }
        }
    }
    // HostPorts come after NodePorts, because the hook uses the first claim of an address.
    if let Some(host_ports) = host_ports {
        for ((protocol, number), pods) in host_ports.ports() {
            let Some(protocol) = bound(protocol) else { continue };
            for ip in pods.iter().flat_map(|(_, port)| addresses(port)) {
                let (at, id) = (SocketAddr::new(ip, number), id(number, protocol, true));
                claims.push(Claim { protocol, at, id, is_refused: false });
            }
        }
    }
    Claimed { claims, exempt, own: all_own, is_proxy_without_sockets: round.proxy().never_holds() }
}

/// Whether the proxy listens on NodePorts, as kube-proxy up to 1.23.6 and OVN-Kubernetes do. `None` if the listeners
/// were not read. A listener whose owner is unknown counts as the proxy's: if the guard refused a bind of the proxy, a
/// Service would lose its NodePort.
fn are_held(round: &Round<'_>) -> Option<bool> {
    let (listeners, node_ports) =
        (round.listeners().known(Unread::Doubted)?, round.node_ports().known(Unread::Doubted)?);
    let mut sockets = node_ports.ports().flat_map(|(port, _)| listeners.at(port));
    Some(sockets.any(|socket| round.proxy().owns(socket) != Own::No))
}

/// The addresses of a family on which the node certainly answers at a NodePort. Another proxy may bind the port on the
/// node's other addresses.
fn answering<'a>(addressed: &'a Addressed<'_>, family: Family, number: u16) -> impl Iterator<Item = IpAddr> + use<'a> {
    let (locals, assumptions) = (addressed.locals.iter(), &addressed.assumptions);
    let locals = locals.filter(move |local| Family::of(local.ip) == family);
    locals.filter(move |local| assumptions.agree(|it| it.captures(**local, number)) == Some(true)).map(|local| local.ip)
}

/// The pods on the host's network that may be endpoints of the Service and use exactly this port. A user who may create
/// such a pod can usually change the Service, too.
fn own_pods<'a>(
    snapshot: &'a Snapshot,
    service: &'a Service,
    protocol: Protocol,
    number: u16,
) -> impl Iterator<Item = &'a Pod> {
    let pods = snapshot.cluster.pods.known_part(Unread::Chooses).iter().map(AsRef::as_ref);
    let here = pods.filter(|pod: &&Pod| pod.host_network && !pod.finished && pod.may_be_on(snapshot.node_name()));
    here.filter(move |pod| {
        let mut ports = pod.ports.iter().chain(&pod.probed);
        pod.namespace == service.namespace && ports.any(|it| (it.protocol, it.port) == (protocol, number))
    })
}

fn addresses(port: &ContainerPort) -> Vec<IpAddr> {
    port.host_ip.map_or_else(|| vec![every(Family::V4), every(Family::V6)], |ip| vec![ip])
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    /// The key of the finding that a scan reports about this listener.
    pub(super) key: Key,
    /// The pod that called `bind`, or else the node.
    pub(super) maker: Subject,
    pub(super) note: String,
    /// The evidence of the finding. `None` if the hook refused the bind: then there is no listener, and no scan reports
    /// a finding.
    pub(super) evidence: Option<Evidence>,
}

/// The conflict that a bind causes. `None` if the conflict is not certain. Examples: an allowed bind whose claim no
/// longer exists, and a container runtime that holds the hostPort for its pod.
///
/// # Errors
/// Fails if no rule could judge the bind, because an input was not read.
pub(super) fn conflict(
    snapshot: &Snapshot,
    bind: &Bind,
    cgroup: Result<Cgroup, Gap>,
    stale: Duration,
) -> Result<Option<Conflict>, Gap> {
    let socket = socket_of(bind, cgroup);
    let (judged, unread) = judge(snapshot, &socket);
    let key = match &judged {
        Some((key, _)) => key.clone(),
        None if bind.answer == Answer::Refused => refused_key(snapshot, &socket)?,
        None => return unread.map_or(Ok(None), Err),
    };
    let (claim, remedy) = match in_words(snapshot, &key) {
        Some(claim) => (format!("is {claim}"), format!("give the process or {claim} another number")),
        // After the refusal, the Service was deleted or changed.
        None if bind.answer == Answer::Refused => (
            "was the NodePort of a Service that this node no longer serves".to_owned(),
            "start the process again".to_owned(),
        ),
        None => return Ok(None),
    };
    let pod = pod_of(snapshot, &socket.owner);
    let who = match pod {
        Some(pod) if !bind.name.is_empty() => {
            format!("process {} of pod {}/{}", command(bind), pod.namespace, pod.name)
        }
        _ => owner_name(snapshot, &socket.owner),
    };
    let (port, at) = (format!("{}/{}", socket.local_port, socket.protocol), place(&socket));
    let mut summary = match bind.answer {
        Answer::Refused => format!("{port} {claim}: the guard refused the bind of {who} to {at}."),
        Answer::Allowed | Answer::TooOld => {
            format!("{port} {claim}, and {who} called bind for {at}: new connections do not reach this process.")
        }
        Answer::FamilyUnknown => format!(
            "{port} {claim}, and {who} called bind for {at}: new IPv4 connections do not reach this process, unless its socket is \
             for IPv6 only."
        ),
    };
    if bind.answer == Answer::TooOld {
        let seconds = stale.as_secs();
        summary.push_str(&format!(
            " The guard did not refuse it: the API server has not confirmed its facts for {seconds} seconds."
        ));
    }
    let steps = judged.iter().flat_map(|(_, evidence)| &evidence.remedies).flat_map(|remedy| &remedy.steps);
    let step = steps.map(Step::in_lasting_words).next().map_or(remedy, str::to_owned);
    let note = format!("{summary} Remedy: {step}");
    let maker = pod.map_or_else(|| Subject::this_node(snapshot), Subject::pod);
    let listening = judged.filter(|_| bind.answer != Answer::Refused);
    let evidence = listening.map(|(_, evidence)| Evidence { summary, ..evidence });
    Ok(Some(Conflict { key, maker, note, evidence }))
}

fn command(bind: &Bind) -> String {
    text::clean(&bind.name, COMMAND)
}

fn socket_of(bind: &Bind, cgroup: Result<Cgroup, Gap>) -> Socket {
    let protocol = match bind.protocol {
        Bound::Tcp => Protocol::Tcp,
        Bound::Udp => Protocol::Udp,
    };
    let ip = bind.at.ip();
    let process = match bind.name.is_empty() {
        // The start time of the process is unknown. No real process has the start time `u64::MAX`.
        false => Ok(Process { pid: bind.pid, command: command(bind), command_line: None, started: u64::MAX }),
        true => {
            Err(Gap::new(Source::Processes, Why::NotPermitted, "the kernel does not report the name of the process"))
        }
    };
    Socket {
        protocol,
        state: if protocol == Protocol::Tcp { State::Listen } else { State::Close },
        family: Family::of(ip),
        local: ip,
        local_port: bind.at.port(),
        remote: every(Family::of(ip)),
        remote_port: 0,
        // The hook cannot read `IPV6_V6ONLY`. If the port is claimed only for IPv4, the value `false` makes a bind of
        // `::` a conflict.
        v6only: ip.is_ipv6().then_some(bind.answer != Answer::FamilyUnknown),
        uid: bind.uid,
        inode: 0,
        cgroup: Some(bind.cgroup),
        device: 0,
        retransmits: 0,
        owner: Owner::Held(Holder { cgroup: cgroup.into(), process: process.into() }),
    }
}

/// The finding about the listener `socket` on this node. `None` if the finding is not worth an Event. If a rule could
/// not judge the listener, the second value is the unread input that the rule needs.
fn judge(snapshot: &Snapshot, socket: &Socket) -> (Option<(Key, Evidence)>, Option<Gap>) {
    let port = (socket.protocol, socket.local_port);
    let others = snapshot.kernel.listeners.known_part(Unread::Adds).iter();
    let mut listeners: Vec<Socket> =
        others.filter(|other| (other.protocol, other.local_port) != port).cloned().collect();
    listeners.push(socket.clone());
    let kernel = KernelFacts { listeners: Reading::Seen(listeners), ..snapshot.kernel.clone() };
    let with_it = Snapshot { kernel, ..snapshot.clone() };
    let limits = Limits::default();
    let round = limits.round(&with_it, None);
    let rules = [(&LISTENER_ON_NODE_PORT, "loses"), (&HOST_PORT_CONFLICT, "takes-listener")];
    let rules = rules.into_iter().filter_map(|(id, variant)| {
        RULES.iter().find(|rule| rule.id.name == id.name && rule.variants.contains(&variant))
    });
    let (mut worst, mut unread): (Option<(Key, Evidence)>, _) = (None, None);
    for rule in rules {
        let judgements = match rule.judge(&round, &limits) {
            Ok(judgements) => judgements,
            Err(gap) => {
                unread = unread.or(Some(gap));
                continue;
            }
        };
        for it in judgements.into_iter().filter(|it| (it.protocol, it.port) == (Some(port.0), Some(port.1))) {
            let evidence = match it.verdict {
                Verdict::Problem(evidence) if evidence.severity > Severity::Info => evidence,
                Verdict::Unknown(gap) => {
                    unread = unread.or(Some(gap));
                    continue;
                }
                _ => continue,
            };
            let key = Key {
                rule: rule.name(),
                variant: evidence.variant,
                subject: it.subject,
                port: it.port,
                protocol: it.protocol,
            };
            if worst.as_ref().is_none_or(|(_, worst)| worst.severity <= evidence.severity) {
                worst = Some((key, evidence));
            }
        }
    }
    (worst, unread)
}

/// The guard refuses only binds of NodePorts. If no Service has the NodePort any more, the subject of the finding is
/// the node.
fn refused_key(snapshot: &Snapshot, socket: &Socket) -> Result<Key, Gap> {
    let limits = Limits::default();
    let round = limits.round(snapshot, None);
    let (protocol, number) = (socket.protocol, socket.local_port);
    let service = round.node_ports().get()?.at((protocol, number)).first();
    Ok(Key {
        rule: LISTENER_ON_NODE_PORT.name,
        variant: "loses",
        subject: service.map_or_else(|| Subject::this_node(snapshot), |(service, _)| Subject::service(service)),
        port: Some(number),
        protocol: Some(protocol),
    })
}

/// Examples: `the NodePort of Service shop/web port http`, `the hostPort of Pod shop/edge`.
fn in_words(snapshot: &Snapshot, key: &Key) -> Option<String> {
    let Key { rule, subject, port, protocol, .. } = key;
    if *rule != LISTENER_ON_NODE_PORT.name {
        let namespace = subject.namespace.as_ref().map(|it| format!("{it}/")).unwrap_or_default();
        return Some(format!("the hostPort of {} {namespace}{}", subject.kind.name(), subject.name));
    }
    let limits = Limits::default();
    let round = limits.round(snapshot, None);
    let services = round.node_ports().known(Unread::Adds)?.at(((*protocol)?, (*port)?));
    let (service, port) = services.iter().find(|(service, _)| Subject::service(service) == *subject)?;
    Some(format!("the NodePort of Service {}", service_port(service, &port.name)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use portreeve_facts::{
        Claimant, ContainerPort, Mode, PodContainer, RangeClaim, ServiceKind,
        healthy::{gap, held, objects, proxy_holder},
    };

    const UNIT: &str = "/system.slice/squatter.service";

    fn world() -> Snapshot {
        Snapshot::healthy().service("web", |it| it.node_port(30080))
    }

    fn claims(world: &Snapshot, groups: &Groups) -> Claimed {
        claimed(&Limits::default().round(world, None), groups)
    }

    fn at(claimed: &Claimed) -> Vec<(String, bool)> {
        claimed.claims.iter().map(|claim| (claim.at.to_string(), claim.is_refused)).collect()
    }

    fn bind(at: &str, answer: Answer) -> Bind {
        let at: SocketAddr = at.parse().expect("an address");
        let (protocol, claim) = (Bound::Tcp, id(at.port(), Bound::Tcp, false));
        Bind { pid: 7, uid: 0, name: "squatter\n\u{1b}[0m".to_owned(), cgroup: 9, protocol, at, claim, answer }
    }

    fn group(path: &str, pod: Option<&str>) -> Result<Cgroup, Gap> {
        let pod = pod.map(|uid| PodContainer { pod_uid: uid.to_owned(), container: None });
        Ok(Cgroup { path: path.to_owned(), pod })
    }

    fn conflict_of(world: &Snapshot, bind: &Bind) -> Option<Conflict> {
        conflict(world, bind, group(UNIT, None), Duration::from_secs(60)).expect("each input was read")
    }

    #[test]
    fn a_bind_that_no_rule_can_judge_names_the_unread_input() {
        let mut world = world();
        world.kernel.interfaces = gap(Source::Addresses, Why::Torn);
        let unread = conflict(&world, &bind("0.0.0.0:30080", Answer::Allowed), group(UNIT, None), Duration::ZERO);
        assert_eq!(unread.map_err(|gap| (gap.source, gap.why)), Err((Source::Addresses, Why::Torn)));
    }

    #[test]
    fn a_node_port_is_claimed_on_the_addresses_on_which_the_node_answers() {
        let all = at(&claims(&world().with_mode(Mode::Iptables), &Groups::default()));
        let is_refused = |at: &str| all.contains(&(at.to_owned(), true));
        for local in ["192.0.2.1:30080", "192.0.2.2:30080", "127.0.0.1:30080"] {
            assert!(is_refused(local), "{local}: {all:?}");
        }
        assert!(
            !is_refused("0.0.0.0:30080"),
            "an address of another node is bound by a proxy of that address: {all:?}"
        );
        assert!(!is_refused("[::1]:30080") && !is_refused("[::]:30080"), "::1 is not served: {all:?}");
        let primary = world().with_mode(Mode::Nftables);
        let all = at(&claims(&primary, &Groups::default()));
        assert!(all.contains(&("192.0.2.1:30080".to_owned(), true)), "{all:?}");
        assert!(all.contains(&("0.0.0.0:30080".to_owned(), false)), "a bind elsewhere is reported only: {all:?}");
        let one = Snapshot::healthy().service("web", |it| it.node_port(30080).with(|it| it.families = &[Family::V4]));
        let one = at(&claims(&one, &Groups::default()));
        assert!(one.iter().all(|(at, _)| !at.starts_with('[')), "{one:?}");
    }

    #[test]
    fn behind_cilium_a_node_port_outside_of_its_range_is_claimed_on_fewer_addresses() {
        let world = world().service("high", |it| it.node_port(33000)).with_mode(Mode::Cilium);
        let mut assumed = world.clone().with_user_mode(Mode::Cilium);
        let (by, ranges) = (Claimant::Cilium, gap(Source::ConfigMaps, Why::NotPermitted));
        assumed.cluster.range_claims.push(RangeClaim { by, ranges, place: String::new() });
        for world in [world, assumed] {
            let all = at(&claims(&world, &Groups::default()));
            let has = |local: &str| all.iter().any(|(at, is_refused)| at == local && *is_refused);
            for (local, outside) in [("192.0.2.1", true), ("192.0.2.2", false), ("127.0.0.1", false)] {
                assert!(has(&format!("{local}:30080")), "{local}: {all:?}");
                assert_eq!(has(&format!("{local}:33000")), outside, "{local}: {all:?}");
            }
        }
    }

    #[test]
    fn claims_of_many_ports_and_addresses_fit_into_the_kernel() {
        let many = (0..100).fold(world(), |world, number| world.address("ens9", &format!("198.51.100.{number}")));
        let few = claims(&many, &Groups::default()).claims.len();
        assert!((60..=ADDRESSES * 2 + 2).contains(&few), "{few}");
        let ports = (0..2000)
            .fold(many, |world, number| world.service(&format!("s{number}"), |it| it.node_port(30100 + number)));
        let claimed = claims(&ports, &Groups::default()).claims;
        assert!(claimed.len() <= CLAIMS + 2 * 2001, "{}", claimed.len());
        let of = |port: u16| claimed.iter().filter(|claim| claim.at.port() == port && claim.is_refused).count();
        assert!(of(30080) >= 1 && of(32099) == of(30080), "each port has some");
    }

    #[test]
    fn what_was_not_read_refuses_nothing() {
        type Lose = fn(&mut Snapshot);
        let listeners = |world: &mut Snapshot| world.kernel.listeners = gap(Source::Listeners, Why::Torn);
        let mut unread = world();
        listeners(&mut unread);
        let unread = claims(&unread, &Groups::default()).claims;
        assert!(
            !unread.is_empty() && unread.iter().all(|claim| !claim.is_refused),
            "a proxy may hold them: {unread:?}"
        );
        let lost: [Lose; 2] = [
            |world| world.cluster.services = gap(Source::Services, Why::Unreachable),
            |world| world.kernel.interfaces = gap(Source::Addresses, Why::Torn),
        ];
        for lose in lost {
            let mut world = world();
            lose(&mut world);
            assert_eq!(claims(&world, &Groups::default()).claims, []);
        }
        for source in [Source::Nodes, Source::Pods] {
            let rejected = claims(&world().rejects(source), &Groups::default()).claims;
            assert!(!rejected.is_empty() && rejected.iter().all(|claim| !claim.is_refused), "{source:?}: {rejected:?}");
        }
        let unknown = world().without_proxy();
        let unknown = claims(&unknown, &Groups::default());
        let is_loopback = |claim: &&Claim| claim.at.ip().is_loopback();
        assert!(!unknown.claims.iter().any(|claim| claim.is_refused && is_loopback(&claim)), "{unknown:?}");
    }

    #[test]
    fn a_host_port_is_claimed_after_the_node_ports_and_is_never_refused() {
        let world = world().pod("edge", |pod| pod.host_port(80, 8080));
        let all = at(&claims(&world, &Groups::default()));
        assert_eq!(all[all.len() - 2..], [("0.0.0.0:8080".to_owned(), false), ("[::]:8080".to_owned(), false)]);
        let both = self::world().pod("edge", |pod| pod.host_port(80, 30080));
        assert!(
            claims(&both, &Groups::default()).claims.iter().all(|claim| !claim.is_refused),
            "a runtime may open it"
        );
        let number = |number, protocol, is_host_port| id(number, protocol, is_host_port).0;
        assert_eq!(
            [number(1, Bound::Tcp, false), number(1, Bound::Udp, false), number(1, Bound::Tcp, true)],
            [1, 65_537, 131_073],
            "numbers stay, and differ"
        );
    }

    #[test]
    fn the_port_that_a_pod_of_the_service_serves_itself_is_never_refused_and_the_pod_is_exempt() {
        let port = ContainerPort { port: 30080, host_port: Some(30080), host_ip: None, protocol: Protocol::Tcp };
        let own = |namespace: &'static str| {
            world().pod("own", |pod| {
                (pod.host_network, pod.probed, pod.namespace) = (true, vec![port.clone()], namespace.to_owned());
            })
        };
        let groups = Groups { pods: [("uid-own".to_owned(), 5)].into(), ..Groups::default() };
        let id = id(30080, Bound::Tcp, false);
        for (groups, exempt) in
            [(Groups::default(), vec![]), (groups.clone(), vec![Exempt { who: Who::Cgroup(5), claim: Some(id) }])]
        {
            let known = claims(&own("default"), &groups);
            assert!(!known.claims.is_empty() && known.claims.iter().all(|claim| !claim.is_refused), "{known:?}");
            assert_eq!((known.exempt, known.own), (exempt, [Some(id)].into()));
        }
        let stranger = claims(&own("other"), &groups);
        assert_eq!(stranger, claims(&world(), &groups), "a pod of another namespace is a stranger");
        assert!(stranger.claims.iter().any(|claim| claim.is_refused));
    }

    #[test]
    fn a_node_port_that_is_the_target_port_is_never_refused_because_endpoints_need_not_declare_it() {
        let world = |target| {
            Snapshot::healthy().service("web", |it| it.node_port(30080).with(|it| it.ports[0].target = target))
        };
        let is_refused =
            |target| claims(&world(target), &Groups::default()).claims.iter().any(|claim| claim.is_refused);
        assert!(!is_refused(Some(30080)));
        assert!(is_refused(Some(8080)) && is_refused(None));
    }

    #[test]
    fn if_the_proxy_listens_on_a_node_port_no_node_port_is_refused() {
        let two = || world().service("next", |it| it.node_port(30081));
        let holding = |owner| claims(&two().listens_as("0.0.0.0:30080", owner), &Groups::default());
        let proxy = holding(proxy_holder());
        assert!(proxy.claims.iter().all(|claim| !claim.is_refused), "{proxy:?}");
        assert_eq!(proxy.own, [None].into());
        let other = holding(held(UNIT, None, "squatter", 7));
        assert!(other.claims.iter().any(|claim| claim.is_refused) && other.own.is_empty(), "{other:?}");
    }

    #[test]
    fn the_link_of_cilium_is_no_proof_that_no_proxy_listens_and_the_proxy_mode_is() {
        let mut world = world().address("cilium_host", "10.244.0.1");
        // The guard does not read the cluster's settings.
        world.cluster.proxy_config = gap(Source::ProxyConfig, Why::NotRequested);
        let is_known = |world: &Snapshot| claims(world, &Groups::default()).is_proxy_without_sockets;
        assert!(!is_known(&world.clone().without_proxy()), "kube-proxy can run beside Cilium");
        assert!(is_known(&world.with_user_mode(Mode::Cilium)));
    }

    #[test]
    fn a_health_check_node_port_is_no_claim() {
        let checked = world().service("lb", |it| {
            it.node_port(30081).local().with(|service| {
                service.kind = ServiceKind::LoadBalancer;
                service.health_check_node_port = Some(30999);
            })
        });
        let ports: BTreeSet<u16> = claims(&checked, &Groups::default()).claims.iter().map(|it| it.at.port()).collect();
        assert_eq!(ports, [30080, 30081].into());
        assert_eq!(conflict_of(&checked, &bind("0.0.0.0:30999", Answer::Allowed)), None);
    }

    #[test]
    fn of_two_services_with_one_node_port_both_decide() {
        let port = ContainerPort { port: 30080, host_port: None, host_ip: None, protocol: Protocol::Tcp };
        let two = world().service("twin", |it| it.node_port(30080).with(|it| it.namespace = "other".to_owned()));
        assert!(claims(&two, &Groups::default()).claims.iter().any(|claim| claim.is_refused));
        let own = two.pod("own", |pod| {
            (pod.host_network, pod.probed, pod.namespace) = (true, vec![port], "other".to_owned());
        });
        assert!(claims(&own, &Groups::default()).claims.iter().all(|claim| !claim.is_refused));
    }

    #[test]
    fn the_proxy_and_what_a_person_allowed_are_exempt_from_each_claim() {
        let groups = Groups { proxy: Some(3), allowed: vec![1, 2], pods: HashMap::new() };
        let exempt = claims(&world(), &groups).exempt;
        assert_eq!(exempt, [1, 2, 3].map(|group| Exempt { who: Who::Cgroup(group), claim: None }));
    }

    #[test]
    fn a_bind_has_the_key_and_the_impact_of_the_finding_that_a_scan_of_its_listener_reports() {
        let owner = held(UNIT, None, "squatter", 7);
        let scanned = world().listens_as("0.0.0.0:30080", owner);
        let findings = crate::judge(&scanned, &Limits::default()).findings;
        let conflict = conflict_of(&world(), &bind("0.0.0.0:30080", Answer::Allowed)).expect("a conflict");
        let found = findings.iter().find(|finding| finding.key == conflict.key);
        let found = found.unwrap_or_else(|| panic!("{:?} in {findings:?}", conflict.key));
        assert_eq!(conflict.evidence.map(|evidence| evidence.impact()), Some(found.evidence.impact()));
        assert_eq!(conflict.maker, Subject::node("n1", Some("uid-n1")));
        let refused = conflict_of(&world(), &bind("0.0.0.0:30080", Answer::Refused)).expect("a conflict");
        assert_eq!((refused.key, refused.evidence), (conflict.key, None), "no scan finds a listener");
    }

    #[test]
    fn endpoints_that_are_not_read_change_only_the_outcome() {
        let outcome = |world: &Snapshot| {
            let conflict = conflict_of(world, &bind("0.0.0.0:30080", Answer::Allowed)).expect("a conflict");
            conflict.evidence.map(|evidence| evidence.outcome)
        };
        let mut unread = world();
        unread.cluster.endpoint_slices = gap(Source::EndpointSlices, Why::NotRequested);
        assert_eq!(outcome(&unread), Some("several"));
        assert_ne!(outcome(&world()), Some("several"));
    }

    #[test]
    fn the_note_names_the_process_the_service_and_what_to_do() {
        let note = |answer, at| conflict_of(&world(), &bind(at, answer)).expect("a conflict").note;
        let allowed = note(Answer::Allowed, "0.0.0.0:30080");
        assert!(
            allowed.starts_with(
                "30080/tcp is the NodePort of Service default/web, and process squatter[0m called bind for 0.0.0.0:30080/tcp: new \
                 connections do not reach this process. Remedy: "
            ),
            "{allowed}"
        );
        let refused = note(Answer::Refused, "0.0.0.0:30080");
        assert!(refused.contains("the guard refused the bind of process squatter"), "{refused}");
        let old = note(Answer::TooOld, "0.0.0.0:30080");
        assert!(old.contains("has not confirmed its facts for 60 seconds"), "{old}");
        let both = note(Answer::FamilyUnknown, "[::]:30080");
        assert!(both.contains("unless its socket is for IPv6 only"), "{both}");
    }

    #[test]
    fn a_refused_bind_is_told_after_the_end_of_its_service_too() {
        let (bound, mut world) = (bind("0.0.0.0:30080", Answer::Refused), Snapshot::healthy());
        let gone = conflict_of(&world, &bound).expect("a refusal");
        assert_eq!(
            gone.note,
            "30080/tcp was the NodePort of a Service that this node no longer serves: the guard refused the bind of process \
             squatter[0m to 0.0.0.0:30080/tcp. Remedy: start the process again"
        );
        assert_eq!(gone.key.subject, Subject::node("n1", Some("uid-n1")));
        world.cluster.services = gap(Source::Services, Why::Unreachable);
        let unread = conflict(&world, &bound, group(UNIT, None), Duration::ZERO);
        assert!(unread.is_err_and(|gap| gap.source == Source::Services), "not read is not gone");
    }

    #[test]
    fn a_pod_that_binds_is_the_object_of_the_event() {
        let world = world().pod("squatter", |pod| pod.host_network = true);
        let group = group("/kubepods/poduid-squatter/c1", Some("uid-squatter"));
        let conflict = conflict(&world, &bind("192.0.2.1:30080", Answer::Refused), group, Duration::ZERO);
        let Ok(Some(Conflict { maker, note, .. })) = conflict else { panic!("no conflict: {conflict:?}") };
        assert_eq!((maker.kind.name(), maker.name.as_str()), ("Pod", "squatter"));
        assert!(note.contains("of pod default/squatter to 192.0.2.1:30080/tcp"), "{note}");
    }

    #[test]
    fn without_the_name_of_the_process_its_pod_or_unit_is_named() {
        let world = world().pod("squatter", |pod| pod.host_network = true);
        let bind = Bind { name: String::new(), ..bind("0.0.0.0:30080", Answer::Allowed) };
        let of = |group| conflict(&world, &bind, group, Duration::ZERO).ok().flatten().expect("a conflict").note;
        let pod = of(group("/kubepods/poduid-squatter/c1", Some("uid-squatter")));
        assert!(pod.contains("and pod default/squatter called bind for 0.0.0.0:30080/tcp"), "{pod}");
        let unit = of(group(UNIT, None));
        assert!(unit.contains("and systemd unit squatter.service called bind for"), "{unit}");
    }

    #[test]
    fn a_bind_that_is_no_conflict_is_none() {
        let proxy = group("/kubepods/burstable/poduid-kube-proxy/p1", Some("uid-kube-proxy"));
        let bound = bind("0.0.0.0:30080", Answer::Allowed);
        assert_eq!(conflict(&world(), &bound, proxy, Duration::ZERO), Ok(None), "it is the proxy's own");
        assert_eq!(conflict_of(&Snapshot::healthy(), &bound), None, "the Service is gone");
        let of_pod = Snapshot::healthy().pod("edge", |pod| pod.host_port(80, 8080));
        let runtime = |version: &str| {
            let mut world = of_pod.clone();
            objects(&mut world.cluster.nodes)[0].container_runtime = Some(version.to_owned());
            conflict_of(&world, &bind("0.0.0.0:8080", Answer::Allowed))
        };
        assert_eq!(runtime("cri-o://1.29.0"), None, "this runtime opens hostPorts itself");
        let taken = runtime("containerd://2.0.0").expect("a conflict");
        assert!(taken.note.starts_with("8080/tcp is the hostPort of Pod default/edge, and process"), "{}", taken.note);
    }
}
