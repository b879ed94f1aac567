//! Who answers on one address from one vantage point, among all that claim the port.

use std::{collections::BTreeSet, net::IpAddr};

use super::{
    super::{
        backing::Backing,
        candidate::Candidate,
        candidates::Candidates,
        claim::Claim,
        endpoints::Endpoints,
        kept_off::serves,
        local_address::{LocalAddress, is_link_local},
        outcome::Outcome,
        part::Part,
        vantage::answering_vantage_points,
    },
    claims::Standing,
    ownership::Answered,
};
use portreeve_facts::{
    Family, Gap, Interfaces, Mode, Protocol, Service, ServicePort, Snapshot, Socket, Source, Vantage, Why,
};

/// What every question is judged against.
pub(super) struct Here<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) candidates: Candidates,
    pub(super) endpoints: Endpoints<'a>,
    pub(super) interfaces: &'a Interfaces,
    pub(super) standings: Vec<Standing<'a>>,
    /// The addresses of load balancers.
    pub(super) balanced: BTreeSet<IpAddr>,
    pub(super) protocol: Protocol,
    /// Whether Cilium leaves a hostPort of this number out.
    pub(super) is_left_out: Result<bool, Gap>,
}

/// Which claim comes first in nftables mode cannot be seen.
const UNDEFINED: &str = "kube-proxy's nftables chains and those of the hostPort have one priority: the ones made last are asked first, and kube-proxy makes its own anew whenever it starts";

/// What becomes of what arrives for a load balancer's address that is of no device of Cilium (cilium `bpf/lib/nodeport.h`, `nodeport_svc_lb4`;
/// `pkg/loadbalancer/reconciler/bpf_reconciler.go`, `isWildcardClass`).
const OTHER_PORTS: &str = "a Service has it as a load balancer's address, and it is on a device that Cilium does not serve: Cilium drops what \
    arrives there at all other ports, where it assigns such addresses itself";

/// An outcome and the claim that decides it.
type Decided = (Result<Outcome, Gap>, Option<usize>);

impl<'a> Here<'a> {
    /// What every candidate agrees on.
    pub(super) fn ask(&self, from: Vantage, to: LocalAddress) -> Answered {
        let listener = self.listener(from, to.ip);
        let mut decided: Vec<Decided> =
            self.candidates.iter().flat_map(|candidate| self.decide(candidate, from, to, listener)).collect();
        decided.dedup();
        // A listener may lose in each case, though what becomes of a connection differs.
        let is_lost = !decided.is_empty()
            && decided.iter().all(|(outcome, _)| outcome.as_ref().is_ok_and(|it| *it != Outcome::Listener));
        let (outcome, by) = match decided.iter().find(|(outcome, _)| outcome.is_err()) {
            Some(unknown) => unknown.clone(),
            None if decided.len() == 1 => decided.remove(0),
            None => (Err(self.unread_endpoints(to.ip).unwrap_or_else(|| self.candidates.ambiguity())), None),
        };
        let loser = listener.filter(|_| is_lost);
        Answered { from, to: to.ip, outcome, by, loser }
    }

    /// What may come of it in one candidate: more than one thing where endpoints are unknown.
    fn decide(&self, candidate: &Candidate, from: Vantage, to: LocalAddress, listener: Option<usize>) -> Vec<Decided> {
        let serves = |service: &Service, part: Part| match candidate.mode() {
            Mode::Cilium => serves(self.snapshot, service, part),
            _ => Ok(true),
        };
        let is_served = |service: &Service, part: Part| serves(service, part) != Ok(false);
        let external = self.find(|standing| match standing {
            Standing::External(address, port) if address.ip == to.ip && !to.ip.is_loopback() => {
                let is_served = address.is_served(Some(candidate.mode())) && is_served(address.service, address.part());
                is_served.then_some((*address, *port))
            }
            _ => None,
        });
        let taken = external.map(|(_, (address, _))| candidate.captures_external(&address, from));
        if let Some(Err(gap)) = taken {
            return vec![(Err(gap), None)];
        }
        let external = external.filter(|_| taken == Some(Ok(true)));
        let node_port = self.find(|standing| match standing {
            Standing::NodePort(service, port) => {
                let has = service.families.contains(&Family::of(to.ip));
                (has && is_served(service, Part::NodePorts)).then_some((*service, *port))
            }
            _ => None,
        });
        let host_port = self.find(|standing| match standing {
            Standing::HostPort(pod, host) => {
                let served = candidate.serves_host_port((pod, host), to, from);
                (served != Ok(false)).then_some(served)
            }
            _ => None,
        });
        let host_port = match (&self.is_left_out, host_port) {
            (Ok(true), _) if candidate.mode() == Mode::Cilium => None,
            (Err(gap), Some(_)) if candidate.mode() == Mode::Cilium => return vec![(Err(gap.clone()), None)],
            (_, Some((_, Err(gap)))) => return vec![(Err(gap), None)],
            (_, host_port) => host_port.map(|(index, _)| index),
        };
        let perhaps = |service: &Service, part: Part| serves(service, part).is_err();
        let claim = external.map(|(index, (address, port))| (index, (address.service, port)));
        let mut externals =
            self.outcomes(claim, to.ip, |backing| candidate.outcome_of_external_ip((to, self.protocol), from, backing));
        externals.extend(external.filter(|(_, (it, _))| perhaps(it.service, it.part())).map(|_| None));
        let strays = self.strays(candidate, from, to, node_port.map(|(_, (service, _))| service), listener);
        let outcome =
            |backing| if strays { Outcome::Nowhere } else { candidate.outcome((to, self.protocol), from, backing) };
        let mut node_ports = self.outcomes(node_port, to.ip, outcome);
        node_ports.extend(node_port.filter(|(_, (service, _))| perhaps(service, Part::NodePorts)).map(|_| None));
        let pairs = externals.into_iter().flat_map(|external| node_ports.iter().map(move |it| (external, *it)));
        pairs
            .map(|(external, node_port)| {
                let service = match (external, node_port) {
                    (Some(external), Some(node_port)) => {
                        match candidate.external_ip_or_node_port(external.1, node_port.1) {
                            Some(Claim::ExternalIp) => Some(external),
                            Some(_) => Some(node_port),
                            None => {
                                return unclear("two Services claim it, and which of them comes first is not defined");
                            }
                        }
                    }
                    (external, node_port) => external.or(node_port),
                };
                self.decided(candidate, (from, to), service, host_port, listener)
            })
            .collect()
    }

    /// Whether a node's own connection to its link-local address leaves with another source address, and so leads nowhere.
    /// A socket of that device is reached all the same, and so is one of UDP.
    fn strays(
        &self,
        candidate: &Candidate,
        from: Vantage,
        to: LocalAddress,
        service: Option<&Service>,
        listener: Option<usize>,
    ) -> bool {
        let on_every_device = |socket: &Socket| socket.device == 0 && socket.protocol != Protocol::Udp;
        let is_lost = listener.is_some_and(
            |index| matches!(self.standings[index], Standing::Socket(socket, _) if on_every_device(socket)),
        );
        candidate.masquerades_own_link_local()
            && is_own_link_local(to, from)
            && is_lost
            && service.is_some_and(|service| !service.external_local)
    }

    /// Why the endpoints of a Service that claims the port are not known, where they are not.
    fn unread_endpoints(&self, to: IpAddr) -> Option<Gap> {
        self.standings.iter().find_map(|standing| match standing {
            Standing::External(address, _) if address.ip != to => None,
            Standing::External(address, port) => self.unread(address.service, port, address.part(), to),
            Standing::NodePort(service, port) => self.unread(service, port, Part::NodePorts, to),
            Standing::HostPort(..) | Standing::Socket(..) => None,
        })
    }

    fn unread(&self, service: &Service, port: &ServicePort, part: Part, to: IpAddr) -> Option<Gap> {
        let backing = || self.endpoints.backing(service, port, Family::of(to)).err();
        serves(self.snapshot, service, part).err().or_else(backing)
    }

    /// What each backing that a Service may have makes of a connection, if there is a Service.
    fn outcomes(
        &self,
        claim: Option<(usize, (&Service, &ServicePort))>,
        to: IpAddr,
        outcome: impl Fn(Backing) -> Outcome,
    ) -> Vec<Option<(usize, Outcome)>> {
        let Some((index, (service, port))) = claim else { return vec![None] };
        self.endpoints
            .possible(service, port, Family::of(to))
            .into_iter()
            .map(|backing| Some((index, outcome(backing))))
            .collect()
    }

    fn decided(
        &self,
        candidate: &Candidate,
        (from, to): (Vantage, LocalAddress),
        service: Option<(usize, Outcome)>,
        host_port: Option<usize>,
        listener: Option<usize>,
    ) -> Decided {
        if let Some(host_port) = host_port {
            match service.map(|(_, outcome)| candidate.node_port_or_host_port(outcome)) {
                Some(Some(Claim::NodePort)) => {}
                // Either leads nowhere.
                Some(None) if !is_link_local(to.ip) => return unclear(UNDEFINED),
                _ => return (Ok(of_host_port(to.ip)), Some(host_port)),
            }
        }
        match service {
            None | Some((_, Outcome::Listener)) if self.may_be_dropped(candidate, from, to.ip) => unclear(OTHER_PORTS),
            None | Some((_, Outcome::Listener)) if listener.is_some() => (Ok(Outcome::Listener), listener),
            None | Some((_, Outcome::Listener)) => (Ok(Outcome::Refused), None),
            // What is stuck on loopback, and times out, is not when it leads to this node.
            Some((index, outcome @ (Outcome::Pod | Outcome::Nowhere | Outcome::TimedOut)))
                if !is_own_link_local(to, from) =>
            {
                match self.leads_home(index, listener) {
                    Ok(true) => (Ok(Outcome::Listener), Some(index)),
                    Ok(false) => (Ok(outcome.over(self.protocol)), Some(index)),
                    Err(gap) => (Err(gap), None),
                }
            }
            Some((index, outcome)) => (Ok(outcome.over(self.protocol)), Some(index)),
        }
    }

    fn may_be_dropped(&self, candidate: &Candidate, from: Vantage, to: IpAddr) -> bool {
        from == Vantage::Remote && self.balanced.contains(&to) && candidate.may_drop_other_ports(to)
    }

    /// The first claim of a kind.
    fn find<T>(&self, mut kind: impl FnMut(&Standing<'a>) -> Option<T>) -> Option<(usize, T)> {
        self.standings.iter().enumerate().find_map(|(index, standing)| Some((index, kind(standing)?)))
    }

    /// The socket that the kernel chooses, where no other claim stands before it.
    fn listener(&self, from: Vantage, to: IpAddr) -> Option<usize> {
        let answers = |socket| answering_vantage_points(socket, to, self.interfaces).contains(&from);
        let listener = self.find(|standing| match standing {
            Standing::Socket(socket, _) => answers(socket).then_some(()),
            _ => None,
        });
        listener.map(|(index, ())| index)
    }

    /// Whether a NodePort's endpoint is the very listener that it stands before.
    fn leads_home(&self, index: usize, listener: Option<usize>) -> Result<bool, Gap> {
        let listener = listener.map(|index| &self.standings[index]);
        let (Standing::NodePort(service, port), Some(Standing::Socket(socket, _))) = (&self.standings[index], listener)
        else {
            return Ok(false);
        };
        let bound: Vec<IpAddr> = match socket.local.is_unspecified() {
            true => self.interfaces.addresses.iter().map(|it| it.ip).collect(),
            false => vec![socket.local],
        };
        self.endpoints.includes(service, port, &bound, socket.local_port)
    }
}

/// A node's own packet between link-local addresses that was translated leads nowhere, even to the node itself.
fn is_own_link_local(to: LocalAddress, from: Vantage) -> bool {
    is_link_local(to.ip) && from == Vantage::Node
}

/// What becomes of a connection that a hostPort takes: nothing forwards what is link-local, and what comes from `::1`
/// cannot be answered.
fn of_host_port(to: IpAddr) -> Outcome {
    match to {
        to if is_link_local(to) => Outcome::Nowhere,
        IpAddr::V6(to) if to.is_loopback() => Outcome::TimedOut,
        _ => Outcome::Pod,
    }
}

fn unclear(detail: &str) -> Decided {
    (Err(Gap::new(Source::ProxyConfig, Why::Ambiguous, detail)), None)
}
