//! `owner` and the findings must agree about lost connections. If a finding names a loser, `owner` names the loser too.
//! If a finding says which kind of claim wins, `owner` says the same. If `owner` names a loser, a finding must name
//! this loser, or one of the reasons in `Excuse` must apply.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use portreeve_dataplane::{Answered, Beside, BesideKind, ClaimKind, Claimant, Outcome, Ownership, Port, owner, place};
use portreeve_facts::{
    Family, Gap, Mode, Netfilter, NodeAddress, NodeAddressKind, Owner, PortSet, Protocol, Reading, Redirection,
    Service, Snapshot, Socket, Vantage,
    healthy::{PRIMARY, World, daemon, interfaces_of, ip, objects},
};
use portreeve_guard::Wanted;
use portreeve_rules::{
    FleetReservation, FreePorts, GuardRun, Limits, NodeGuard, NodeReservation,
    findings::{Finding, Key, Scope, Severity, Subject, SubjectKind},
    ids::{self, Arbiter, Id, Kind, Named, Rows, Variant},
    ledger::Board,
    port_usage,
};

use crate::every_node::{board, one_of_each_plane, pair, ports, small};

const OF_LISTENERS: [&str; 3] =
    ["listener-on-node-port/loses", "host-port-conflict/takes-listener", "external-ip-conflict/takes-listener"];
const LEFT_BEHIND: &str = "stale-redirection/host-port";
/// Variants about several claims to one port, in which no listener loses connections. Each variant has the kinds of the
/// claims that `owner` must list.
const OF_CLAIMS: [(&str, &[ClaimKind]); 7] = [
    ("external-ip-conflict/takes-node-port", &[ClaimKind::ExternalIp, ClaimKind::NodePort]),
    ("host-port-conflict/node-port", &[ClaimKind::HostPort, ClaimKind::NodePort]),
    ("external-ip-conflict/claimed-twice", &[ClaimKind::ExternalIp, ClaimKind::ExternalIp]),
    (LEFT_BEHIND, &[ClaimKind::Redirection]),
    ("node-port-claimed-twice/lost", &[ClaimKind::NodePort, ClaimKind::NodePort]),
    ("node-port-claimed-twice/pods", &[ClaimKind::NodePort]),
    ("host-port-conflict/health-check", &[ClaimKind::HostPort]),
];

/// Certain findings beside which `owner` does not know who answers: the variant, words of `owner`'s reason, and why
/// both are right.
const UNDECIDED: [(&str, &str, &str); 3] = [
    ("node-port-claimed-twice/lost", "two Services claim it", "the finding names both Services, and not one of them"),
    ("external-ip-conflict/claimed-twice", "two Services claim it", "the finding names each Service with the address"),
    (LEFT_BEHIND, "a container that Kubernetes did not start may have", "a pod loses the port, whoever gets it"),
];

/// Variants about a server that is absent: `owner` reports that the server needs the port.
const OF_NEEDS: [&str; 2] = ["connection-on-port/blocks", "health-check-unserved/nobody"];
const WAITS: &str = "pod-waits-for-port/pod";
/// Variants about a port outside the node's network: in the network of a pod, or of pods that do not exist yet.
const OF_NO_NODE: [&str; 3] =
    ["connection-on-port/blocks-in-pod", "pod-waits-for-port/workloads", "pod-waits-for-port/replicas"];

pub(crate) fn owned(snapshot: &Snapshot, (port, protocol): (u16, Protocol)) -> Option<Ownership> {
    owner(&Limits::default().round(snapshot, None), protocol, port).ok()
}

/// Whether `owner` may not know who answers, although this finding is certain.
fn is_undecided(rule: &str, gap: &Gap) -> bool {
    UNDECIDED.iter().any(|(its, words, _)| *its == rule && gap.detail.contains(*words))
}

/// The kinds of claim that may get the connections, according to a finding of this variant with this outcome. `claims`
/// are the kinds of all its claims.
fn winners<'c>(rule: &str, outcome: &str, claims: &'c [ClaimKind]) -> &'c [ClaimKind] {
    match (rule, outcome) {
        ("host-port-conflict/node-port", "service") => &[ClaimKind::NodePort],
        ("host-port-conflict/node-port", "pod") => &[ClaimKind::HostPort],
        ("external-ip-conflict/takes-node-port", _) => &[ClaimKind::ExternalIp],
        _ => claims,
    }
}

/// The values with this name in the evidence of a finding.
fn values<'f>(finding: &'f Finding, what: &'static str) -> impl Iterator<Item = &'f String> {
    finding.evidence.values.iter().filter(move |(name, _)| *name == what).map(|(_, value)| value)
}

/// The losers that a finding about a leftover redirection names: pods, processes and Services.
fn of_redirection(finding: &Finding) -> impl Iterator<Item = &String> {
    values(finding, "gets nothing").chain(values(finding, "may get nothing"))
}

/// Whether a finding names this claimant as a loser. A finding names only the first listeners of a port.
fn is_named(finding: &Finding, claimant: &Claimant) -> bool {
    let has_more = values(finding, "listener").any(|it| it.starts_with("and "));
    let has_socket = values(finding, "listener").any(|it| claimant.detail.contains(it));
    let has_owner = values(finding, "held by").any(|it| claimant.name.starts_with(it));
    has_more || has_socket && has_owner || of_redirection(finding).any(|it| claimant.name.contains(it))
}

/// The error if a finding reports lost connections and `owner` does not show them.
fn not_shown(snapshot: &Snapshot, finding: &Finding) -> Option<String> {
    let (rule, evidence) = (&*name(&finding.key), &finding.evidence);
    let port = (finding.key.port?, finding.key.protocol?);
    let of_listener = OF_LISTENERS.contains(&rule);
    let of_claims = OF_CLAIMS.iter().find(|(its, _)| *its == rule).map(|(_, claims)| claims);
    // A finding of severity info is about a port at which no connection is lost now.
    if evidence.severity == Severity::Info || !of_listener && of_claims.is_none() {
        return None;
    }
    // A finding about the whole cluster does not depend on the addresses of this node. `owner` depends on these
    // addresses.
    if evidence.scope == Scope::Cluster && snapshot.kernel.interfaces.gap().is_some() {
        return None;
    }
    let Some(owned) = owned(snapshot, port) else {
        return Some(format!("{}: owner tells nothing", pair(&finding.key)));
    };
    let claim = |index: Option<usize>| index.and_then(|index| Some(owned.claimants.get(index)?.claim));
    let shown = |from: Vantage| {
        let mut answers = owned.answers.iter().filter(|it| it.from == from);
        answers.any(|it| match (of_claims, &it.outcome) {
            // `owner` names the loser even if it does not know who answers.
            (None, _) => it.losers.iter().any(|loser| is_named(finding, &owned.claimants[*loser])),
            (Some(claims), Ok(_)) => {
                claim(it.by).is_some_and(|by| winners(rule, evidence.outcome, claims).contains(&by))
            }
            (Some(_), Err(gap)) => is_undecided(rule, gap),
        })
    };
    let missing: Vec<Vantage> = evidence.affects.iter().copied().filter(|from| !shown(*from)).collect();
    // The second claim may be at an address of another node.
    if rule == "external-ip-conflict/claimed-twice" && !is_claimed_twice_here(snapshot, port) {
        return None;
    }
    if !missing.is_empty() {
        return Some(format!("{}: lost from {missing:?}, and owner does not show this loss", pair(&finding.key)));
    }
    let is_claimant = |loser: &&String| owned.claimants.iter().any(|it| it.name.contains(*loser));
    if let Some(loser) = of_redirection(finding).find(|loser| !is_claimant(loser)) {
        return Some(format!("{}: owner does not list {loser}", pair(&finding.key)));
    }
    let all: Vec<ClaimKind> = owned.claimants.iter().map(|it| it.claim).collect();
    let lacks = of_claims.is_some_and(|claims| {
        let count = |of: &[ClaimKind], claim: &ClaimKind| of.iter().filter(|it| *it == claim).count();
        claims.iter().any(|claim| count(&all, claim) < count(claims, claim))
    });
    lacks.then(|| format!("{}: owner lists {all:?} only", pair(&finding.key)))
}

/// Whether a finding is about sockets or pods that need a port of this node. Such a finding is not about packets.
fn is_of_users(Finding { key, .. }: &Finding) -> bool {
    let rule = name(key);
    let kind = ids::find(key.rule.0).and_then(|id| id.variant(key.variant)).map(|it| it.kind);
    let is_decided = matches!(kind, Some(Kind::Pair(Arbiter::Bind | Arbiter::Replies | Arbiter::Scheduler)));
    let is_here = key.subject.kind != SubjectKind::Cluster && !OF_NO_NODE.contains(&&*rule);
    is_here && (is_decided || OF_NEEDS.contains(&&*rule))
}

/// The names that `owner` must list for a finding about the users of a port: the object, sockets, servers and tunnels
/// that the finding names.
fn users(Finding { key, evidence, .. }: &Finding) -> Vec<String> {
    let subject = match (key.subject.kind, &key.subject.namespace) {
        // The subject may be the Service for which ServiceLB made the pod. The kubelet may have refused the pod.
        _ if name(key) == WAITS => None,
        (SubjectKind::Service, _) => Some(key.subject.to_string()),
        (SubjectKind::Pod, Some(namespace)) => Some(format!("pod {namespace}/{}", key.subject.name)),
        _ => None,
    };
    let named = evidence.values.iter().filter(|(_, value)| !value.starts_with("and "));
    let named = named.filter_map(|(what, value)| match *what {
        "listener" | "socket" | "needed by" | "pending" => Some(value.clone()),
        "held by" => value.split_once(" on ").map(|(pod, _)| pod.to_owned()),
        "down" => value.split_once(": ").map(|(link, _)| format!("tunnel {link}")),
        "wanted" => Some("the agent of Portreeve".to_owned()),
        "wanted by kube-proxy" => Some("kube-proxy".to_owned()),
        _ => None,
    });
    subject.into_iter().chain(named).collect()
}

/// The error if a finding is about the users of a port, and `owner` does not name a user of the finding.
fn not_named(snapshot: &Snapshot, finding: &Finding) -> Option<String> {
    let port = (finding.key.port?, finding.key.protocol?);
    if !is_of_users(finding) {
        return None;
    }
    let Ok(owned) = owner(&Limits::default().round(snapshot, None), port.1, port.0) else {
        return Some(format!("{}: owner tells nothing", pair(&finding.key)));
    };
    let has = |wanted: &dyn Fn(&Beside) -> bool| owned.beside.iter().any(wanted);
    // `owner` lists only the first connections and servers of a port.
    let is_cut = has(&|it| it.kind != BesideKind::ClusterIp && it.name.contains(" more "));
    let is_needed = !OF_NEEDS.contains(&&*name(&finding.key)) || has(&|it| it.kind == BesideKind::Need);
    let claimants = owned.claimants.iter().map(|it| (&it.name, &it.detail));
    let told: Vec<_> = claimants.chain(owned.beside.iter().map(|it| (&it.name, &it.detail))).collect();
    let is_told = |user: &String| told.iter().any(|(name, detail)| name.contains(user) || detail.contains(user));
    let wanted = users(finding);
    let is_named = is_needed && !wanted.is_empty() && (is_cut || wanted.iter().all(is_told));
    (!is_named).then(|| format!("{}: of {wanted:?}, owner names {told:?}", pair(&finding.key)))
}

/// The error if a finding has the wrong key. The key has no port if routes decide which side loses. The key has a port
/// if packets, `bind`, the scheduler or the API server decide which side loses.
fn has_another_key(Finding { key, .. }: &Finding) -> Option<String> {
    let kind = ids::find(key.rule.0)?.variant(key.variant)?.kind;
    let wants_port = match kind {
        Kind::Pair(Arbiter::Routes) => false,
        Kind::Pair(Arbiter::Packets | Arbiter::Bind | Arbiter::Scheduler | Arbiter::Allocator) => true,
        Kind::Pair(Arbiter::Replies) | Kind::Pool | Kind::State(_) => return None,
    };
    let has_port = key.port.is_some() && key.protocol.is_some();
    (has_port != wants_port).then(|| format!("{}: decided by {kind}, with the port {:?}", name(key), key.port))
}

fn name(key: &Key) -> String {
    format!("{}/{}", key.rule, key.variant)
}

fn have(rows: &Rows, of: &str) -> bool {
    Named::parse(of).expect("a variant").names_any(rows.rule.0, rows.variants)
}

fn is_claimed_twice_here(snapshot: &Snapshot, (port, protocol): (u16, Protocol)) -> bool {
    let services = snapshot.cluster.services.seen().into_iter().flatten();
    let with_port: Vec<_> =
        services.filter(|it| it.ports.iter().any(|it| (it.port, it.protocol) == (port, protocol))).collect();
    let addresses = snapshot.kernel.interfaces.seen().into_iter().flat_map(|it| &it.addresses);
    let mut ours = addresses.map(|it| it.ip);
    ours.any(|ip| {
        let has = |it: &&Arc<Service>| it.external_ips.contains(&ip) || it.load_balancer_ips.contains(&ip);
        with_port.iter().copied().filter(has).count() > 1
    })
}

/// Why a listener has no finding, although `owner` shows that it loses connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Excuse {
    Proxys,
    /// A UDP socket in the ephemeral range is usually a client, not a server.
    Client,
    /// A pod has the port as hostPort, and another rule reports the pod, or cannot judge it.
    HostPort,
    /// The rule reports *unknown* about this port or object.
    NotJudged,
    /// The listener loses only the node's own connections to a link-local address.
    LinkLocal,
    /// The address is on this node only for the Service. A process that listens on all addresses still gets the
    /// connections to the node's other addresses.
    ForTheService,
    /// The listener is an endpoint of the Service and is not ready. No rule reports an endpoint that starts or ends.
    Endpoint,
}

impl Excuse {
    const ALL: [Self; 7] = [
        Self::Proxys,
        Self::Client,
        Self::HostPort,
        Self::NotJudged,
        Self::LinkLocal,
        Self::ForTheService,
        Self::Endpoint,
    ];
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn excuse(snapshot: &Snapshot, board: &Board, (owned, found): (&Ownership, &[String]), loser: usize) -> Option<Excuse> {
    let lost = || owned.answers.iter().filter(move |it| it.losers.contains(&loser));
    let by = |claim: ClaimKind| lost().all(|it| it.by.is_none_or(|by| owned.claimants[by].claim == claim));
    let claimant = &owned.claimants[loser];
    let range = snapshot.kernel.sysctls.ip_local_port_range.seen();
    if claimant.claim == ClaimKind::Proxy {
        return Some(Excuse::Proxys);
    }
    if owned.protocol == Protocol::Udp && range.is_none_or(|range| range.contains(owned.port)) {
        return Some(Excuse::Client);
    }
    let is_about = |subject: &Subject| owned.claimants.iter().any(|it| it.name.contains(&subject.to_string()));
    let mut doubted = board.unknown.iter().filter(|it| it.rows.rule == ids::HOST_PORT_CONFLICT.name);
    let is_reported = found.iter().any(|it| it.starts_with("host-port-conflict/"))
        || doubted.any(|it| it.subject.as_ref().is_none_or(is_about));
    if is_reported && owned.claimants.iter().any(|it| it.claim == ClaimKind::HostPort) {
        return Some(Excuse::HostPort);
    }
    let is_of_listeners = |rows: &Rows| OF_LISTENERS.iter().any(|its| have(rows, its));
    let unknown = board.unknown.iter().filter(|it| is_of_listeners(&it.rows));
    if unknown.into_iter().any(|it| it.subject.as_ref().is_none_or(is_about)) {
        return Some(Excuse::NotJudged);
    }
    if lost().all(|it| it.from == Vantage::Node && is_link_local(it.to)) {
        return Some(Excuse::LinkLocal);
    }
    if by(ClaimKind::ExternalIp) && !lost().any(|it| is_of_a_node(snapshot, it.to)) {
        return Some(Excuse::ForTheService);
    }
    is_unready_endpoint(snapshot, owned, &claimant.name).then_some(Excuse::Endpoint)
}

/// Whether the listener with this name is an unready endpoint of a Service that claims the port.
fn is_unready_endpoint(snapshot: &Snapshot, owned: &Ownership, name: &str) -> bool {
    let round = Limits::default().round(snapshot, None);
    let port = (owned.protocol, owned.port);
    let (Ok(addressed), Ok(listeners)) = (round.addressed().get(), round.listeners().get()) else { return false };
    let node_ports = round.node_ports().get().into_iter().flat_map(|all| all.at(port)).copied();
    let mut services = node_ports.chain(round.external_at(port).map(|(address, port)| (address.service, port)));
    let is_here = |ip: &IpAddr| addressed.interfaces.addresses.iter().any(|it| it.ip == *ip);
    let is_of = |socket: &Socket, ip: &IpAddr| socket.local == *ip || socket.local.is_unspecified() && is_here(ip);
    let has_unready = |service: &Service, family: Family, socket: &Socket| {
        let slices = snapshot.cluster.endpoint_slices.seen().into_iter().flatten();
        let its = slices.filter(|it| (&it.namespace, &it.service) == (&service.namespace, &service.name));
        let its = its.filter(|it| it.family == family && it.ports.iter().any(|it| it.port == Some(owned.port)));
        its.flat_map(|it| &it.endpoints).any(|it| !it.ready && it.addresses.iter().any(|ip| is_of(socket, ip)))
    };
    services.any(|service| {
        let mut its = listeners.at(port).iter().filter(|socket| name.ends_with(&place(socket)));
        its.any(|socket| {
            let is_one = |family| round.is_endpoint(addressed, service, family, socket) == Ok(true);
            Family::BOTH.into_iter().any(|family| has_unready(service.0, family, socket) && is_one(family))
        })
    })
}

/// Whether this node's Node lists an address, or another Node has the address as its first InternalIP.
fn is_of_a_node(snapshot: &Snapshot, ip: IpAddr) -> bool {
    let own = snapshot.own_node();
    snapshot.cluster.nodes.seen().into_iter().flatten().any(|node| {
        let mut internal = node.addresses.iter().filter(|it| it.kind == NodeAddressKind::InternalIp);
        let first = internal.find(|it| Family::of(it.ip) == Family::of(ip));
        let is_own = own.is_none_or(|own| own.name == node.name);
        first.is_some_and(|it| it.ip == ip) || is_own && node.addresses.iter().any(|it| it.ip == ip)
    })
}

fn claimed(snapshot: &Snapshot, board: &Board) -> Vec<(u16, Protocol)> {
    let round = Limits::default().round(snapshot, None);
    let mut claimed: Vec<Port> = Vec::new();
    claimed.extend(round.node_ports().get().iter().flat_map(|all| all.ports().map(|(port, _)| port)));
    claimed.extend(round.external_ports().get().iter().flat_map(|all| all.ports().map(|(port, _)| port)));
    claimed.extend(round.host_ports().get().iter().flat_map(|all| all.ports().map(|(port, _)| port)));
    let mut claimed: Vec<_> = claimed.into_iter().map(|(protocol, number)| (number, protocol)).collect();
    claimed.extend(ports(&board.findings));
    claimed.sort_unstable();
    claimed.dedup();
    claimed
}

/// The differences between `owner` and the findings of a node, and the number of losers for each `Excuse`. `None`
/// counts the losers without an `Excuse`.
pub(crate) fn disagreements(snapshot: &Snapshot, board: &Board) -> (Vec<String>, BTreeMap<Option<Excuse>, usize>) {
    let mut wrong: Vec<String> = board.findings.iter().filter_map(|it| not_shown(snapshot, it)).collect();
    wrong.extend(board.findings.iter().filter_map(has_another_key));
    wrong.extend(board.findings.iter().filter_map(|it| not_named(snapshot, it)));
    let mut asked = BTreeMap::new();
    for port in claimed(snapshot, board) {
        let Some(owned) = owned(snapshot, port) else { continue };
        let mut losers: Vec<usize> = owned.answers.iter().flat_map(|it| it.losers.iter().copied()).collect();
        losers.sort_unstable();
        losers.dedup();
        let of_port = |it: &&Finding| (it.key.port, it.key.protocol) == (Some(port.0), Some(port.1));
        let of_port: Vec<&Finding> = board.findings.iter().filter(of_port).collect();
        let found: Vec<String> = of_port.iter().map(|it| name(&it.key)).collect();
        let is_reported = |claimant: &Claimant| {
            of_port.iter().any(|it| match &*name(&it.key) {
                LEFT_BEHIND => it.evidence.severity > Severity::Info || is_named(it, claimant),
                rule => OF_LISTENERS.contains(&rule) && is_named(it, claimant),
            })
        };
        let takes = |it: &Answered| it.by.is_some_and(|by| owned.claimants[by].claim == ClaimKind::Redirection);
        let is_taken =
            owned.answers.iter().any(takes) && owned.claimants.iter().any(|it| it.claim != ClaimKind::Redirection);
        let is_doubted = board.unknown.iter().any(|it| have(&it.rows, LEFT_BEHIND));
        if is_taken && !is_doubted && !found.iter().any(|it| it == LEFT_BEHIND) {
            wrong.push(format!("{}/{}: a redirection that was left behind takes it, and no finding", port.0, port.1));
        }
        for loser in losers {
            let reported = is_reported(&owned.claimants[loser]);
            let excuse = if reported { None } else { excuse(snapshot, board, (&owned, &found), loser) };
            *asked.entry(excuse).or_default() += 1;
            if !reported && excuse.is_none() {
                let from = owned.answers.iter().filter(|it| it.losers.contains(&loser));
                let from: Vec<String> = from.map(|it| format!("{} to {} {:?}", it.from, it.to, it.outcome)).collect();
                let who = &owned.claimants[loser];
                wrong.push(format!(
                    "{}/{}: {} {} loses, and no finding: {from:?}",
                    port.0, port.1, who.name, who.detail
                ));
            }
        }
    }
    (wrong, asked)
}

#[test]
fn owner_is_asked_about_every_loss_that_the_data_plane_decides() {
    let decided = |it: &&Variant| it.kind == Kind::Pair(Arbiter::Packets) && it.ceiling() > Severity::Info;
    let of_id =
        |id: &&'static Id| id.variants.iter().filter(decided).map(|it| format!("{}/{}", id.name, it.name)).collect();
    let decided: BTreeSet<String> = ids::IDS.iter().flat_map::<Vec<_>, _>(of_id).collect();
    let asked = OF_LISTENERS.into_iter().chain(OF_CLAIMS.into_iter().map(|(its, _)| its));
    assert_eq!(decided, asked.map(str::to_owned).collect());
}

#[test]
fn owner_and_findings_are_one_judgement() {
    let mut wrong = Vec::new();
    let mut compared: BTreeMap<Option<Excuse>, usize> = BTreeMap::new();
    let mut of_users = BTreeSet::new();
    for (node, snapshot) in small().into_iter().chain(one_of_each_plane()) {
        let board = board(&snapshot);
        let (here, asked) = disagreements(&snapshot, &board);
        asked.into_iter().for_each(|(excuse, count)| *compared.entry(excuse).or_default() += count);
        of_users.extend(board.findings.iter().filter(|it| is_of_users(it)).map(|it| name(&it.key)));
        wrong.extend(here.into_iter().map(|it| format!("{node}: {it}")));
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared.get(&None) >= Some(&100), "{compared:?} losers compared");
    for excuse in Excuse::ALL {
        assert!(compared.contains_key(&Some(excuse)), "nobody has {excuse:?} for an excuse: {compared:?}");
    }
    let wanted =
        ["connection-on-port/answers-taken", "host-network-port-taken/listener", "tunnel-port-conflict/devices"];
    let lacking: Vec<_> = wanted.into_iter().chain(OF_NEEDS).filter(|it| !of_users.contains(*it)).collect();
    assert!(lacking.is_empty(), "no node has {lacking:?}: {of_users:?}");
}

#[test]
fn of_a_listener_that_is_an_endpoint_in_one_place_only_owner_and_findings_say_the_same() {
    let home = |it: World, address: &str, node: Option<&str>| {
        it.each_slice(|slice| {
            slice.ports[0].port = Some(30080);
            if slice.family == Family::of(ip(address)) {
                slice.endpoints[0].addresses = vec![ip(address)];
                slice.endpoints[0].node = node.map(str::to_owned);
            }
        })
    };
    let external = |it: World| it.external_ip(PRIMARY[0]).local().with(|service| service.ports[0].port = 30080);
    let of = |change: &dyn Fn(World) -> World| Snapshot::healthy().service("web", change);
    let unnamed = of(&|it| home(external(it), PRIMARY[0], None)).listens("0.0.0.0:30080");
    let closer = of(&|it| home(external(it), PRIMARY[0], Some("n1"))).listens("192.0.2.1:30080");
    let closer = closer.listens_as("0.0.0.0:30080", daemon("other", 7));
    let of_ipv6 = of(&|it| home(it.node_port(30080), PRIMARY[1], Some("n1"))).listens("[::]:30080");
    let worlds = [(unnamed, Some(OF_LISTENERS[2])), (closer, None), (of_ipv6, Some(OF_LISTENERS[0]))];
    for (world, reported) in worlds {
        let judged = board(&world);
        let found = judged.findings.iter().map(|it| name(&it.key)).find(|it| OF_LISTENERS.contains(&&**it));
        assert_eq!(found.as_deref(), reported);
        for mode in Mode::KUBE_PROXY {
            let world = world.with_mode(mode);
            assert_eq!(disagreements(&world, &board(&world)).0, [""; 0], "{mode}");
        }
    }
}

#[test]
fn of_a_virtual_address_that_another_node_still_lists_owner_and_findings_say_the_same() {
    for sshd in ["0.0.0.0:22", "198.51.100.7:22"] {
        let balanced = |lb: &mut Service| (lb.load_balancer_ips, lb.ports[0].port) = (vec![ip("198.51.100.7")], 22);
        let world = Snapshot::healthy().service("lb", |it| it.with(balanced)).address("eth0", "198.51.100.7");
        let mut world = world.listens_as(sshd, daemon("sshd", 600));
        let address = NodeAddress { kind: NodeAddressKind::InternalIp, ip: ip("198.51.100.7") };
        objects(&mut world.cluster.nodes)[1].addresses.push(address);
        assert_eq!(disagreements(&world, &board(&world)).0, [""; 0], "{sshd}");
    }
}

#[test]
fn of_two_services_with_one_address_and_port_the_finding_names_both_and_owner_knows_no_winner() {
    let typed = |it: World| it.external_ip(PRIMARY[0]).with(|service| service.ports[0].port = 8443);
    let world = Snapshot::healthy().service("one", typed).service("other", typed);
    for mode in Mode::KUBE_PROXY {
        let world = world.with_mode(mode);
        let judged = board(&world);
        assert!(judged.findings.iter().any(|it| name(&it.key) == UNDECIDED[1].0), "{mode}");
        assert_eq!(disagreements(&world, &judged).0, [""; 0], "{mode}");
    }
}

#[test]
fn of_a_redirection_to_a_container_outside_of_kubernetes_owner_and_findings_name_the_same_losers() {
    let rule = |to: &str, handle| {
        let chain = "ip nat CNI-DN-1".to_owned();
        Redirection { protocol: Protocol::Tcp, port: 8080, ip: None, to: ip(to), to_port: 80, chain, handle }
    };
    let redirections = Reading::Seen(vec![rule("10.88.0.7", 1), rule("10.1.0.8", 2)]);
    let world = Snapshot::healthy().address("podman0", "10.88.0.1").listens_as("0.0.0.0:8080", daemon("nginx", 9));
    let mut world = world.pod("edge", |pod| {
        pod.ips = vec![ip("10.1.0.8")];
        pod.host_port(80, 8080);
    });
    interfaces_of(&mut world).addresses.last_mut().expect("an address of podman0").prefix = 16;
    world.kernel.netfilter = Reading::Seen(Netfilter { redirections, ..Netfilter::default() });
    for mode in Mode::KUBE_PROXY {
        let world = world.with_mode(mode);
        let judged = board(&world);
        let found: BTreeSet<String> = judged.findings.iter().map(|it| name(&it.key)).collect();
        assert!(found.contains(LEFT_BEHIND) && found.contains(OF_LISTENERS[1]), "{mode}: {found:?}");
        assert_eq!(disagreements(&world, &judged).0, [""; 0], "{mode}");
    }
}

#[test]
fn of_a_process_beside_a_container_outside_of_kubernetes_owner_and_findings_say_the_same() {
    let redirection = || Redirection {
        protocol: Protocol::Tcp,
        port: 8080,
        ip: None,
        to: ip("10.88.0.7"),
        to_port: 80,
        chain: "ip nat CNI-DN-1".to_owned(),
        handle: 1,
    };
    for (owner, severity) in [(daemon("nginx", 9), Severity::Warning), (Owner::NotRead, Severity::Info)] {
        let mut world = Snapshot::healthy().address("podman0", "10.88.0.1").listens_as("0.0.0.0:8080", owner);
        world = world.pod("edge", |pod| pod.host_port(80, 9090));
        interfaces_of(&mut world).addresses.last_mut().expect("an address of podman0").prefix = 16;
        let redirections = Reading::Seen(vec![redirection()]);
        world.kernel.netfilter = Reading::Seen(Netfilter { redirections, ..Netfilter::default() });
        let judged = board(&world);
        let found = judged.findings.iter().find(|it| name(&it.key) == LEFT_BEHIND).expect("a finding");
        assert_eq!(found.evidence.severity, severity);
        assert_eq!(disagreements(&world, &judged).0, [""; 0], "{severity}");
    }
}

#[test]
fn a_finding_that_names_another_loser_or_another_winner_is_a_disagreement() {
    let web = || Snapshot::healthy().service("web", |it| it.node_port(30080));
    let change_owner = |it: &mut Finding| {
        let owners = it.evidence.values.iter_mut().filter(|(what, _)| *what == "held by");
        owners.for_each(|(_, owner)| *owner = "process other".to_owned());
    };
    let with_listener = web().listens_as("0.0.0.0:30080", daemon("nginx", 9));
    let with_host_port = web().pod("edge", |pod| pod.host_port(80, 30080));
    let disagrees = |world: &Snapshot, rule, change: fn(&mut Finding)| {
        let mut judged = board(world);
        assert_eq!(disagreements(world, &judged).0, [""; 0], "{rule}");
        judged.findings.iter_mut().filter(|it| name(&it.key) == rule).for_each(change);
        assert!(!disagreements(world, &judged).0.is_empty(), "{rule}");
    };
    disagrees(&with_listener, OF_LISTENERS[0], change_owner);
    disagrees(&with_host_port, "host-port-conflict/node-port", |it| it.evidence.outcome = "pod");
}

#[test]
fn a_process_loses_nothing_where_the_kernel_prefers_another_socket() {
    let worlds = [
        Snapshot::healthy().service("web", |it| it.node_port(30080)).with_mode(Mode::Nftables),
        Snapshot::healthy().service("web", |it| it.external_ip(PRIMARY[0]).with(|web| web.ports[0].port = 30080)),
    ];
    for world in worlds {
        let world = world.listens_as("192.0.2.1:30080", daemon("closer", 8));
        let world = world.listens_as("0.0.0.0:30080", daemon("other", 7));
        let judged = board(&world);
        let found = judged.findings.iter().filter(|it| OF_LISTENERS.contains(&&*name(&it.key)));
        let found: Vec<&str> = found.map(|it| &*it.evidence.summary).collect();
        assert!(found.len() == 1 && found[0].contains("closer"), "{found:?}");
        assert_eq!(disagreements(&world, &judged).0, [""; 0]);
    }
}

#[test]
fn map_calls_a_number_free_if_suggest_suggests_it() {
    let mut compared = 0;
    for (name, snapshot) in small() {
        let (Ok(usage), free) = (port_usage(&snapshot), FreePorts::of(&snapshot)) else { continue };
        if !free.is_known() {
            continue;
        }
        let is_free = |it: &u16| *it > 0 && !usage.used.contains_key(it) && !usage.ephemeral.contains(*it);
        let drawn: PortSet = usage.range.range.iter().filter(is_free).collect();
        assert_eq!(drawn, free.as_read().collect::<PortSet>(), "{name}");
        let lacks = |source| usage.unread.iter().any(|gap| gap.source == source);
        assert!(free.unread.iter().all(|(_, gap)| lacks(gap.source)), "{name}: {:?}", usage.unread);
        compared += 1;
    }
    assert!(compared > 100, "{compared} nodes");
}

#[test]
fn of_two_services_with_one_node_port_owner_and_findings_name_the_same_one_or_none() {
    let changes: [fn(World) -> World; 3] = [|it| it, World::without_endpoints, |it| it.local().elsewhere()];
    for (mode, one, other) in Mode::ALL.into_iter().flat_map(|mode| {
        changes.into_iter().flat_map(move |one| changes.into_iter().map(move |other| (mode, one, other)))
    }) {
        let world = Snapshot::healthy().service("api", |it| one(it.node_port(30080)));
        let world = world.service("web", |it| other(it.node_port(30080))).listens("0.0.0.0:30080").with_mode(mode);
        let board = board(&world);
        assert_eq!(disagreements(&world, &board).0, [""; 0], "{mode}");
        let owned = owned(&world, (30080, Protocol::Tcp)).expect("it is known");
        for Finding { key, evidence, .. } in board.findings.iter().filter(|it| name(&it.key) == OF_LISTENERS[0]) {
            let by_pods = owned.answers.iter().filter(|it| it.outcome == Ok(Outcome::Pod));
            let names: Vec<&str> = by_pods.filter_map(|it| Some(&*owned.claimants[it.by?].name)).collect();
            let is_true = match &*evidence.summary {
                it if it.ends_with("go to the Service's pods instead.") => names.contains(&&*key.subject.to_string()),
                it if it.ends_with("since the Service has no endpoints.") => names.is_empty(),
                _ => true,
            };
            assert!(is_true, "{mode}: {}, and pods of {names:?} answer", evidence.summary);
        }
    }
}

#[test]
fn a_guard_reserves_the_ports_that_reserve_wants_of_its_node() {
    let mut wanted_at_all = 0;
    let unnamed = Snapshot::healthy().pod("edge", |pod| pod.host_port(80, 8080)).unnamed();
    for (name, mut snapshot) in small().into_iter().chain([("unnamed".to_owned(), unnamed)]) {
        // The kernel may choose most ports for connections, and no port is reserved yet.
        snapshot = snapshot.ephemeral("1024 65535", "");
        let guard = NodeGuard { run: GuardRun::Runs, ports: Some(PortSet::default()) };
        let Ok(node) = NodeReservation::of(&snapshot, Some(guard)) else { continue };
        if snapshot.cluster.services.gap().is_some() {
            continue;
        }
        let wanted = Wanted::of(&Limits::default().round(&snapshot, None)).ports.into_keys().collect::<PortSet>();
        let wanted = wanted.intersection(&PortSet::from(node.ephemeral));
        // A guard reserves kube-proxy's two ports even if the proxy mode is not known.
        let of_proxy: PortSet =
            if snapshot.proxy_mode().is_ok() { PortSet::default() } else { [10249, 10256].into_iter().collect() };
        let lacks = node.lacks(&FleetReservation::no_list());
        assert_eq!(lacks.minus(&of_proxy), wanted.minus(&of_proxy), "{name}");
        wanted_at_all += wanted.len();
    }
    assert!(wanted_at_all > 100, "{wanted_at_all} ports");
}
