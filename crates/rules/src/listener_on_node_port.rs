//! A process listens on the NodePort of a Service, and new connections go elsewhere.

mod words;

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Limits, Patience, Rule,
    assumed::judged,
    ephemeral::EphemeralPorts,
    free_ports::Alternatives,
    ids,
    node_ports::{if_served, range_in_words},
    remedies::{move_off, move_service},
    socket_needs::{Ports, SocketNeed},
    v6only::either_way,
    wording::{capital, with_socket},
};
use crate::findings::{Evidence, Judgement, Judgements, Severity, Subject, Vantage, Verdict};
use portreeve_dataplane::{
    Backing, Candidate, Candidates, Endpoints, LocalAddress, Outcome, Own, Part, Proxy, answering_vantage_points,
    by_port, covers, host_ports, is_everywhere, local_addresses, other_loopback, owner_name, place, refuses_bind_of,
    served_node_ports, service_port, workers,
};
use portreeve_facts::{Family, Gap, Interfaces, Mode, Service, ServicePort, Snapshot, Socket, Source, View};

pub(super) static RULE: Rule = Rule {
    id: &ids::LISTENER_ON_NODE_PORT,
    variants: &["loses", "trap", "no-return"],
    needs: &[Source::Listeners, Source::Services, Source::Addresses],
    uses: &[],
    socket_needs: &[
        SocketNeed::Owners(Ports::NodePorts),
        SocketNeed::Owners(Ports::HostNetworkPods),
        SocketNeed::Owners(Ports::Proxy),
    ],
    patience: Patience::TwoScans,
    check,
};

fn check(view: View<'_>, limits: &Limits) -> Judgements {
    let snapshot = view.now;
    let listeners = snapshot.kernel.listeners.get()?;
    let services = snapshot.cluster.services.get()?;
    let interfaces = snapshot.kernel.interfaces.get()?;

    let by_port = by_port(listeners);
    let hits: Vec<_> = served_node_ports(snapshot, services)
        .map(|(service, port, number)| (service, port, by_port.at((port.protocol, number))))
        .filter(|(_, _, sockets)| !sockets.is_empty())
        .collect();
    if hits.is_empty() {
        return Ok(Vec::new());
    }
    let node = Node {
        snapshot,
        candidates: Candidates::of(snapshot, interfaces, limits.proxy_lag_seconds),
        locals: local_addresses(interfaces),
        interfaces,
        endpoints: Endpoints::of(snapshot),
        proxy: Proxy::of(snapshot),
        ephemeral: EphemeralPorts::of(snapshot),
        alternatives: Alternatives::of(snapshot),
    };
    Ok(hits
        .into_iter()
        .flat_map(|(service, port, sockets)| {
            workers(sockets).into_iter().filter_map(|(socket, count)| node.judge(service, port, socket, count))
        })
        .collect())
}

/// What every socket is judged against.
struct Node<'a> {
    snapshot: &'a Snapshot,
    candidates: Candidates,
    locals: Vec<LocalAddress>,
    interfaces: &'a Interfaces,
    endpoints: Endpoints<'a>,
    proxy: Proxy<'a>,
    ephemeral: EphemeralPorts,
    /// A nodePort that a Service could have instead.
    alternatives: Alternatives<'a>,
}

/// A destination and a vantage point, and who answers there.
type Outcomes = BTreeMap<(Vantage, LocalAddress), Outcome>;

/// The same, and every way in which a connection may be answered there.
type PossibleOutcomes = BTreeMap<(Vantage, LocalAddress), BTreeSet<Outcome>>;

impl Node<'_> {
    fn judge(&self, service: &Service, port: &ServicePort, socket: &Socket, workers: usize) -> Option<Judgement> {
        let is_endpoint = self.is_endpoint(service, port, socket);
        let known = is_endpoint == Ok(true);
        let verdict = match (self.excuse(known, socket), is_endpoint) {
            (Some(Ok(())), _) if known && self.cannot_return(service, socket) => {
                Verdict::Problem(self.no_return(Severity::Warning, service, port, socket))
            }
            (Some(Ok(())), _) => return None,
            (Some(Err(gap)), _) | (None, Err(gap)) => Verdict::Unknown(gap),
            (None, Ok(known)) => either_way(socket, |socket| {
                let judge = |all: &[Candidate]| self.verdict(all, (service, port), (socket, known), workers);
                judged(&self.candidates, is_everywhere(socket), judge)
            })?,
        };
        Some(Judgement {
            subject: Subject::service(service),
            port: port.node_port,
            protocol: Some(port.protocol),
            verdict: if_served(self.snapshot, service, Part::NodePorts, verdict),
        })
    }

    /// Why a listener on a NodePort is no conflict, or why that is not known.
    fn excuse(&self, is_endpoint: bool, socket: &Socket) -> Option<Result<(), Gap>> {
        match self.proxy.owns(socket) {
            Own::Yes => return Some(Ok(())),
            Own::Unknown => return Some(Err(self.proxy.unknown(socket))),
            Own::No => {}
        }
        let is_refused = self.candidates.iter().any(Candidate::refuses_on_loopback);
        if is_endpoint && !is_refused || self.is_host_port(socket) {
            return Some(Ok(()));
        }
        match self.ephemeral.may_be_client(socket) {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(gap) => Some(Err(gap)),
        }
    }

    /// Whether the Service sends its connections to the very process.
    fn is_endpoint(&self, service: &Service, port: &ServicePort, socket: &Socket) -> Result<bool, Gap> {
        let bound: Vec<_> = match socket.local.is_unspecified() {
            true => self.locals.iter().map(|local| local.ip).collect(),
            false => vec![socket.local],
        };
        self.endpoints.includes(service, port, &bound, socket.local_port)
    }

    /// Whether `bind` would be refused if a listener began again. `::` is of IPv6 alone there.
    fn cannot_return(&self, service: &Service, socket: &Socket) -> bool {
        let ip = socket.local.to_canonical();
        let captured = |local: &LocalAddress| self.candidates.agree(|it| it.captures(*local)) == Some(true);
        let served = || self.locals.iter().any(|local| local.ip == ip && captured(local));
        let family = Family::of(ip);
        let refused = refuses_bind_of(self.snapshot, service, socket.protocol, family);
        refused && (ip.is_unspecified() || ip.is_loopback() || served())
    }

    /// A runtime may hold a pod's hostPort with a socket of its own; that pod is another rule's subject.
    fn is_host_port(&self, socket: &Socket) -> bool {
        let pods = self.snapshot.cluster.pods.seen().map_or(&[][..], Vec::as_slice);
        host_ports(self.snapshot, pods).any(|(_, port, number)| {
            (port.protocol, number) == (socket.protocol, socket.local_port) && covers(port, socket.local)
        })
    }

    /// What every possible candidate and backing agree on.
    fn verdict(
        &self,
        candidates: &[Candidate],
        (service, port): (&Service, &ServicePort),
        (socket, is_endpoint): (&Socket, bool),
        workers: usize,
    ) -> Option<Verdict> {
        let mut gap = None;
        let mut possible: Option<PossibleOutcomes> = None;
        let mut ever_lost = false;
        for candidate in candidates {
            let mut outcomes = vec![Outcomes::new()];
            for family in service.families.iter().copied().filter(|family| socket.serves(*family) == Some(true)) {
                gap = gap.or(self.endpoints.backing(service, port, family).err());
                let backings = self.endpoints.possible(service, port, family);
                outcomes = outcomes
                    .iter()
                    .flat_map(|so_far| {
                        backings.iter().map(|backing| {
                            let mut outcomes = so_far.clone();
                            outcomes.extend(self.outcomes(candidate, socket, family, (*backing, is_endpoint)));
                            outcomes
                        })
                    })
                    .collect();
            }
            for outcomes in outcomes {
                ever_lost |= outcomes.values().any(|outcome| *outcome != Outcome::Listener);
                possible = Some(match possible {
                    None => outcomes.into_iter().map(|(place, outcome)| (place, BTreeSet::from([outcome]))).collect(),
                    Some(possible) => joined(possible, &outcomes),
                });
            }
        }
        let mut lost = possible?;
        lost.retain(|_, outcomes| !outcomes.contains(&Outcome::Listener));
        if !lost.is_empty() {
            return Some(Verdict::Problem(self.evidence(service, port, socket, workers, &lost)));
        }
        if ever_lost {
            return Some(Verdict::Unknown(gap.unwrap_or_else(|| self.candidates.ambiguity())));
        }
        if self.cannot_return(service, socket) {
            return Some(Verdict::Problem(self.no_return(Severity::Info, service, port, socket)));
        }
        self.is_trap(socket).then(|| Verdict::Problem(self.trap(service, port, socket)))
    }

    /// Who answers from each vantage point on each address where the listener would. An endpoint that is the process itself
    /// loses what is refused on loopback, and no more.
    fn outcomes(
        &self,
        candidate: &Candidate,
        socket: &Socket,
        family: Family,
        (backing, is_endpoint): (Backing, bool),
    ) -> Outcomes {
        let locals = self.locals.iter().copied().chain(other_loopback(&self.locals, socket));
        let of_family = locals.filter(|local| Family::of(local.ip) == family);
        of_family
            .flat_map(|local| {
                let vantages = answering_vantage_points(socket, local.ip, self.interfaces);
                let outcome = move |vantage| match candidate.outcome((local, socket.protocol), vantage, backing) {
                    outcome if is_endpoint && !(local.ip.is_loopback() && outcome == Outcome::Refused) => {
                        Outcome::Listener
                    }
                    outcome => outcome.over(socket.protocol),
                };
                vantages.iter().map(move |vantage| ((*vantage, local), outcome(*vantage)))
            })
            .collect()
    }

    fn evidence(
        &self,
        service: &Service,
        port: &ServicePort,
        socket: &Socket,
        workers: usize,
        lost: &PossibleOutcomes,
    ) -> Evidence {
        let affects: BTreeSet<Vantage> = lost.keys().map(|(vantage, _)| *vantage).collect();
        let severity = if affects.contains(&Vantage::Remote) { Severity::Critical } else { Severity::Warning };
        let name = service_port(service, &port.name);
        let gate = affects == [Vantage::Loopback].into() && self.candidates.iter().any(Candidate::refuses_on_loopback);
        let (outcome, ends) = words::outcome(lost.values().flatten().copied(), service.external_local, gate);
        let mut evidence = self.with_facts(
            Evidence::new(
                severity,
                format!(
                    "{} listens on {}, the NodePort of {name}: new connections {ends}.",
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
                let in_words = |((seen, local), it): (&(Vantage, LocalAddress), &BTreeSet<Outcome>)| {
                    (seen == vantage && it == outcomes).then(|| local.ip.to_string())
                };
                let addresses: Vec<String> = lost.iter().filter_map(in_words).collect();
                if !addresses.is_empty() {
                    let words = outcomes.iter().map(|outcome| outcome.words()).collect::<Vec<_>>().join(" or ");
                    evidence = evidence.value(words::from(*vantage), format!("to {} {words}", addresses.join(", ")));
                }
            }
        }
        evidence
            .outcome(outcome)
            .value("established connections", "survive; only new ones are lost")
            .affects(affects)
            .remedy(move_off(self.snapshot, socket))
            .remedy(move_service(self.alternatives.for_port(service, Some(port)), service, port))
    }

    /// In iptables mode an address outside nodePortAddresses is safe only as long as the Service has endpoints.
    fn is_trap(&self, socket: &Socket) -> bool {
        self.snapshot.is_in(Mode::Iptables)
            && !socket.local.is_unspecified()
            && !socket.local.is_loopback()
            && socket.device == 0
            && self.locals.iter().any(|local| local.ip == socket.local && !local.vrf)
    }

    fn trap(&self, service: &Service, port: &ServicePort, socket: &Socket) -> Evidence {
        let sentence = format!(
            "{} listens on {}, the NodePort of {}, on an address outside nodePortAddresses: it will be refused whenever the Service has no endpoints.",
            capital(&owner_name(self.snapshot, &socket.owner)),
            place(socket),
            service_port(service, &port.name),
        );
        self.with_facts(Evidence::new(Severity::Info, sentence), service, port, socket)
            .variant("trap")
            .remedy(move_off(self.snapshot, socket))
    }

    /// It answers as long as it lives.
    fn no_return(&self, severity: Severity, service: &Service, port: &ServicePort, socket: &Socket) -> Evidence {
        let sentence = format!(
            "{} listens on {}, the NodePort of {}, and answers there: Cilium refuses bind(), so it cannot listen again after a restart.",
            capital(&owner_name(self.snapshot, &socket.owner)),
            place(socket),
            service_port(service, &port.name),
        );
        self.with_facts(Evidence::new(severity, sentence), service, port, socket)
            .variant("no-return")
            .remedy(move_service(self.alternatives.for_port(service, Some(port)), service, port))
            .remedy(move_off(self.snapshot, socket))
    }

    /// What people would ask each other for.
    fn with_facts(&self, mut evidence: Evidence, service: &Service, port: &ServicePort, socket: &Socket) -> Evidence {
        evidence = with_socket(evidence, "listener", self.snapshot, socket);
        evidence = evidence.value(
            "service",
            format!(
                "{} type {}, nodePort {}/{}, externalTrafficPolicy {}",
                service_port(service, &port.name),
                service.kind.name(),
                socket.local_port,
                port.protocol,
                if service.external_local { "Local" } else { "Cluster" },
            ),
        );
        for family in &service.families {
            let words = self.endpoints.in_words(service, port, *family);
            evidence = evidence.value("endpoints", format!("{family}: {words}"));
        }
        evidence = evidence.value("proxy mode", self.candidates.mode_in_words());
        evidence = evidence.value("nodePortAddresses", self.candidates.node_port_addresses_in_words());
        if self.cannot_return(service, socket) {
            evidence = evidence.value("after a restart", "its bind() fails with EADDRINUSE: Cilium protects NodePorts");
        }
        match self.snapshot.cluster.node_port_range.seen() {
            Some(range) => evidence.value("NodePort range", range_in_words(range)),
            None => evidence,
        }
    }
}

/// Who may answer in either case. An address that only one of them knows is lost in neither.
fn joined(mut possible: PossibleOutcomes, other: &Outcomes) -> PossibleOutcomes {
    possible.retain(|place, outcomes| {
        outcomes.extend(other.get(place));
        other.contains_key(place)
    });
    possible
}

#[cfg(test)]
mod tests;
