//! A process listens on the NodePort of a Service, and gets no new connections.

mod words;

use std::{cmp::Reverse, collections::BTreeSet};

use super::{
    Limits, Round, Rule,
    assumed::{assuming, at_least},
    capped::{in_order, of_sockets},
    ephemeral::EphemeralPorts,
    free_ports::Alternatives,
    host_port_takes_listener::keeps_host_port,
    ids,
    node_ports::{if_served, range_in_words},
    remedies::{another_number, move_off},
    socket_needs::{Ports, SocketNeed},
    wording::{MOST_LISTED, capital, with_socket},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Subject, Vantage, Verdict};
use portreeve_dataplane::{
    Addressed, Assumption, Claim, Contest, Judged, LocalAddress, Lost, Outcome, Part, Port, Stratum, covers,
    is_everywhere, owner_name, place, refuses_bind_of, service_port,
};
use portreeve_facts::{ClaimOf, Family, Gap, Mode, Service, ServicePort, Snapshot, Socket, Source, Unread, Why};

pub(super) static RULE: Rule = Rule::of(
    &ids::LISTENER_ON_NODE_PORT,
    &["loses", "trap", "no-return"],
    &[Source::Listeners, Source::Services, Source::Addresses],
    check,
)
.sockets(&[
    SocketNeed::Owners(Ports::NodePorts),
    SocketNeed::Owners(Ports::HostNetworkPods),
    SocketNeed::Owners(Ports::Proxy),
]);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let (listeners, node_ports, addressed) =
        (round.listeners().get()?, round.node_ports().get()?, round.addressed().get()?);

    let contested = node_ports.ports().map(|(port, services)| (port, services, listeners.at(port)));
    let mut contested = contested.filter(|(.., sockets)| !sockets.is_empty()).peekable();
    if contested.peek().is_none() {
        return Ok(Vec::new());
    }
    let (ephemeral, alternatives) = (EphemeralPorts::of(snapshot), Alternatives::of(round));
    let node = Node { round, snapshot, addressed, ephemeral, alternatives };
    let judged = contested.flat_map(|(port, services, sockets)| {
        let mut sockets = in_order(sockets, |socket| node.rank(socket));
        // A user can listen on any number of addresses that the node does not have.
        sockets.retain(|(socket, _)| node.has_place(socket));
        let pods = round.host_ports().known(Unread::Reported("Node::is_host_port")).into_iter();
        let pods = pods.flat_map(|all| all.at(port));
        let pods = pods.map(|(pod, port)| Claim::HostPort(pod, port));
        let of_services = round.claims_of_services(port, |ip| addressed.local(ip).is_some());
        let claims: Vec<_> = of_services.into_iter().chain(pods).collect();
        services.iter().flat_map(|of| node.judge_some(*of, port, &claims, &sockets)).collect::<Vec<_>>()
    });
    Ok(judged.collect())
}

struct Node<'r, 'a> {
    round: &'r Round<'a>,
    snapshot: &'a Snapshot,
    addressed: &'r Addressed<'a>,
    ephemeral: EphemeralPorts,
    alternatives: Alternatives,
}

impl Node<'_, '_> {
    fn has_place(&self, socket: &Socket) -> bool {
        socket.local.is_unspecified() || socket.local.is_loopback() || self.addressed.local(socket.local).is_some()
    }

    /// Whether the NodePort with a socket's number is served on an address; `None` if this depends on unread settings.
    fn captures(&self, local: LocalAddress, socket: &Socket) -> Option<bool> {
        self.addressed.assumptions.agree(|it| it.captures(local, socket.local_port))
    }

    /// The rank of a socket. The sockets that may lose the most connections have the smallest rank.
    fn rank(&self, socket: &Socket) -> (bool, bool) {
        let is_left_out = |it: &LocalAddress| it.vrf || self.captures(*it, socket) == Some(false);
        (!socket.local.is_unspecified(), self.addressed.local(socket.local).is_none_or(is_left_out))
    }

    /// The judgements about one port of a Service. `claims` are the claims of all Services and pods to the port.
    fn judge_some(
        &self,
        (service, port): (&Service, &ServicePort),
        number: Port,
        claims: &[Claim<'_>],
        sockets: &[(&Socket, usize)],
    ) -> Vec<Judgement> {
        let claims = Claim::NodePort(service, port).first_of(claims.iter().copied());
        let mut latent: Vec<Evidence> = Vec::new();
        let (problem, unknown) = of_sockets(number, sockets, |it| match self.judge(service, port, *it, &claims)? {
            Ok(evidence) if !evidence.variant.is_empty() => {
                latent.push(evidence);
                None
            }
            lost => Some(lost),
        });
        latent.sort_by_key(|it| Reverse(it.severity));
        let all = latent.len();
        let latent = latent.into_iter().take(MOST_LISTED).reduce(Evidence::merge).map(|latent| {
            let latent = latent.and_more("listener", all, MOST_LISTED);
            if_served(self.round, service, Part::NodePorts, Verdict::Problem(latent))
        });
        let verdicts = problem.map(Verdict::Problem).into_iter().chain(unknown.into_iter().map(Verdict::Unknown));
        let judgement = |verdict| Judgement::on_port(Subject::service(service), number, verdict);
        verdicts.chain(latent).map(judgement).collect()
    }

    fn judge(
        &self,
        service: &Service,
        port: &ServicePort,
        (socket, workers): (&Socket, usize),
        claims: &[Claim<'_>],
    ) -> Option<Result<Evidence, Gap>> {
        let endpoint = Family::BOTH.map(|it| self.round.is_endpoint(self.addressed, (service, port), it, socket));
        let is_endpoint = endpoint.each_ref().map(|it| *it == Ok(true));
        let may_be_endpoint = endpoint.each_ref().map(|it| *it != Ok(false));
        let unknown = endpoint.into_iter().find_map(Result::err);
        let (excuse, everywhere) = (self.excuse(socket), is_everywhere(socket));
        let lost = |is_endpoint| self.lost(claims, (socket, is_endpoint), &excuse);
        let (lost, stratum) = match (unknown, lost(is_endpoint)) {
            // It is unknown whether the listener is an endpoint. So the loss is certain only if the listener also loses
            // connections as an endpoint.
            (Some(on), (Judged::Certain(..), stratum)) => match lost(may_be_endpoint) {
                (Judged::Certain(lost, more), stratum) => (Judged::Certain(lost, more.or(Some(on))), stratum),
                _ => (Judged::Depends { on, ever: None }, stratum),
            },
            (_, lost) => lost,
        };
        let evidence = match lost {
            Judged::Certain(lost, more) => self.evidence(service, port, (socket, workers), (&lost, more.as_ref())),
            Judged::Depends { on, .. } => return Some(Err(on)),
            Judged::Never => {
                let is_endpoint = is_endpoint.contains(&true);
                self.latent((service, port), socket, (is_endpoint, excuse == Ok(false)))?
            }
        };
        assuming(stratum, everywhere, Verdict::Problem(evidence)).into_problem().map(Ok)
    }

    fn latent(
        &self,
        (service, port): (&Service, &ServicePort),
        socket: &Socket,
        (is_endpoint, conflicts): (bool, bool),
    ) -> Option<Evidence> {
        match (self.cannot_return(service, socket), is_endpoint) {
            (true, true) => Some(self.no_return(Severity::Warning, service, port, socket)),
            (true, false) if conflicts => Some(self.no_return(Severity::Info, service, port, socket)),
            (false, false) if conflicts => self.trap(service, port, socket),
            _ => None,
        }
    }

    /// The vantage points whose connections to the NodePort do not reach the listener. If the listener is an endpoint
    /// of the Service in a family, only connections that are refused on loopback are lost in this family.
    fn lost(
        &self,
        claims: &[Claim<'_>],
        (socket, is_endpoint): (&Socket, [bool; 2]),
        excuse: &Result<bool, Gap>,
    ) -> (Judged<Lost>, Stratum) {
        let claims = claims.iter().copied().chain([Claim::Listener(socket, 1)]);
        let contest = Contest::of(self.round, self.addressed, (socket.protocol, socket.local_port), claims);
        self.addressed.over(is_everywhere(socket), |assumption, case| {
            contest.lost((assumption, case), excuse, |to, outcome| {
                let is_endpoint = is_endpoint[Family::of(to.ip).index()];
                !is_endpoint || to.ip.is_loopback() && outcome == Some(Outcome::Refused)
            })
        })
    }

    fn excuse(&self, socket: &Socket) -> Result<bool, Gap> {
        if self.round.proxy().is_own(socket)? {
            return Ok(true);
        }
        match (self.is_host_port(socket), self.ephemeral.may_be_client(socket)) {
            (Ok(true), _) | (_, Ok(true)) => Ok(true),
            (Err(gap), _) | (_, Err(gap)) => Err(gap),
            (Ok(false), Ok(false)) => Ok(false),
        }
    }

    /// Whether the kernel would refuse `bind` after a restart of the listener. A listener on `::` is judged for IPv6
    /// only.
    fn cannot_return(&self, service: &Service, socket: &Socket) -> bool {
        let ip = socket.local.to_canonical();
        let loopback = ip.is_loopback().then_some(LocalAddress { ip, vrf: false });
        let local = self.addressed.local(ip).copied().or(loopback);
        let served = || local.is_some_and(|it| self.captures(it, socket) == Some(true));
        let refused = refuses_bind_of(self.snapshot, service, socket.protocol, Family::of(ip));
        refused && (ip.is_unspecified() || served())
    }

    /// Whether the socket keeps a pod's hostPort for a container runtime. If true, another rule reports the pod. The
    /// result is an error if Pods could not be read, and false if Pods were not requested.
    fn is_host_port(&self, socket: &Socket) -> Result<bool, Gap> {
        match self.round.host_ports().get() {
            Ok(all) => {
                let number = (socket.protocol, socket.local_port);
                let is_one = all.at(number).iter().any(|(_, port)| covers(port, socket.local));
                match (is_one, self.snapshot.cluster.unread_host_port(number)) {
                    (true, _) => keeps_host_port(self.round, socket, true),
                    (false, Some(gap)) => Err(gap.clone()),
                    (false, None) => Ok(false),
                }
            }
            Err(gap) if gap.why == Why::NotRequested => Ok(false),
            Err(gap) => Err(gap),
        }
    }

    fn evidence(
        &self,
        service: &Service,
        port: &ServicePort,
        (socket, workers): (&Socket, usize),
        (lost, more): (&Lost, Option<&Gap>),
    ) -> Evidence {
        let (affects, lost) = (lost.affected(), &lost.0);
        let is_remote = affects.contains(&Vantage::Remote);
        let severity = if is_remote { Severity::Critical } else { Severity::Warning };
        // `at_least` adds the reason why it is not known which other connections are lost.
        let some = if more.is_some() && !is_remote { "some " } else { "" };
        let name = service_port(service, &port.name);
        let gate = affects == [Vantage::Loopback].into()
            && self.addressed.assumptions.iter().any(Assumption::refuses_on_loopback);
        let (outcome, ends) = words::outcome(lost.values().flatten().copied(), service.external_local, gate);
        let mut evidence = self.with_facts(
            Evidence::new(
                severity,
                format!(
                    "{} listens on {}, the NodePort of {name}: {some}new connections {ends}.",
                    capital(&owner_name(self.snapshot, &socket.owner)),
                    place(socket),
                ),
            ),
            service,
            port,
            socket,
        );
        if workers > 1 {
            evidence = evidence.value("workers", format!("{workers} sockets share this address and port"));
        }
        let kinds: BTreeSet<_> = lost.values().collect();
        for vantage in &affects {
            for &outcomes in &kinds {
                let in_words = |((seen, local), it): (&(Vantage, LocalAddress), &BTreeSet<Option<Outcome>>)| {
                    (seen == vantage && it == outcomes).then(|| local.ip.to_string())
                };
                let addresses: Vec<String> = lost.iter().filter_map(in_words).collect();
                if !addresses.is_empty() {
                    let words = outcomes.iter().map(|it| it.map_or("do not reach the listener", Outcome::words));
                    let words = words.collect::<Vec<_>>().join(" or ");
                    evidence = evidence.value(words::from(*vantage), format!("to {} {words}", addresses.join(", ")));
                }
            }
        }
        let evidence = evidence
            .outcome(outcome)
            .value("established connections", "continue; only new connections are lost")
            .affects(affects)
            .remedy(move_off(self.snapshot, socket))
            .remedy(another_number(self.alternatives.for_port(service, Some(port)), service, Some(port)));
        at_least(evidence, more)
    }

    /// Whether the listener is on an address outside nodePortAddresses in iptables mode. On this address, the listener
    /// answers only while the Service has endpoints.
    fn is_trap(&self, socket: &Socket) -> bool {
        self.snapshot.is_in(Mode::Iptables)
            && !socket.local.is_unspecified()
            && !socket.local.is_loopback()
            && socket.device == 0
            && self.addressed.local(socket.local).is_some_and(|it| !it.vrf && self.captures(*it, socket) == Some(false))
    }

    fn trap(&self, service: &Service, port: &ServicePort, socket: &Socket) -> Option<Evidence> {
        if !self.is_trap(socket) {
            return None;
        }
        let sentence = format!(
            "{} listens on {}, the NodePort of {}, on an address outside nodePortAddresses: new connections are refused whenever the Service has no endpoints.",
            capital(&owner_name(self.snapshot, &socket.owner)),
            place(socket),
            service_port(service, &port.name),
        );
        let evidence = self.with_facts(Evidence::new(Severity::Info, sentence), service, port, socket);
        Some(evidence.variant("trap").remedy(move_off(self.snapshot, socket)))
    }

    fn no_return(&self, severity: Severity, service: &Service, port: &ServicePort, socket: &Socket) -> Evidence {
        let sentence = format!(
            "{} listens on {}, the NodePort of {}, and answers connections to the NodePort: Cilium refuses bind(), so the process cannot listen again after a restart.",
            capital(&owner_name(self.snapshot, &socket.owner)),
            place(socket),
            service_port(service, &port.name),
        );
        self.with_facts(Evidence::new(severity, sentence), service, port, socket)
            .variant("no-return")
            .remedy(another_number(self.alternatives.for_port(service, Some(port)), service, Some(port)))
            .remedy(move_off(self.snapshot, socket))
    }

    fn with_facts(&self, evidence: Evidence, service: &Service, port: &ServicePort, socket: &Socket) -> Evidence {
        let evidence = evidence.about([ClaimOf::node_port(service, Some(port))]);
        let words = format!(
            "{} type {}, nodePort {}/{}, externalTrafficPolicy {}",
            service_port(service, &port.name),
            service.kind.name(),
            socket.local_port,
            port.protocol,
            if service.external_local { "Local" } else { "Cluster" },
        );
        let refused = "its bind() fails with EADDRINUSE: Cilium protects NodePorts";
        with_socket(evidence, "listener", self.snapshot, socket)
            .value("service", words)
            .each("endpoints", self.round.endpoints().each_in_words(service, port))
            .value("proxy mode", self.addressed.assumptions.mode_in_words())
            .value("nodePortAddresses", self.addressed.assumptions.node_port_addresses_in_words())
            .each("assumed", self.ephemeral.assumed_of(socket))
            .each("after a restart", self.cannot_return(service, socket).then_some(refused))
            .each("NodePort range", self.snapshot.cluster.node_port_range.known(Unread::Adds).map(range_in_words))
    }
}

#[cfg(test)]
mod tests;
