//! Who would answer on a port of this node: every claimant in the order in which a new connection meets them, who
//! answers from each vantage point, and who loses.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use super::{
    Limits, addresses,
    endpoints::{Backing, Endpoints},
    fate::{Fate, First},
    holders::{Own, Proxy, holder_name, place, service_port, socket_in_words, workers},
    host_ports::{covers, host_ports},
    range::served,
    reach,
    setup::{Local, Setup, Setups, is_link_local, locals, other_loopback},
};
use crate::{
    facts::{
        ContainerPort, Family, Gap, Interfaces, Mode, Pod, Protocol, Service, ServicePort, Snapshot, Socket, Source,
        Why,
    },
    findings::Vantage,
};

/// What is known of one port and protocol.
#[derive(Clone, Debug)]
pub struct Ownership {
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// Everybody who claims it, in the order in which a new connection meets them.
    pub claimants: Vec<Claimant>,
    /// Who answers on each address from each vantage point. A loopback address of IPv4 that is not listed fares like
    /// 127.0.0.1, unless somebody claims that one alone.
    pub answers: Vec<Answered>,
    /// The proxy's mode and how it is known, in words.
    pub mode: String,
}

/// Somebody who claims a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// By what right.
    pub claim: Claim,
    /// Who: `Service default/web port http`, `pod default/web`, `process nginx`.
    pub name: String,
    /// Where and with what: an address, a socket, endpoints.
    pub detail: String,
}

/// By what right a port is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A Service's external IP or load balancer address is an address of this node, and its `port` is this one.
    ExternalIp,
    /// A Service's nodePort.
    NodePort,
    /// A pod's hostPort.
    HostPort,
    /// A listening socket.
    Listener,
    /// A listening socket of the proxy itself: a held NodePort, a health check.
    Proxy,
}

impl Claim {
    /// Its word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExternalIp => "external-ip",
            Self::NodePort => "node-port",
            Self::HostPort => "host-port",
            Self::Listener => "listener",
            Self::Proxy => "proxy",
        }
    }
}

/// Who answers a new connection to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// From where it comes.
    pub from: Vantage,
    /// Where it goes.
    pub to: IpAddr,
    /// What comes of it.
    pub answer: Answer,
    /// Whose doing it is: an index into [`Ownership::claimants`]. Nothing where nobody claims the port there.
    pub by: Option<usize>,
    /// The listener that would answer there if nobody stood before it.
    pub loser: Option<usize>,
}

/// What comes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A process of the node.
    Process,
    /// A pod.
    Pod,
    /// Nobody: refused.
    Refused,
    /// Nobody: no answer at all.
    TimedOut,
    /// Nobody: it leads nowhere.
    Nowhere,
    /// It cannot be told.
    Unknown(Gap),
}

impl Answer {
    /// Its word in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Pod => "pod",
            Self::Refused => "refused",
            Self::TimedOut => "timed-out",
            Self::Nowhere => "nowhere",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// Who owns a port.
///
/// # Errors
/// When the node's addresses or listeners, or the Services of a configured cluster, could not be read.
pub fn owner(snapshot: &Snapshot, limits: &Limits, protocol: Protocol, port: u16) -> Result<Ownership, Gap> {
    let interfaces = snapshot.kernel.interfaces.get()?;
    let services = match snapshot.cluster.services.get() {
        Err(gap) if snapshot.cluster.configured => return Err(gap),
        services => services.map_or(&[][..], Vec::as_slice),
    };
    let listeners = snapshot.kernel.listeners.get()?;
    let here = Here {
        setups: Setups::of(snapshot, interfaces, limits),
        endpoints: Endpoints::of(snapshot),
        interfaces,
        rights: rights(snapshot, services, listeners, protocol, port),
        protocol,
    };
    let mut places = locals(interfaces);
    let sockets = here.rights.iter().filter_map(|right| match right {
        Right::Socket(socket, _) => other_loopback(&places, socket),
        _ => None,
    });
    places.extend(sockets.collect::<BTreeSet<_>>());
    let places = places.iter().flat_map(|to| reach::vantages(to.ip).iter().map(|from| (*from, *to)));
    let mut answers: Vec<Answered> = places.map(|(from, to)| here.ask(from, to)).collect();
    answers.sort_by_key(|it| (it.from, it.to));
    let proxy = Proxy::of(snapshot);
    let claimants = here.rights.iter().map(|right| here.claimant(snapshot, &proxy, right)).collect();
    Ok(Ownership { protocol, port, claimants, answers, mode: here.setups.mode_in_words() })
}

/// A claim with what it rests on.
enum Right<'a> {
    External(addresses::Claim<'a>, &'a ServicePort),
    NodePort(&'a Service, &'a ServicePort),
    HostPort(&'a Pod, &'a ContainerPort),
    Socket(&'a Socket, usize),
}

/// Everybody's, in the order in which a new connection meets them: external IPs, NodePorts, hostPorts, then sockets, of
/// which one that is bound to the address comes before a wildcard.
fn rights<'a>(
    snapshot: &'a Snapshot,
    services: &'a [Arc<Service>],
    listeners: &'a [Socket],
    protocol: Protocol,
    port: u16,
) -> Vec<Right<'a>> {
    let claims = services.iter().flat_map(|service| addresses::Claim::of(service));
    let external = claims.flat_map(|claim| {
        let ports = claim.service.ports.iter().filter(move |it| it.protocol == protocol && it.port == port);
        ports.map(move |port| Right::External(claim, port))
    });
    let node_ports = served(services)
        .filter(|(_, it, number)| it.protocol == protocol && *number == port)
        .map(|(service, port, _)| Right::NodePort(service, port));
    let pods = snapshot.cluster.pods.seen().map_or(&[][..], Vec::as_slice);
    let host_ports = host_ports(snapshot, pods)
        .filter(|(_, it, number)| it.protocol == protocol && *number == port)
        .map(|(pod, port, _)| Right::HostPort(pod, port));
    let sockets: Vec<&Socket> =
        listeners.iter().filter(|it| it.protocol == protocol && it.local_port == port).collect();
    let mut sockets = workers(&sockets);
    sockets.sort_by_key(|(socket, _)| (socket.local.is_unspecified(), socket.device == 0));
    let sockets = sockets.into_iter().map(|(socket, count)| Right::Socket(socket, count));
    external.chain(node_ports).chain(host_ports).chain(sockets).collect()
}

/// What every question is judged against.
struct Here<'a> {
    setups: Setups,
    endpoints: Endpoints<'a>,
    interfaces: &'a Interfaces,
    rights: Vec<Right<'a>>,
    protocol: Protocol,
}

/// Who comes first in nftables mode cannot be seen.
const UNDEFINED: &str = "kube-proxy's nftables chains and those of the hostPort have one priority: the ones made last are asked first, and kube-proxy makes its own anew whenever it starts";

/// An answer and whose doing it is.
type Outcome = (Answer, Option<usize>);

impl<'a> Here<'a> {
    fn ask(&self, from: Vantage, to: Local) -> Answered {
        let listener = self.listener(from, to.ip);
        let mut outcomes: Vec<Outcome> =
            self.setups.candidates.iter().flat_map(|setup| self.outcomes(setup, from, to, listener)).collect();
        outcomes.dedup();
        let (answer, by) = match outcomes.iter().find(|(answer, _)| matches!(answer, Answer::Unknown(_))) {
            Some(unknown) => unknown.clone(),
            None if outcomes.len() == 1 => outcomes.remove(0),
            None => (Answer::Unknown(self.setups.ambiguity()), None),
        };
        let loser = listener.filter(|_| answer != Answer::Process);
        Answered { from, to: to.ip, answer, by, loser }
    }

    /// What may come of it in one setup: more than one thing where endpoints are unknown.
    fn outcomes(&self, setup: &Setup, from: Vantage, to: Local, listener: Option<usize>) -> Vec<Outcome> {
        let external = self.find(|right| match right {
            Right::External(claim, port) if claim.ip == to.ip && !to.ip.is_loopback() => {
                serves(claim.service, to.ip).then_some((claim.service, *port))
            }
            _ => None,
        });
        let node_port = self.find(|right| match right {
            Right::NodePort(service, port) => serves(service, to.ip).then_some((*service, *port)),
            _ => None,
        });
        let host_port = self.find(|right| match right {
            Right::HostPort(_, host) => covers(host, to.ip).then_some(()),
            _ => None,
        });
        let host_port = host_port.map(|(index, ())| index);
        let externals = self.fates(external, to.ip, |backing| setup.fate_of_claimed(to, from, backing));
        let strays = self.strays(setup, from, to, node_port.map(|(_, (service, _))| service), listener);
        let fate = |backing| if strays { Fate::Nowhere } else { setup.fate(to, from, backing) };
        let node_ports = self.fates(node_port, to.ip, fate);
        let pairs = externals.into_iter().flat_map(|external| node_ports.iter().map(move |it| (external, *it)));
        pairs
            .map(|(external, node_port)| {
                let service = match (external, node_port) {
                    (Some(external), Some(node_port)) => {
                        match setup.external_ip_or_node_port(external.1, node_port.1) {
                            Some(First::ExternalIp) => Some(external),
                            Some(_) => Some(node_port),
                            None => {
                                return unclear("two Services claim it, and which of them comes first is not defined");
                            }
                        }
                    }
                    (external, node_port) => external.or(node_port),
                };
                self.outcome(setup, (from, to), service, host_port, listener)
            })
            .collect()
    }

    /// Whether ipvs mode has a node's own connection to its link-local address leave with another source address, and so
    /// lead nowhere: it marks what goes to a NodePort to be masqueraded, served or not. A socket of that device is
    /// reached all the same, and so is one of UDP. Seen with kube-proxy 1.36.3 on Linux 6.1.
    fn strays(
        &self,
        setup: &Setup,
        from: Vantage,
        to: Local,
        service: Option<&Service>,
        listener: Option<usize>,
    ) -> bool {
        let hears_all = listener.is_some_and(|index| {
            matches!(self.rights[index], Right::Socket(socket, _) if socket.device == 0 && socket.protocol != Protocol::Udp)
        });
        setup.mode == Mode::Ipvs
            && is_lost_at_home(to, from)
            && hears_all
            && service.is_some_and(|service| !service.external_local)
    }

    /// What each backing that a Service may have makes of a connection, if there is a Service.
    fn fates(
        &self,
        right: Option<(usize, (&Service, &ServicePort))>,
        to: IpAddr,
        fate: impl Fn(Backing) -> Fate,
    ) -> Vec<Option<(usize, Fate)>> {
        let Some((index, (service, port))) = right else { return vec![None] };
        self.endpoints
            .possible(service, port, Family::of(to))
            .into_iter()
            .map(|backing| Some((index, fate(backing))))
            .collect()
    }

    fn outcome(
        &self,
        setup: &Setup,
        (from, to): (Vantage, Local),
        service: Option<(usize, Fate)>,
        host_port: Option<usize>,
        listener: Option<usize>,
    ) -> Outcome {
        if let Some(host_port) = host_port {
            match service.map(|(_, fate)| setup.node_port_or_host_port(fate)) {
                Some(Some(First::NodePort)) => {}
                // Either leads nowhere.
                Some(None) if !is_link_local(to.ip) => return unclear(UNDEFINED),
                _ => return (of_host_port(to.ip), Some(host_port)),
            }
        }
        match service {
            None | Some((_, Fate::Listener)) if listener.is_some() => (Answer::Process, listener),
            None | Some((_, Fate::Listener)) => (Answer::Refused, None),
            // What is stuck on loopback, and times out, is not when it leads to this node.
            Some((index, Fate::Pod | Fate::Nowhere | Fate::TimedOut))
                if self.leads_home(index, listener) && !is_lost_at_home(to, from) =>
            {
                (Answer::Process, Some(index))
            }
            Some((index, fate)) => (answer(fate.over(self.protocol)), Some(index)),
        }
    }

    /// The first right of a kind.
    fn find<T>(&self, mut kind: impl FnMut(&Right<'a>) -> Option<T>) -> Option<(usize, T)> {
        self.rights.iter().enumerate().find_map(|(index, right)| Some((index, kind(right)?)))
    }

    /// The socket that the kernel chooses, where nobody stands before it.
    fn listener(&self, from: Vantage, to: IpAddr) -> Option<usize> {
        let listener = self.find(|right| match right {
            Right::Socket(socket, _) => reach::answers(socket, to, self.interfaces).contains(&from).then_some(()),
            _ => None,
        });
        listener.map(|(index, ())| index)
    }

    /// Whether a NodePort's endpoint is the very listener that it stands before.
    fn leads_home(&self, index: usize, listener: Option<usize>) -> bool {
        let listener = listener.map(|index| &self.rights[index]);
        let (Right::NodePort(service, port), Some(Right::Socket(socket, _))) = (&self.rights[index], listener) else {
            return false;
        };
        let bound: Vec<IpAddr> = match socket.local.is_unspecified() {
            true => self.interfaces.addresses.iter().map(|it| it.ip).collect(),
            false => vec![socket.local],
        };
        self.endpoints.includes(service, port, &bound, socket.local_port)
    }

    fn claimant(&self, snapshot: &Snapshot, proxy: &Proxy<'_>, right: &Right<'_>) -> Claimant {
        let of_service = |claim, service: &Service, port: &ServicePort, what: String| {
            let endpoints = service
                .families
                .iter()
                .map(|family| format!("{family} endpoints {}", self.endpoints.in_words(service, port, *family)));
            let detail = std::iter::once(what).chain(endpoints).collect::<Vec<_>>().join("; ");
            Claimant { claim, name: format!("Service {}", service_port(service, &port.name)), detail }
        };
        match right {
            Right::External(claim, port) => {
                of_service(Claim::ExternalIp, claim.service, port, format!("{} {}", claim.field, claim.ip))
            }
            Right::NodePort(service, port) => {
                of_service(Claim::NodePort, service, port, format!("type {}", service.kind.name()))
            }
            Right::HostPort(pod, host) => Claimant {
                claim: Claim::HostPort,
                name: format!("pod {}/{}", pod.namespace, pod.name),
                detail: format!("hostPort to container port {}", host.port),
            },
            Right::Socket(socket, count) => {
                let claim = if proxy.owns(socket) == Own::Yes { Claim::Proxy } else { Claim::Listener };
                let workers = if *count > 1 { format!(", {count} workers") } else { String::new() };
                let name = format!("{} on {}", holder_name(snapshot, socket), place(socket));
                Claimant { claim, name, detail: format!("{}{workers}", socket_in_words(socket)) }
            }
        }
    }
}

fn serves(service: &Service, to: IpAddr) -> bool {
    service.families.contains(&Family::of(to))
}

/// A node's own packet between link-local addresses that was translated leads nowhere, even to the node itself.
fn is_lost_at_home(to: Local, from: Vantage) -> bool {
    is_link_local(to.ip) && from == Vantage::Node
}

/// What comes of a connection that a hostPort takes: nothing forwards what is link-local, and what comes from `::1`
/// cannot be answered.
fn of_host_port(to: IpAddr) -> Answer {
    match to {
        to if is_link_local(to) => Answer::Nowhere,
        IpAddr::V6(to) if to.is_loopback() => Answer::TimedOut,
        _ => Answer::Pod,
    }
}

fn answer(fate: Fate) -> Answer {
    match fate {
        Fate::Listener => Answer::Process,
        Fate::Pod => Answer::Pod,
        Fate::Refused => Answer::Refused,
        Fate::TimedOut => Answer::TimedOut,
        Fate::Nowhere => Answer::Nowhere,
    }
}

fn unclear(detail: &str) -> Outcome {
    (Answer::Unknown(Gap::new(Source::ProxyConfig, Why::Ambiguous, detail)), None)
}

#[cfg(test)]
mod tests;
