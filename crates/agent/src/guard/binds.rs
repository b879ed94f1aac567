//! Which binds the hook reports, and what a reported bind means: pure functions of a snapshot.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use portreeve_bind_hook::{Answer, Bind, Claim, ClaimId, Exempt, Protocol as Bound, Who};
use portreeve_dataplane::{Addressed, Part, Round, owner_name, place, pod_of, serves, service_port};
use portreeve_facts::{
    Cgroup, ContainerPort, Family, Gap, Holder, KernelFacts, Owner, Pod, Process, Protocol, Reading, Service, Snapshot,
    Socket, State, Unread, text,
};
use portreeve_rules::{
    Limits, RULES,
    findings::{Evidence, Key, Severity, Step, Subject},
    ids::{HOST_PORT_CONFLICT, LISTENER_ON_NODE_PORT},
};

/// The most addresses of a family that are claimed one by one. A `bind` of every address meets any of them.
const ADDRESSES: usize = 64;
/// The longest name of a thread in the kernel.
const COMMAND: usize = 15;

/// What the hook compares binds with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claimed {
    pub(super) claims: Vec<Claim>,
    pub(super) exempt: Vec<Exempt>,
}

/// The control groups of this node that decide about exemptions.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    /// Of each pod, by its uid.
    pub(super) pods: HashMap<String, u64>,
    /// Of the proxy, if its group is known and is not the root.
    pub(super) proxy: Option<u64>,
    /// Of what a person allowed.
    pub(super) allowed: Vec<u64>,
}

/// A number that stays the same while Services come and go.
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

/// The NodePorts that this node serves, and the hostPorts of its pods.
///
/// Only binds of certain claims are refused: of NodePorts, on addresses on which this node answers. Other binds are reported, and
/// [`conflict`] decides. A hostPort is never refused: some container runtimes open it with a socket of their own.
pub(super) fn claimed(round: &Round<'_>, groups: &Groups) -> Claimed {
    let of_all = groups.allowed.iter().chain(&groups.proxy);
    let mut exempt: Vec<Exempt> = of_all.map(|group| Exempt { who: Who::Cgroup(*group), claim: None }).collect();
    let mut claims = Vec::new();
    if let (Ok(addressed), Ok(node_ports)) = (round.addressed(), round.node_ports()) {
        let answering: BTreeMap<Family, Vec<IpAddr>> =
            [Family::V4, Family::V6].into_iter().map(|family| (family, answering(addressed, family))).collect();
        for ((protocol, number), services) in node_ports.ports() {
            let Some(protocol) = bound(protocol) else { continue };
            for (service, port) in services {
                let is_served = serves(round.now, service, Part::NodePorts);
                if is_served == Ok(false) {
                    continue;
                }
                let id = id(number, protocol, false);
                let own = own_pods(round.now, service, port.protocol, number);
                let own: Vec<Option<u64>> =
                    own.map(|pod| pod.uids_of_cgroups().find_map(|uid| groups.pods.get(uid).copied())).collect();
                // While the group of such a pod is unknown, its own server could be refused.
                let is_certain = is_served == Ok(true) && own.iter().all(Option::is_some);
                exempt.extend(own.into_iter().flatten().map(|it| Exempt { who: Who::Cgroup(it), claim: Some(id) }));
                for family in service.families {
                    let claim = |ip, is_refused| Claim { protocol, at: SocketAddr::new(ip, number), id, is_refused };
                    claims.extend(answering[family].iter().map(|ip| claim(*ip, is_certain)));
                    claims.push(claim(every(*family), false));
                }
            }
        }
    }
    // After the NodePorts: of two claims of one address the hook uses the first.
    if let Ok(host_ports) = round.host_ports() {
        for ((protocol, number), pods) in host_ports.ports() {
            let Some(protocol) = bound(protocol) else { continue };
            for ip in pods.iter().flat_map(|(_, port)| addresses(port)) {
                let (at, id) = (SocketAddr::new(ip, number), id(number, protocol, true));
                claims.push(Claim { protocol, at, id, is_refused: false });
            }
        }
    }
    Claimed { claims, exempt }
}

/// The addresses of a family on which the node answers at NodePorts for certain. If the list has every present
/// address, the guard also covers addresses that the node gets later.
fn answering(addressed: &Addressed<'_>, family: Family) -> Vec<IpAddr> {
    let locals = || addressed.locals.iter().filter(|local| Family::of(local.ip) == family);
    let answers = |local: &&_| addressed.assumptions.agree(|it| it.captures(**local)) == Some(true);
    if locals().next().is_some() && locals().all(|local| answers(&local)) {
        return vec![every(family)];
    }
    locals().filter(answers).map(|local| local.ip).take(ADDRESSES).collect()
}

/// The pods on the host's network that may be endpoints of a Service with this very port. A user with the right to make such a pod can
/// usually change the Service, too.
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

/// A bind that is a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    /// The key of the finding that a scan reports about the same listener.
    pub(super) key: Key,
    /// The pod that made the bind, or the node.
    pub(super) maker: Subject,
    /// What happened, and what to do.
    pub(super) note: String,
}

/// What a bind means. `None` is no conflict, or none for certain: for example the claim is gone, or a container runtime holds the
/// hostPort for its pod.
pub(super) fn conflict(
    snapshot: &Snapshot,
    bind: &Bind,
    cgroup: Result<Cgroup, Gap>,
    stale: Duration,
) -> Option<Conflict> {
    let socket = socket_of(bind, cgroup);
    let judged = judge(snapshot, &socket);
    let (key, claim) = match &judged {
        Some((key, _)) => (key.clone(), in_words(snapshot, key)?),
        None if bind.answer == Answer::Refused => {
            let key = refused_key(snapshot, &socket)?;
            let claim = in_words(snapshot, &key)?;
            (key, claim)
        }
        None => return None,
    };
    let pod = pod_of(snapshot, &socket.owner);
    let who = match pod {
        Some(pod) => format!("process {} of pod {}/{}", command(bind), pod.namespace, pod.name),
        None => owner_name(snapshot, &socket.owner),
    };
    let (port, at) = (format!("{}/{}", socket.local_port, socket.protocol), place(&socket));
    let mut note = match bind.answer {
        Answer::Refused => format!("{port} is {claim}: the guard refused the bind of {who} to {at}."),
        Answer::Allowed | Answer::TooOld => {
            format!("{port} is {claim}, and {who} bound {at}: new connections do not reach this process.")
        }
        Answer::FamilyUnknown => format!(
            "{port} is {claim}, and {who} bound {at}: new IPv4 connections do not reach this process, unless its socket is \
             for IPv6 only."
        ),
    };
    if bind.answer == Answer::TooOld {
        let seconds = stale.as_secs();
        note.push_str(&format!(
            " The guard did not refuse it: the API server has not confirmed its facts for {seconds} seconds."
        ));
    }
    let steps = judged.iter().flat_map(|(_, evidence)| &evidence.remedies).flat_map(|remedy| &remedy.steps);
    let step = steps.map(Step::in_lasting_words).next();
    let step = step.map_or_else(|| format!("give the process or {claim} another number"), str::to_owned);
    note.push_str(&format!(" Remedy: {step}"));
    let maker = pod.map_or_else(|| Subject::this_node(snapshot), Subject::pod);
    Some(Conflict { key, maker, note })
}

fn command(bind: &Bind) -> String {
    text::clean(&bind.name, COMMAND)
}

/// The listener that this bind makes.
fn socket_of(bind: &Bind, cgroup: Result<Cgroup, Gap>) -> Socket {
    let protocol = match bind.protocol {
        Bound::Tcp => Protocol::Tcp,
        Bound::Udp => Protocol::Udp,
    };
    let ip = bind.at.ip();
    // The time of its start is unknown, and no process has this one.
    let process = Process { pid: bind.pid, command: command(bind), command_line: None, started: u64::MAX };
    Socket {
        protocol,
        state: if protocol == Protocol::Tcp { State::Listen } else { State::Close },
        family: Family::of(ip),
        local: ip,
        local_port: bind.at.port(),
        remote: every(Family::of(ip)),
        remote_port: 0,
        // Of the two values, the one for which it is a conflict.
        v6only: ip.is_ipv6().then_some(bind.answer != Answer::FamilyUnknown),
        uid: bind.uid,
        inode: 0,
        cgroup: Some(bind.cgroup),
        device: 0,
        retransmits: 0,
        owner: Owner::Held(Holder { cgroup: cgroup.into(), process: Reading::Seen(process) }),
    }
}

/// The finding of a scan that sees this listener beside the others of the node, if it is worth an Event.
fn judge(snapshot: &Snapshot, socket: &Socket) -> Option<(Key, Evidence)> {
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
    let judged = rules.flat_map(|rule| {
        let judgements = rule.judge(&round, &limits).unwrap_or_default();
        judgements.into_iter().map(move |judgement| (rule.name(), judgement))
    });
    let here = judged.filter(|(_, it)| (it.protocol, it.port) == (Some(port.0), Some(port.1)));
    let problems = here.filter_map(|(rule, it)| {
        let evidence = it.verdict.into_problem()?;
        let key = Key { rule, variant: evidence.variant, subject: it.subject, port: it.port, protocol: it.protocol };
        (evidence.severity > Severity::Info).then_some((key, evidence))
    });
    problems.max_by_key(|(_, evidence)| evidence.severity)
}

/// The key of a refused bind. The guard refuses only binds of NodePorts.
fn refused_key(snapshot: &Snapshot, socket: &Socket) -> Option<Key> {
    let limits = Limits::default();
    let round = limits.round(snapshot, None);
    let (protocol, number) = (socket.protocol, socket.local_port);
    let (service, _) = round.node_ports().ok()?.at((protocol, number)).first()?;
    Some(Key {
        rule: LISTENER_ON_NODE_PORT.name,
        variant: "loses",
        subject: Subject::service(service),
        port: Some(number),
        protocol: Some(protocol),
    })
}

/// `the NodePort of Service shop/web port http`, `the hostPort of Pod shop/edge`.
fn in_words(snapshot: &Snapshot, key: &Key) -> Option<String> {
    let Key { rule, subject, port, protocol, .. } = key;
    if *rule != LISTENER_ON_NODE_PORT.name {
        let namespace = subject.namespace.as_ref().map(|it| format!("{it}/")).unwrap_or_default();
        return Some(format!("the hostPort of {} {namespace}{}", subject.kind.name(), subject.name));
    }
    let limits = Limits::default();
    let round = limits.round(snapshot, None);
    let services = round.node_ports().ok()?.at(((*protocol)?, (*port)?));
    let (service, port) = services.iter().find(|(service, _)| Subject::service(service) == *subject)?;
    Some(format!("the NodePort of Service {}", service_port(service, &port.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        ContainerPort, Mode, PodContainer, Source, Why,
        healthy::{gap, held, objects},
    };

    const UNIT: &str = "/system.slice/squatter.service";

    fn world() -> Snapshot {
        Snapshot::healthy().service("web", |it| it.node_port(30080))
    }

    fn claims(world: &Snapshot, groups: &Groups) -> Claimed {
        claimed(&Limits::default().round(world, None), groups)
    }

    /// The address of each claim, and whether its binds are refused.
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
        conflict(world, bind, group(UNIT, None), Duration::from_secs(60))
    }

    #[test]
    fn a_node_port_is_claimed_on_the_addresses_on_which_the_node_answers() {
        let every = world().with_mode(Mode::Iptables);
        let all = at(&claims(&every, &Groups::default()));
        assert!(all.contains(&("0.0.0.0:30080".to_owned(), true)), "{all:?}");
        let is_refused = |at: &str| all.contains(&(at.to_owned(), true));
        assert!(!is_refused("[::1]:30080") && !is_refused("[::]:30080"), "::1 is not served: {all:?}");
        let primary = world().with_mode(Mode::Nftables);
        let all = at(&claims(&primary, &Groups::default()));
        assert!(all.contains(&("192.0.2.1:30080".to_owned(), true)), "{all:?}");
        assert!(all.contains(&("0.0.0.0:30080".to_owned(), false)), "a bind elsewhere is reported only: {all:?}");
        let one = Snapshot::healthy().service("web", |it| it.node_port(30080).with(|it| it.families = &[Family::V4]));
        let every = "0.0.0.0:30080".to_owned();
        assert_eq!(at(&claims(&one, &Groups::default())), [(every.clone(), true), (every, false)], "the first is used");
    }

    #[test]
    fn what_was_not_read_refuses_nothing() {
        type Lose = fn(&mut Snapshot);
        let lost: [Lose; 2] = [
            |world| world.cluster.services = gap(Source::Services, Why::Unreachable),
            |world| world.kernel.interfaces = gap(Source::Addresses, Why::Torn),
        ];
        for lose in lost {
            let mut world = world();
            lose(&mut world);
            assert_eq!(claims(&world, &Groups::default()).claims, []);
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
        let number = |number, protocol, is_host_port| id(number, protocol, is_host_port).0;
        assert_eq!(
            [number(1, Bound::Tcp, false), number(1, Bound::Udp, false), number(1, Bound::Tcp, true)],
            [1, 65_537, 131_073],
            "numbers stay, and differ"
        );
    }

    #[test]
    fn the_services_own_pod_is_exempt_from_its_claim_and_until_its_group_is_known_nothing_is_refused() {
        let port = ContainerPort { port: 30080, host_port: Some(30080), host_ip: None, protocol: Protocol::Tcp };
        let own = |namespace: &'static str| {
            world().pod("own", |pod| {
                (pod.host_network, pod.ports, pod.namespace) = (true, vec![port.clone()], namespace.to_owned());
            })
        };
        let unknown = claims(&own("default"), &Groups::default());
        assert!(!unknown.claims.is_empty() && unknown.claims.iter().all(|claim| !claim.is_refused), "{unknown:?}");
        let groups = Groups { pods: [("uid-own".to_owned(), 5)].into(), ..Groups::default() };
        let known = claims(&own("default"), &groups);
        let exempt = Exempt { who: Who::Cgroup(5), claim: Some(id(30080, Bound::Tcp, false)) };
        assert!(known.claims.iter().any(|claim| claim.is_refused));
        assert_eq!(known.exempt, [exempt]);
        let stranger = claims(&own("other"), &groups);
        assert_eq!(
            (stranger.exempt, stranger.claims),
            (vec![], known.claims),
            "a pod of another namespace is a stranger"
        );
    }

    #[test]
    fn the_proxy_and_what_a_person_allowed_are_exempt_from_each_claim() {
        let groups = Groups { proxy: Some(3), allowed: vec![1, 2], pods: HashMap::new() };
        let exempt = claims(&world(), &groups).exempt;
        assert_eq!(exempt, [1, 2, 3].map(|group| Exempt { who: Who::Cgroup(group), claim: None }));
    }

    #[test]
    fn a_bind_has_the_key_of_the_finding_that_a_scan_of_its_listener_reports() {
        let owner = held(UNIT, None, "squatter", 7);
        let scanned = world().listens_as("0.0.0.0:30080", owner);
        let findings = crate::judge(&scanned, &Limits::default()).findings;
        let keys: Vec<Key> = findings.into_iter().map(|finding| finding.key).collect();
        let conflict = conflict_of(&world(), &bind("0.0.0.0:30080", Answer::Allowed)).expect("a conflict");
        assert!(keys.contains(&conflict.key), "{:?} in {keys:?}", conflict.key);
        assert_eq!(conflict.maker, Subject::node("n1", Some("uid-n1")));
        let refused = conflict_of(&world(), &bind("0.0.0.0:30080", Answer::Refused)).expect("a conflict");
        assert_eq!(refused.key, conflict.key);
    }

    #[test]
    fn endpoints_that_are_not_read_change_nothing() {
        let mut world = world();
        world.cluster.endpoint_slices = gap(Source::EndpointSlices, Why::NotRequested);
        assert!(conflict_of(&world, &bind("0.0.0.0:30080", Answer::Allowed)).is_some());
    }

    #[test]
    fn the_note_names_the_process_the_service_and_what_to_do() {
        let note = |answer, at| conflict_of(&world(), &bind(at, answer)).expect("a conflict").note;
        let allowed = note(Answer::Allowed, "0.0.0.0:30080");
        assert!(
            allowed.starts_with(
                "30080/tcp is the NodePort of Service default/web, and process squatter[0m bound 0.0.0.0:30080/tcp: new \
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
    fn a_pod_that_binds_is_the_object_of_the_event() {
        let world = world().pod("squatter", |pod| pod.host_network = true);
        let group = group("/kubepods/poduid-squatter/c1", Some("uid-squatter"));
        let conflict = conflict(&world, &bind("192.0.2.1:30080", Answer::Refused), group, Duration::ZERO);
        let Conflict { maker, note, .. } = conflict.expect("a conflict");
        assert_eq!((maker.kind.name(), maker.name.as_str()), ("Pod", "squatter"));
        assert!(note.contains("of pod default/squatter to 192.0.2.1:30080/tcp"), "{note}");
    }

    #[test]
    fn a_bind_that_is_no_conflict_is_none() {
        let proxy = group("/kubepods/burstable/poduid-kube-proxy/p1", Some("uid-kube-proxy"));
        let bound = bind("0.0.0.0:30080", Answer::Allowed);
        assert_eq!(conflict(&world(), &bound, proxy, Duration::ZERO), None, "it is the proxy's own");
        assert_eq!(conflict_of(&Snapshot::healthy(), &bound), None, "the Service is gone");
        assert_eq!(conflict_of(&Snapshot::healthy(), &bind("0.0.0.0:30080", Answer::Refused)), None);
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
