//! A hostNetwork pod that is not ready cannot listen: a process has its port, or Cilium refuses it.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{
    Limits, Patience, Round, Rule,
    ephemeral::{EphemeralPorts, ranges_in_words},
    free_ports::Alternatives,
    ids,
    pods::{are_siblings, ends_in_time},
    remedies::{another_port, move_off, move_service},
    reservation::reserve,
    socket_needs::{Ports, SocketNeed},
    wording::{capital, with_sockets},
};
use crate::findings::{Evidence, Judgement, Judgements, Remedy, Severity, Step, Subject, Verdict};
use portreeve_dataplane::{
    Holding, Part, cilium_range, holding, owner_name, place, pod_of, refuses_bind, refuses_bind_of, served_node_ports,
    serves, service_port, unready_host_network_pods,
};
use portreeve_facts::{
    ContainerPort, Family, Gap, Pod, Protocol, Reading, Service, ServicePort, Snapshot, Socket, Source, Why,
};

pub(super) static RULE: Rule = Rule {
    id: &ids::HOST_NETWORK_PORT_TAKEN,
    variants: &["listener", "refused"],
    needs: &[Source::Listeners, Source::Pods],
    uses: &[],
    socket_needs: &[SocketNeed::Owners(Ports::UnreadyHostNetworkPods)],
    patience: Patience::TwoScans,
    check,
};

/// So long, in seconds, and not much longer, a container that fails is not started again: five minutes, and as long to fail.
pub(super) const LONGEST_BACK_OFF: i64 = 600;

/// At these ports others reach SSH, DNS, etcd, the API server, kubelet, kube-proxy and the control plane of a node.
const OF_THE_NODE: [u16; 10] = [22, 53, 2379, 2380, 6443, 10249, 10250, 10256, 10257, 10259];

fn check(round: &Round<'_>, _: &Limits) -> Judgements {
    let snapshot = round.now;
    let listening = round.listeners()?;
    let pods = snapshot.cluster.pods.get()?;

    let ephemeral = EphemeralPorts::of(snapshot);
    let mut judgements = Vec::new();
    for pod in unready_host_network_pods(snapshot, pods) {
        let mut seen = BTreeSet::new();
        for port in
            pod.ports.iter().chain(&pod.probed).filter(|port| seen.insert((port.protocol, port.port, port.host_ip)))
        {
            let sockets = listening.at((port.protocol, port.port));
            let blocked = Blocked { round, snapshot, ephemeral: &ephemeral, pod, port };
            judgements.extend(blocked.judge(sockets));
        }
    }
    Ok(judgements)
}

/// A port that a pod needs, and may not get.
struct Blocked<'r, 'a> {
    round: &'r Round<'a>,
    snapshot: &'a Snapshot,
    ephemeral: &'r EphemeralPorts,
    pod: &'a Pod,
    port: &'a ContainerPort,
}

impl Blocked<'_, '_> {
    /// Cilium's refusal says more than a listener does: without that one the pod could not listen either.
    fn judge(&self, sockets: &[&Socket]) -> Option<Judgement> {
        let holdings: Vec<_> = sockets.iter().map(|socket| holding(self.snapshot, self.pod, &socket.owner)).collect();
        if (holdings.contains(&Holding::Own) && !self.is_down()) || self.is_of_the_agent() {
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
        Some(Judgement { subject: Subject::pod(self.pod), port: Some(port), protocol: Some(protocol), verdict })
    }

    /// What those mean who listen there.
    fn by_sockets(&self, sockets: &[&Socket], holdings: Vec<Holding>) -> Option<Verdict> {
        // Of workers that share a port one stands for those of its owner: with `SO_REUSEPORT` others may share it.
        let mut seen = BTreeSet::new();
        let mut is_new =
            |it: &&&Socket| seen.insert((it.local, it.device, it.v6only, owner_name(self.snapshot, &it.owner)));
        let in_the_way: Vec<&Socket> =
            sockets.iter().filter(|socket| self.meets(socket)).filter(&mut is_new).copied().collect();
        let mut worst: Vec<(Severity, &Socket)> =
            in_the_way.iter().filter_map(|socket| Some((self.severity(socket)?, *socket))).collect();
        worst.sort_by_key(|(severity, _)| std::cmp::Reverse(*severity));
        let (severity, socket) = worst.first()?;
        Some(match holdings.into_iter().find_map(Holding::gap) {
            Some(gap) => Verdict::Unknown(gap),
            None => Verdict::Problem(self.evidence(*severity, socket, &in_the_way)),
        })
    }

    /// Whether none of the pod's containers runs, and one failed: what has its port then is what an earlier one left.
    fn is_down(&self) -> bool {
        self.pod.failing && self.pod.running == Some(false)
    }

    /// Whether a container ended with an error, and does not run for long again.
    fn is_failing(&self) -> bool {
        let runs_for = self.pod.restarted.map(|since| self.snapshot.at.as_second() - since.as_second());
        self.pod.failing && runs_for.is_none_or(|seconds| seconds < LONGEST_BACK_OFF)
    }

    /// Whether the owner of a socket is the pod itself.
    fn is_own(&self, socket: &Socket) -> bool {
        holding(self.snapshot, self.pod, &socket.owner) == Holding::Own
    }

    /// The NodePort for which Cilium keeps the port from the pod.
    fn node_port(&self) -> Result<Option<(&Service, &ServicePort)>, Gap> {
        let ContainerPort { port, protocol, .. } = *self.port;
        let mode = self.snapshot.proxy_mode();
        let refused = |family: &Family| refuses_bind(self.snapshot, protocol, *family);
        if mode.is_ok() && !Family::BOTH.iter().any(refused) {
            return Ok(None);
        }
        let in_range = || cilium_range(self.snapshot).map_or(true, |range| range.contains(port));
        let services = match &self.snapshot.cluster.services {
            Reading::Gap(gap) if gap.why == Why::NotAsked || !in_range() => return Ok(None),
            services => services.get()?,
        };
        let is_its = |(_, entry, number): &(&Service, &ServicePort, u16)| (entry.protocol, *number) == (protocol, port);
        let Some((service, entry, _)) = served_node_ports(self.snapshot, services).find(is_its) else {
            return Ok(None);
        };
        mode?;
        if !serves(self.snapshot, service, Part::NodePorts)? {
            return Ok(None);
        }
        let is_refused = !self.refused_families(service).is_empty();
        Ok((is_refused && self.is_served(service)?).then_some((service, entry)))
    }

    /// Whether NodePorts are served on the address that the pod declares; without one it is the wildcard.
    fn is_served(&self, service: &Service) -> Result<bool, Gap> {
        let Some(ip) = self.declared() else { return Ok(true) };
        if !self.refused_families(service).contains(&Family::of(ip)) {
            return Ok(false);
        }
        if ip.is_loopback() {
            return Ok(true);
        }
        let addressed = self.round.addressed()?;
        let Some(local) = addressed.locals.iter().find(|local| local.ip == ip) else {
            return Ok(false);
        };
        addressed.candidates.agree(|it| it.captures(*local)).ok_or_else(|| addressed.candidates.ambiguity())
    }

    /// The families of a Service in which Cilium refuses `bind` on its NodePort.
    fn refused_families(&self, service: &Service) -> Vec<Family> {
        let families = service.families.iter().copied();
        families.filter(|family| refuses_bind_of(self.snapshot, service, self.port.protocol, *family)).collect()
    }

    /// Cilium refuses `bind`; somebody who listens there is in the way, too.
    fn refused(&self, service: &Service, entry: &ServicePort, listener: Option<&Evidence>) -> Evidence {
        let ContainerPort { port, protocol, .. } = *self.port;
        let Pod { namespace, name, .. } = self.pod;
        // A server on `::` may have the port where a Service has IPv4 alone.
        let (of, certain) = match self.refused_families(service)[..] {
            [only] if self.declared().is_none() => (format!(" of {only}"), self.is_failing()),
            _ => (String::new(), self.is_failing() || !self.is_probed()),
        };
        let severity = if certain { Severity::Warning } else { Severity::Info };
        let sentence = format!(
            "HostNetwork pod {namespace}/{name}, which is not ready, cannot listen on {port}/{protocol}{of}: it is the NodePort of {}, and Cilium refuses bind() there.",
            service_port(service, &entry.name)
        );
        let severity = listener.map_or(severity, |listener| severity.max(listener.severity));
        let mut evidence = Evidence::new(severity, sentence)
            .variant("refused")
            .value("pod", format!("{namespace}/{name}: {}", self.state()))
            .value("bind()", "fails with EADDRINUSE, whoever listens: Cilium protects NodePorts");
        let in_the_way = listener.into_iter().flat_map(|listener| &listener.values);
        evidence.values.extend(in_the_way.filter(|(name, _)| *name != "pod").cloned());
        evidence.remedy(another_port(namespace, name, self.pod.controller.as_ref())).remedy(move_service(
            Alternatives::of(self.snapshot).for_port(service, Some(entry)),
            service,
            entry,
        ))
    }

    /// How the pod is.
    fn state(&self) -> &'static str {
        match (self.is_failing(), self.pod.running) {
            (true, _) => "a container ended with an error",
            (false, Some(false)) => "no container runs",
            (false, _) => "not ready",
        }
    }

    /// Whether it is the port on which an agent answers, and another rule says that it lacks it.
    fn is_of_the_agent(&self) -> bool {
        let own = self.snapshot.own_port.seen().filter(|own| own.taken);
        own.is_some_and(|own| (Protocol::Tcp, own.address.port()) == (self.port.protocol, self.port.port))
    }

    /// Whether a socket has the port on an address that the pod declares.
    fn meets(&self, socket: &Socket) -> bool {
        self.port.host_ip.is_none_or(|ip| {
            let everywhere = ip.is_unspecified() || socket.local.is_unspecified();
            socket.local == ip || everywhere && socket.serves(Family::of(ip)) != Some(false)
        })
    }

    /// How bad it is that this socket is there; nothing where it goes by itself.
    fn severity(&self, socket: &Socket) -> Option<Severity> {
        let holder = pod_of(self.snapshot, &socket.owner);
        if holder.is_some_and(|holder| ends_in_time(self.snapshot, holder)) {
            return None;
        }
        let siblings = |holder: &Pod| {
            let Pod { namespace, controller, .. } = self.pod;
            are_siblings((&holder.namespace, holder.controller.as_ref()), (namespace, controller.as_ref()))
        };
        let is_needed = self.is_failing() || !self.is_probed();
        let certain = self.is_failing() && !leaves_the_port(socket) || is_needed && self.is_in_every_way(socket);
        let replaced = !self.is_own(socket) && holder.is_some_and(siblings);
        Some(if certain && !replaced { Severity::Warning } else { Severity::Info })
    }

    /// Whether it is known only from a probe that the pod needs the port.
    fn is_probed(&self) -> bool {
        self.pod.probed.iter().any(|probed| std::ptr::eq(probed, self.port))
    }

    /// What the port is to the pod.
    fn words(&self) -> &'static str {
        if self.is_probed() { "a probe's port" } else { "a port" }
    }

    /// The one address that the pod declares.
    fn declared(&self) -> Option<IpAddr> {
        self.port.host_ip.filter(|ip| !ip.is_unspecified())
    }

    /// Whether nobody else can listen on an address that the pod is reached at.
    fn is_in_every_way(&self, socket: &Socket) -> bool {
        let declared = self.declared();
        let mut addresses = declared.iter().chain(self.pod.ips.iter().filter(|_| declared.is_none()));
        let taken = match socket.local.is_unspecified() {
            true => addresses.any(|ip| socket.serves(Family::of(*ip)) == Some(true)),
            false => addresses.any(|ip| *ip == socket.local),
        };
        // Two UDP servers may share a port, and two that are bound to interfaces.
        taken && socket.protocol != Protocol::Udp && socket.device == 0
    }

    fn evidence(&self, severity: Severity, socket: &Socket, sockets: &[&Socket]) -> Evidence {
        let ContainerPort { port, protocol, .. } = *self.port;
        let Pod { namespace, name, .. } = self.pod;
        let owner = match self.is_own(socket) {
            true => "A process that outlived its container".to_owned(),
            false => capital(&owner_name(self.snapshot, &socket.owner)),
        };
        let lacks = match (self.is_in_every_way(socket), self.is_failing()) {
            (true, true) => format!("the pod cannot listen on {port}/{protocol}"),
            (true, false) => format!("the pod cannot listen on {port}/{protocol} unless both ask to share it"),
            (false, _) => format!("the pod cannot listen on {port}/{protocol} of every address"),
        };
        let sentence = format!(
            "{owner} listens on {}, {} of hostNetwork pod {namespace}/{name}, which is not ready: {lacks}.",
            place(socket),
            self.words()
        );
        let evidence = Evidence::new(severity, sentence).value("pod", format!("{namespace}/{name}: {}", self.state()));
        let mut evidence = with_sockets(evidence, "listener", self.snapshot, sockets);
        let mut moved = match self.is_own(socket) {
            true => Step::advice(format!("end that process, or delete pod {namespace}/{name}")).into(),
            false => move_off(self.snapshot, socket),
        };
        if !self.is_in_every_way(socket) && !self.is_own(socket) {
            let look = format!("see whether the log of pod {namespace}/{name} says that the address is already in use");
            moved = Remedy { steps: [Step::advice(look)].into_iter().chain(moved.steps).collect() };
        }
        if self.ephemeral.contain(port) {
            // Who binds port 0 gets one of these.
            evidence.values.extend(ranges_in_words(self.snapshot));
            let reserved = reserve(self.snapshot, &[port].into_iter().collect());
            moved = Remedy { steps: reserved.steps.into_iter().chain(moved.steps).collect() };
        }
        let another = another_port(namespace, name, self.pod.controller.as_ref());
        // What everybody reaches there is moved last.
        match OF_THE_NODE.contains(&port) && !self.is_own(socket) {
            true => evidence.remedy(another).remedy(moved),
            false => evidence.remedy(moved).remedy(another),
        }
    }
}

/// Whether a socket is where it leaves the port to servers of the node's other addresses.
fn leaves_the_port(socket: &Socket) -> bool {
    let usual = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    socket.device != 0 || socket.local.is_loopback() && !usual.contains(&socket.local)
}

#[cfg(test)]
mod tests;
