//! An outgoing connection has a Service's port as source port, so the Service may get the answers.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
    net::{IpAddr, SocketAddr},
    slice,
};

use super::{
    Limits, Round, Rule,
    assumed::assuming,
    ephemeral::{EphemeralPorts, is_unconnected, with_ranges},
    ids,
    reservation::reserve,
    socket_needs::{Ports, SocketNeed},
    wording::{MOST_SOCKETS, capital, with_socket},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Step, Subject, Vantage, Verdict};
use portreeve_dataplane::{
    Addressed, Assumption, ByPort, Judged, LocalAddress, Loss, Part, Stratum, is_everywhere, owner_name, place,
    service_port,
};
use portreeve_facts::{
    Family, Gap, Mode, Protocol, Reading, Service, ServicePort, Snapshot, Socket, Source, State, Unread, Why,
};

pub(super) static RULE: Rule = Rule::of(
    &ids::CONNECTION_ON_PORT,
    &["answers-taken"],
    &[Source::Clients, Source::Listeners, Source::Services, Source::Addresses],
    check,
)
.uses(&[Source::Sockstat, Source::IpVs, Source::IpVsConn])
.sockets(&[
    SocketNeed::Clients(Ports::NodePorts),
    SocketNeed::Clients(Ports::ExternalIps),
    SocketNeed::Owners(Ports::NodePorts),
    SocketNeed::Owners(Ports::ExternalIps),
]);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let clients = snapshot.kernel.clients.get()?;
    let listeners = snapshot.kernel.listeners.get()?;
    let node_ports = round.node_ports().get()?;

    let accepting = round.listeners().get()?;
    let mut sockets = Vec::new();
    for socket in clients.sockets.iter().filter(|socket| matches!(socket.state, State::Established | State::SynSent)) {
        match accepted(socket, accepting) {
            Some(true) => {}
            accepted => sockets.push((socket, accepted)),
        }
    }
    // An unconnected UDP socket counts as a client if its port is ephemeral. If the ephemeral port range was not read,
    // this rule leaves out such sockets. `listener-on-node-port/loses` reports the unread range.
    let ephemeral = EphemeralPorts::of(snapshot);
    sockets.extend(listeners.iter().filter(|it| ephemeral.may_be_client(it) == Ok(true)).map(|it| (it, Some(false))));

    let node = Node {
        round,
        snapshot,
        node_ports,
        addressed: round.addressed().get()?,
        virtual_servers: virtual_servers(snapshot),
    };
    let mut judgements = node.judge(&sockets);
    let missing = clients.outgoing_missing();
    judgements.extend(missing.map(|gap| Judgement::of(Subject::this_node(snapshot), Verdict::Unknown(gap))));
    Ok(judgements)
}

/// Whether a listener accepted this connection. `None` if it is not known whether the listener serves IPv4.
fn accepted(socket: &Socket, listeners: &ByPort<&Socket>) -> Option<bool> {
    let local = socket.local.to_canonical();
    let covers = |listener: &&Socket| match listener.local.to_canonical() {
        bound if bound == local => Some(true),
        bound if bound.is_unspecified() => listener.serves(Family::of(local)),
        _ => Some(false),
    };
    let answers: Vec<_> = listeners.at((socket.protocol, socket.local_port)).iter().map(covers).collect();
    if answers.contains(&Some(true)) {
        return Some(true);
    }
    answers.iter().all(Option::is_some).then_some(false)
}

/// The virtual servers of IPVS. An empty table is treated as unread, because a working proxy in ipvs mode serves at
/// least the Service `default/kubernetes`.
fn virtual_servers(snapshot: &Snapshot) -> Result<HashSet<(Protocol, IpAddr, u16)>, String> {
    match &snapshot.kernel.ip_vs {
        Reading::Gap(gap) => Err(gap.detail.clone()),
        Reading::Seen(servers) if servers.is_empty() => Err("/proc/net/ip_vs is empty".to_owned()),
        Reading::Seen(servers) => Ok(servers.iter().map(|it| (it.protocol, it.ip, it.port)).collect()),
    }
}

struct Node<'r, 'a> {
    round: &'r Round<'a>,
    snapshot: &'a Snapshot,
    node_ports: &'r ByPort<(&'a Service, &'a ServicePort)>,
    addressed: &'r Addressed<'a>,
    /// The virtual servers of IPVS, or the reason why they were not read. If the virtual servers were not read, the
    /// rule uses the proxy's settings instead.
    virtual_servers: Result<HashSet<(Protocol, IpAddr, u16)>, String>,
}

#[derive(Clone, Copy)]
struct Claim<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    part: Part,
}

#[derive(Clone, PartialEq)]
struct Lost(Severity);

impl Loss for Lost {
    fn meet(self, other: &Self) -> Option<Self> {
        Some(Self(self.0.min(other.0)))
    }

    fn join(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

struct Hit<'a> {
    socket: &'a Socket,
    claim: Option<Claim<'a>>,
    severity: Result<Severity, Gap>,
    stratum: Stratum,
}

impl<'a> Node<'_, 'a> {
    fn judge(&self, sockets: &[(&'a Socket, Option<bool>)]) -> Vec<Judgement> {
        let mut hits: BTreeMap<(Subject, Protocol, u16), Vec<Hit<'a>>> = BTreeMap::new();
        for (socket, accepted) in sockets {
            let mut claims: Vec<_> = self.claims_on(socket).map(Some).collect();
            if claims.is_empty() {
                // IPVS may serve an address of a Service that was deleted.
                claims.push(None);
            }
            for claim in claims {
                let (severity, stratum) = self.severity((socket, *accepted), claim);
                let Some(severity) = severity.transpose() else { continue };
                let subject =
                    claim.map_or_else(|| Subject::this_node(self.snapshot), |claim| Subject::service(claim.service));
                let hit = Hit { socket, claim, severity, stratum };
                hits.entry((subject, socket.protocol, socket.local_port)).or_default().push(hit);
            }
        }
        let judgement = |((subject, protocol, port), hits)| {
            let verdict = self.verdict(hits);
            Judgement::on_port(subject, (protocol, port), verdict)
        };
        hits.into_iter().map(judgement).collect()
    }

    fn claims_on(&self, socket: &Socket) -> impl Iterator<Item = Claim<'a>> {
        let (port, local) = ((socket.protocol, socket.local_port), socket.local.to_canonical());
        let by_node_port = self
            .node_ports
            .at(port)
            .iter()
            .filter(move |(service, _)| local.is_unspecified() || service.families.contains(&Family::of(local)));
        let by_node_port = by_node_port.map(|(service, port)| Claim { service, port, part: Part::NodePorts });
        let external = self.round.external_at(port).filter(move |(address, _)| address.ip == local);
        by_node_port.chain(external.map(|(address, port)| Claim {
            service: address.service,
            port,
            part: address.part(),
        }))
    }

    /// If every possible setting leads to a problem, the severity is the mildest of these problems. If only some
    /// settings lead to a problem, the severity is information or unknown.
    fn severity(
        &self,
        (socket, accepted): (&Socket, Option<bool>),
        claim: Option<Claim<'_>>,
    ) -> (Result<Option<Severity>, Gap>, Stratum) {
        // If the mode is unknown, the socket is treated like a socket on every address. The result does not change,
        // because the connection is harmless in one of the possible modes.
        let everywhere = is_everywhere(socket) || self.addressed.assumptions.mode.is_err();
        let (judged, stratum) = self.addressed.over(everywhere, |assumption, case| {
            let Some(severity) = self.severity_in(assumption, socket, claim) else { return Ok(None) };
            if let Some(claim) = claim
                && !case.is_served(self.round, assumption, (claim.service, claim.part))
            {
                return Ok(None);
            }
            match accepted {
                Some(_) => Ok(Some(Lost(severity))),
                None => Err(Gap::new(
                    Source::Listeners,
                    Why::Ambiguous,
                    "a connection on a NodePort may be outgoing: the kernel did not show whether an IPv6 listener is v6only",
                )),
            }
        });
        let most = if stratum == Stratum::Defaults { Severity::Warning } else { Severity::Critical };
        let severity = match judged {
            Judged::Never => Ok(None),
            Judged::Certain(Lost(severity), _) => Ok(Some(severity.min(most))),
            Judged::Depends { ever: Some(Lost(Severity::Info)), .. } => Ok(Some(Severity::Info)),
            Judged::Depends { on, .. } => Err(on),
        };
        (severity, stratum)
    }

    fn severity_in(&self, assumption: &Assumption, socket: &Socket, claim: Option<Claim<'_>>) -> Option<Severity> {
        if !self.takes(assumption, socket, claim) {
            return None;
        }
        let was_retransmitted = socket.retransmits > 0;
        Some(match assumption.mode() {
            Mode::Iptables | Mode::Nftables => Severity::Info,
            // Without a retransmission, the peer may be a pod on this node.
            Mode::Cilium if was_retransmitted => Severity::Critical,
            Mode::Cilium => Severity::Warning,
            Mode::Ipvs => match (socket.protocol, socket.state) {
                // Without a retransmission, the socket may belong to a server, or the first answer may still arrive.
                (Protocol::Udp, State::Close) | (_, State::SynSent) if !was_retransmitted => Severity::Warning,
                (Protocol::Udp, _) | (_, State::SynSent) => Severity::Critical,
                _ => Severity::Info,
            },
        })
    }

    /// Whether the data plane may redirect packets that are for the socket. Packets of connections that the kernel
    /// tracks are not redirected.
    fn takes(&self, assumption: &Assumption, socket: &Socket, claim: Option<Claim<'_>>) -> bool {
        let mut bound = self.bound(socket).iter().filter(|local| socket.serves(Family::of(local.ip)) == Some(true));
        let port = (socket.protocol, socket.local_port);
        match (assumption.mode(), claim, &self.virtual_servers) {
            (Mode::Ipvs, _, Ok(servers)) => {
                bound.any(|local| servers.contains(&(socket.protocol, local.ip, socket.local_port)))
            }
            (_, None, _) => false,
            // Cilium translates packets from outside when they arrive. For a connection of this node, Cilium translates
            // the destination when the client calls `connect`.
            (Mode::Cilium, Some(_), _) if self.is_own(socket.remote) => false,
            (_, Some(Claim { part: Part::Address(_), .. }), _) => true,
            (mode, Some(Claim { service, .. }), _) => {
                bound.filter(|local| service.families.contains(&Family::of(local.ip))).any(|local| match mode {
                    Mode::Cilium => assumption.may_take_from((*local, port), Vantage::Remote),
                    _ => assumption.may_take(*local, port),
                })
            }
        }
    }

    fn is_own(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_loopback() || self.addressed.local(ip).is_some()
    }

    /// The node's addresses on which the socket receives packets, sorted.
    fn bound(&self, socket: &Socket) -> &[LocalAddress] {
        if socket.local.is_unspecified() {
            return &self.addressed.locals;
        }
        self.addressed.local(socket.local.to_canonical()).map_or(&[], slice::from_ref)
    }

    fn verdict(&self, mut hits: Vec<Hit<'_>>) -> Verdict {
        // Without the addresses, the order of the sockets would decide which sockets are named.
        hits.sort_by_key(|Hit { severity, socket: it, .. }| {
            (Reverse(severity.as_ref().ok().copied()), it.local, it.local_port, it.remote, it.remote_port, it.inode)
        });
        let severity = match &hits[0].severity {
            Ok(severity) => *severity,
            Err(gap) => return Verdict::Unknown(gap.clone()),
        };
        let worst = &hits[0];
        let mut evidence = Evidence::new(severity, self.sentence(worst, severity));
        for hit in hits.iter().filter(|hit| hit.severity.is_ok()).take(MOST_SOCKETS) {
            evidence = with_socket(evidence, "socket", self.snapshot, hit.socket);
        }
        evidence = evidence.and_more("socket", hits.len(), MOST_SOCKETS);
        evidence = self.facts(evidence, worst);
        if severity == Severity::Critical {
            evidence = evidence.affects([Vantage::Node]);
        }
        let verdict = Verdict::Problem(self.remedies(evidence, worst.socket));
        assuming(worst.stratum, false, verdict)
    }

    fn sentence(&self, hit: &Hit<'_>, severity: Severity) -> String {
        let socket = hit.socket;
        let ipvs = self.snapshot.is_in(Mode::Ipvs);
        let cilium = self.snapshot.is_in(Mode::Cilium);
        let ends = match (severity, ipvs, socket.protocol, socket.state) {
            (Severity::Critical, ..) if cilium => {
                "the connection hangs, because Cilium treats packets from outside as a new connection"
            }
            _ if cilium => {
                "answers from outside this node do not arrive, because Cilium treats the answers as a new connection"
            }
            (Severity::Critical, _, Protocol::Udp, _) => {
                "ipvs treats the answers as new connections and sends the answers to a pod"
            }
            (Severity::Critical, ..) => {
                "the connection hangs, because ipvs treats the answer as a new connection and sends the answer to a pod"
            }
            (Severity::Warning, true, Protocol::Udp, _) => {
                "if the program waits for answers, ipvs sends the answers to a pod"
            }
            (Severity::Warning, true, ..) => {
                "ipvs will treat the answer as a new connection and send the answer to a pod"
            }
            (Severity::Warning, ..) => "the proxy may treat answers to this socket as new connections",
            (Severity::Info, ..) if self.addressed.assumptions.mode.is_err() => {
                "in iptables and nftables mode the connection works while conntrack has an entry for the connection; in other modes the connection may hang"
            }
            (Severity::Info, true, ..) => "the connection works until the program has to reconnect",
            (Severity::Info, ..) => {
                "the connection works as long as the kernel's conntrack has an entry for the connection"
            }
        };
        let whose = match hit.claim {
            Some(Claim { service, port, part: Part::NodePorts }) => {
                format!("the NodePort of {}", service_port(service, &port.name))
            }
            Some(Claim { service, port, .. }) => {
                format!("an external address and port of {}", service_port(service, &port.name))
            }
            None => "an IPVS virtual server that no Service explains".to_owned(),
        };
        format!("{} sends from {}, {whose}: {ends}.", capital(&owner_name(self.snapshot, &socket.owner)), place(socket))
    }

    fn facts(&self, mut evidence: Evidence, hit: &Hit<'_>) -> Evidence {
        let socket = hit.socket;
        if let Some(Claim { service, port, .. }) = hit.claim {
            let node_port = port.node_port.map_or_else(|| "none".to_owned(), |number| number.to_string());
            let words = format!(
                "{} type {}, port {}, nodePort {node_port}, {}",
                service_port(service, &port.name),
                service.kind.name(),
                port.port,
                port.protocol
            );
            evidence = evidence.value("service", words);
        }
        evidence = evidence.value("proxy mode", self.addressed.assumptions.mode_in_words());
        evidence = with_ranges(evidence, self.snapshot);
        if !self.addressed.assumptions.iter().any(|assumption| assumption.mode() == Mode::Ipvs) {
            return evidence;
        }
        evidence = match &self.virtual_servers {
            Ok(_) => evidence.value("ip_vs virtual server", place(socket)),
            Err(why) => {
                evidence.value("ip_vs virtual server", format!("{} expected in ipvs mode: {why}", place(socket)))
            }
        };
        match &self.snapshot.kernel.ip_vs_connections {
            Reading::Gap(gap) => evidence.value("ip_vs connection", format!("not seen: {}", gap.detail)),
            Reading::Seen(connections) => connections
                .iter()
                .filter(|it| {
                    it.protocol == socket.protocol && it.to == (socket.local.to_canonical(), socket.local_port)
                })
                .filter(|it| it.from == (socket.remote.to_canonical(), socket.remote_port) || is_unconnected(socket))
                .take(MOST_SOCKETS)
                .fold(evidence, |evidence, it| {
                    let end = |(ip, port)| SocketAddr::new(ip, port);
                    let (from, to, pod) = (end(it.from), end(it.to), end(it.destination));
                    evidence.value("ip_vs connection", format!("{} {from} -> {to} -> {pod} {}", it.protocol, it.state))
                }),
        }
    }

    fn remedies(&self, evidence: Evidence, socket: &Socket) -> Evidence {
        let owner = owner_name(self.snapshot, &socket.owner);
        let port = socket.local_port;
        let reserved = &self.snapshot.kernel.sysctls.ip_local_reserved_ports;
        if reserved.known(Unread::Adds).is_some_and(|reserved| reserved.contains(port)) {
            return evidence.remedy(Step::advice(format!(
                "restart {owner}: the port is reserved now, so the kernel does not choose it again"
            )));
        }
        let ports = [port].into_iter().collect();
        let restart = Step::advice(format!("restart {owner}, or make it reconnect"));
        evidence.remedy(reserve(self.round, &ports).then(restart))
    }
}

#[cfg(test)]
mod tests;
