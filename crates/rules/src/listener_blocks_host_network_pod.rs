//! A hostNetwork pod is not ready, or does not exist yet. The pod cannot listen: a process has its port, or Cilium
//! refuses `bind` on the port.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{
    Limits, Round, Rule,
    ephemeral::{EphemeralPorts, with_ranges},
    free_ports::Alternatives,
    ids,
    pods::{
        PortOf, are_siblings, ends_in_time, is_failing, next_pod, pods_before, to_come, unread_pod_that, waits_for,
    },
    remedies::{another_port, move_off, move_service, some_addresses, without_stub},
    reservation::reserve,
    socket_needs::{Ports, SocketNeed},
    wording::{capital, with_sockets},
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{
    Addresses, LocalAddress, Need, Part, Port, Role, cilium_range, holds, is_usual, owner_name, place, pod_of,
    refuses_bind, refuses_bind_of, serves, service_port,
};
use portreeve_facts::{
    ContainerPort, Family, Gap, Pod, Protocol, Service, ServicePort, Snapshot, Socket, Source, Unread, Why,
};

pub(super) static RULE: Rule =
    Rule::of(&ids::HOST_NETWORK_PORT_TAKEN, &["listener", "refused"], &[Source::Listeners, Source::Pods], check)
        .sockets(&[SocketNeed::Owners(Ports::UnreadyHostNetworkPods)]);

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let listening = round.listeners().get()?;
    let snapshot = round.now;
    pods_before(snapshot)?;
    let ephemeral = EphemeralPorts::of(snapshot);
    let mut judgements = Vec::new();
    for (at, needs) in round.needs().known(Unread::Reported("the gap of Pods")).ports() {
        for need in needs {
            let (Need::Declared(_, port) | Need::Probe(_, port) | Need::Reported(_, port)) = need else { continue };
            let Some(pod) = need.unready_pod() else { continue };
            let of = PortOf::Pod(pod);
            let blocked = Blocked { round, snapshot, ephemeral: &ephemeral, of, need: *need, pod, port };
            judgements.extend(blocked.judge(listening.at(at)));
        }
    }
    for workload in to_come(snapshot).filter(|workload| workload.host_network) {
        let pod = next_pod(snapshot, workload);
        for (number, port) in pod.node_ports() {
            let of = PortOf::Workload(workload);
            let need = Need::Declared(&pod, port);
            let blocked = Blocked { round, snapshot, ephemeral: &ephemeral, of, need, pod: &pod, port };
            judgements.extend(blocked.judge(listening.at((port.protocol, number))));
        }
    }
    let is_refused = |at: Port| {
        let refuses = |family: &Family| refuses_bind(snapshot, at.0, *family);
        let may_refuse = snapshot.proxy_mode().is_err() || Family::BOTH.iter().any(refuses);
        may_refuse
            && match round.node_ports().get() {
                Ok(all) => !all.at(at).is_empty(),
                Err(gap) => gap.why != Why::NotRequested && is_in_range(snapshot, at.1),
            }
    };
    let is_taken = |at: Port| !listening.at(at).is_empty() || is_refused(at);
    judgements.extend(unread_pod_that(snapshot, |pod| waits_for(pod, is_taken)));
    Ok(judgements)
}

struct Blocked<'r, 'a> {
    round: &'r Round<'a>,
    snapshot: &'a Snapshot,
    ephemeral: &'r EphemeralPorts,
    of: PortOf<'r>,
    need: Need<'r>,
    pod: &'r Pod,
    port: &'r ContainerPort,
}

impl Blocked<'_, '_> {
    /// If Cilium refuses the port, the finding names Cilium before a listener. Cilium would still refuse the port after
    /// the listener ends.
    fn judge(&self, sockets: &[&Socket]) -> Option<Judgement> {
        let holdings: Vec<_> = sockets.iter().map(|socket| holds(self.snapshot, self.pod, &socket.owner)).collect();
        if (holdings.contains(&Ok(true)) && !self.is_down()) || self.is_of_the_agent() {
            return None;
        }
        let by_sockets = self.by_sockets(sockets, holdings);
        let verdict = match (self.node_port(), by_sockets) {
            (Ok(Some((service, entry))), Some(Verdict::Problem(listener))) => {
                Verdict::Problem(self.refused(service, entry, Some(&listener)))
            }
            (Ok(Some((service, entry))), _) => Verdict::Problem(self.refused(service, entry, None)),
            (_, Some(verdict)) => verdict,
            (Ok(None), None) => return None,
            (Err(gap), None) => Verdict::Unknown(gap),
        };
        let ContainerPort { port, protocol, .. } = *self.port;
        let subject = self.of.subject_or(Subject::this_node(self.snapshot));
        Some(Judgement::on_port(subject, (protocol, port), verdict))
    }

    fn by_sockets(&self, sockets: &[&Socket], holdings: Vec<Result<bool, Gap>>) -> Option<Verdict> {
        // Workers of one owner may share a port with `SO_REUSEPORT`. Only one of the workers is judged.
        let mut seen = BTreeSet::new();
        let mut is_new =
            |it: &&&Socket| seen.insert((it.local, it.device, it.v6only, owner_name(self.snapshot, &it.owner)));
        let in_the_way: Vec<&Socket> =
            sockets.iter().filter(|socket| self.meets(socket)).filter(&mut is_new).copied().collect();
        let owner = |socket: &&Socket| owner_name(self.snapshot, &socket.owner);
        let alone = in_the_way.iter().map(owner).collect::<BTreeSet<_>>().len() == 1;
        let mut worst: Vec<(Severity, &Socket)> =
            in_the_way.iter().filter_map(|socket| Some((self.severity(socket, alone)?, *socket))).collect();
        worst
            .sort_by_key(|(severity, socket)| (std::cmp::Reverse(*severity), self.round.in_vrfs(&[*socket]).is_some()));
        let (severity, socket) = worst.first()?;
        Some(match holdings.into_iter().find_map(Result::err).or_else(|| self.round.in_vrfs(&[*socket])) {
            Some(gap) => Verdict::Unknown(gap),
            None => Verdict::Problem(self.evidence(*severity, socket, &in_the_way)),
        })
    }

    /// Whether a container of the pod failed, and no container of the pod runs. If true, a process of the pod on the
    /// port is left over from an earlier container.
    fn is_down(&self) -> bool {
        self.pod.failing && self.pod.running == Some(false)
    }

    fn is_failing(&self) -> bool {
        is_failing(self.snapshot, self.pod)
    }

    fn is_own(&self, socket: &Socket) -> bool {
        holds(self.snapshot, self.pod, &socket.owner) == Ok(true)
    }

    /// The Service port that makes Cilium refuse `bind` on the pod's port.
    fn node_port(&self) -> Result<Option<(&Service, &ServicePort)>, Gap> {
        let ContainerPort { port, protocol, .. } = *self.port;
        // Pods that do not exist yet are reported by `node-port-claimed-twice/pods`. A message of a container does not
        // prove that the pod needs the port.
        if let (PortOf::Workload(_), _) | (_, Need::Reported(..)) = (self.of, self.need) {
            return Ok(None);
        }
        let mode = self.snapshot.proxy_mode();
        let refused = |family: &Family| refuses_bind(self.snapshot, protocol, *family);
        if mode.is_ok() && !Family::BOTH.iter().any(refused) {
            return Ok(None);
        }
        let node_ports = match self.round.node_ports().get() {
            Err(gap) if gap.why == Why::NotRequested || !is_in_range(self.snapshot, port) => return Ok(None),
            node_ports => node_ports?,
        };
        let Some((service, entry)) = node_ports.at((protocol, port)).first() else { return Ok(None) };
        mode?;
        if !serves(self.round, service, Part::NodePorts)? {
            return Ok(None);
        }
        let is_refused = !self.refused_families(service).is_empty();
        Ok((is_refused && self.is_served(service)?).then_some((service, entry)))
    }

    /// Whether Cilium refuses `bind` on the address that the pod declares. True if the pod declares no address.
    fn is_served(&self, service: &Service) -> Result<bool, Gap> {
        let Some(ip) = self.declared() else { return Ok(true) };
        if !self.refused_families(service).contains(&Family::of(ip)) {
            return Ok(false);
        }
        let addressed = self.round.addressed().get()?;
        let loopback = ip.is_loopback().then_some(LocalAddress { ip, vrf: false });
        let Some(local) = addressed.local(ip).copied().or(loopback) else { return Ok(false) };
        let assumptions = &addressed.assumptions;
        assumptions.agree(|it| it.captures(local, self.port.port)).ok_or_else(|| assumptions.ambiguity())
    }

    fn refused_families(&self, service: &Service) -> Vec<Family> {
        let families = service.families.iter().copied();
        families.filter(|family| refuses_bind_of(self.snapshot, service, self.port.protocol, *family)).collect()
    }

    fn refused(&self, service: &Service, entry: &ServicePort, listener: Option<&Evidence>) -> Evidence {
        let ContainerPort { port, protocol, .. } = *self.port;
        let Pod { namespace, name, .. } = self.pod;
        // If Cilium refuses `bind` in one family only, a server of the other family may be able to listen. For example,
        // the Service has IPv4 only, and the server listens on `::`.
        let (of, certain) = match self.refused_families(service)[..] {
            [only] if self.declared().is_none() => (format!(" of {only}"), self.is_failing()),
            _ => (String::new(), self.is_failing() || !self.is_probed()),
        };
        let severity = if certain { Severity::Warning } else { Severity::Info };
        let sentence = format!(
            "HostNetwork pod {namespace}/{name}, which is not ready, cannot listen on {port}/{protocol}{of}: it is the NodePort of {}, and Cilium refuses bind() on this NodePort.",
            service_port(service, &entry.name)
        );
        let severity = listener.map_or(severity, |listener| severity.max(listener.severity));
        let mut evidence = Evidence::new(severity, sentence)
            .variant("refused")
            .value("pod", format!("{namespace}/{name}: {}", self.state()))
            .value("bind()", "fails with EADDRINUSE, even without a listener: Cilium protects NodePorts");
        let in_the_way = listener.into_iter().flat_map(|listener| &listener.values);
        evidence.values.extend(in_the_way.filter(|(name, _)| *name != "pod").cloned());
        evidence.remedy(self.another_port()).remedy(move_service(
            Alternatives::of(self.round).for_port(service, Some(entry)),
            service,
            entry,
        ))
    }

    fn another_port(&self) -> Step {
        match self.of {
            PortOf::Pod(Pod { namespace, name, controller, .. }) => another_port(namespace, name, controller.as_ref()),
            PortOf::Workload(workload) => Step::advice(format!("give {workload} another port of the node")),
        }
    }

    fn state(&self) -> &'static str {
        match (self.is_failing(), self.pod.running) {
            (true, _) => "a container ended with an error",
            (false, Some(false)) => "no container runs",
            (false, _) => "not ready",
        }
    }

    /// Whether the port is the agent's own port, which `own_port_taken` reports.
    fn is_of_the_agent(&self) -> bool {
        let needs = self.round.needs().known(Unread::Reported("own_port_taken"));
        needs.at((self.port.protocol, self.port.port)).iter().any(|need| matches!(need, Need::Agent(own) if own.taken))
    }

    fn meets(&self, socket: &Socket) -> bool {
        self.need.at().meets(socket) != Some(false)
    }

    /// The severity if this socket blocks the pod. `None` if the socket's pod is about to end. `alone` means that no
    /// other owner blocks the pod.
    fn severity(&self, socket: &Socket, alone: bool) -> Option<Severity> {
        let holder = pod_of(self.snapshot, &socket.owner);
        if holder.is_some_and(|holder| ends_in_time(self.snapshot, holder)) {
            return None;
        }
        let siblings = |holder: &Pod| {
            let Pod { namespace, controller, .. } = self.pod;
            are_siblings((&holder.namespace, holder.controller.as_ref()), (namespace, controller.as_ref()))
        };
        let is_needed = self.is_failing() || matches!(self.need, Need::Declared(..));
        let certain =
            self.is_failing() && (alone || !leaves_the_port(socket)) || is_needed && self.is_in_every_way(socket);
        let replaced = !self.is_own(socket) && holder.is_some_and(siblings);
        Some(if certain && !replaced { Severity::Warning } else { Severity::Info })
    }

    fn is_probed(&self) -> bool {
        matches!(self.need, Need::Probe(..))
    }

    fn words(&self) -> &'static str {
        if self.is_probed() { "a probe's port" } else { "a port" }
    }

    fn declared(&self) -> Option<IpAddr> {
        if let Addresses::One(ip) = self.need.at() { Some(ip) } else { None }
    }

    /// Whether this socket certainly blocks the pod: the socket is on an address of the pod, and only one process can
    /// bind the port.
    fn is_in_every_way(&self, socket: &Socket) -> bool {
        let declared = self.declared();
        let mut addresses = declared.iter().chain(self.pod.ips.iter().filter(|_| declared.is_none()));
        let taken = match socket.local.is_unspecified() {
            true => addresses.any(|ip| socket.serves(Family::of(*ip)) == Some(true)),
            false => addresses.any(|ip| *ip == socket.local),
        };
        // Two UDP servers may share a port. Servers that are bound to different interfaces may also share a port.
        taken && socket.protocol != Protocol::Udp && socket.device == 0
    }

    fn evidence(&self, severity: Severity, socket: &Socket, sockets: &[&Socket]) -> Evidence {
        let ContainerPort { port, protocol, .. } = *self.port;
        let owner = match self.is_own(socket) {
            true => "A process that outlived its container".to_owned(),
            false => capital(&owner_name(self.snapshot, &socket.owner)),
        };
        let lacks = match (self.is_in_every_way(socket), self.is_failing()) {
            (true, true) => format!("the pod cannot listen on {port}/{protocol}"),
            (true, false) => format!(
                "the pod can listen on {port}/{protocol} only if the process and the pod share the port (SO_REUSEPORT)"
            ),
            (false, _) if protocol == Protocol::Udp => {
                format!(
                    "the pod can listen on {port}/{protocol} with a socket for all addresses only if the process and the pod share the port (SO_REUSEPORT or SO_REUSEADDR)"
                )
            }
            (false, _) => format!("the pod cannot listen on {port}/{protocol} with a socket for all addresses"),
        };
        let of = match self.of {
            PortOf::Pod(Pod { namespace, name, .. }) => {
                format!("hostNetwork pod {namespace}/{name}, which is not ready")
            }
            PortOf::Workload(workload) => format!("{workload} in the host's network"),
        };
        let sentence = match self.need {
            Need::Reported(..) => format!(
                "{owner} listens on {}: a container of {of}, ended with the message that this address is in use.",
                place(socket)
            ),
            _ => format!("{owner} listens on {}, {} of {of}: {lacks}.", place(socket), self.words()),
        };
        let evidence = Evidence::new(severity, sentence);
        let evidence = match self.of {
            PortOf::Pod(Pod { namespace, name, .. }) => {
                evidence.value("pod", format!("{namespace}/{name}: {}", self.state()))
            }
            of @ PortOf::Workload(_) => of.named_in(evidence, port, protocol),
        };
        let message = self.pod.reported_use_of(protocol, port);
        let mut evidence =
            with_sockets(evidence, "listener", self.snapshot, sockets).each("message of a container", message);
        let look = Step::advice(format!("check whether the log of {} contains *address already in use*", self.of));
        if is_stub(socket) && !self.is_own(socket) {
            let apart = match self.of {
                of @ PortOf::Pod(_) => Remedy::from(look).then(some_addresses(of)),
                of @ PortOf::Workload(_) => some_addresses(of).into(),
            };
            return evidence.remedy(apart).remedy(without_stub());
        }
        let mut moved = match self.is_own(socket) {
            true => Step::advice(format!("end this process, or delete {}", self.of)).into(),
            false => move_off(self.snapshot, socket),
        };
        if let PortOf::Pod(_) = self.of
            && !self.is_in_every_way(socket)
            && !self.is_own(socket)
        {
            moved = Remedy { steps: [look].into_iter().chain(moved.steps).collect() };
        }
        // A tenant can write the message of a container, so the message must not cause the reservation of a port.
        if self.ephemeral.contain(port) && !matches!(self.need, Need::Reported(..)) {
            // A program that binds port 0 gets a port from these ranges.
            evidence = with_ranges(evidence, self.snapshot);
            let reserved = reserve(self.round, &[port].into_iter().collect());
            moved = Remedy { steps: reserved.steps.into_iter().chain(moved.steps).collect() };
        }
        let another = self.another_port();
        // To move a server with many clients is the last remedy.
        match is_usual(port, Role::Reached) && !self.is_own(socket) {
            true => evidence.remedy(another).remedy(moved),
            false => evidence.remedy(moved).remedy(another),
        }
    }
}

/// Whether Cilium may refuse `bind` on the port. True if Cilium's NodePort range was not read.
fn is_in_range(snapshot: &Snapshot, port: u16) -> bool {
    cilium_range(snapshot).map_or(true, |range| range.contains(port))
}

/// Whether a socket has an address that most servers do not use. The kernel still refuses the port to a server on all
/// addresses (net/ipv4/inet_connection_sock.c, `inet_bind_conflict`).
fn leaves_the_port(socket: &Socket) -> bool {
    let usual = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    socket.device != 0 || socket.local.is_loopback() && !usual.contains(&socket.local)
}

/// Whether a socket has the address at which systemd-resolved answers the node's programs (src/shared/resolve-util.h).
fn is_stub(socket: &Socket) -> bool {
    let stubs = [Ipv4Addr::new(127, 0, 0, 53), Ipv4Addr::new(127, 0, 0, 54)].map(IpAddr::from);
    socket.local_port == 53 && stubs.contains(&socket.local)
}

#[cfg(test)]
mod tests;
