//! The claims to a port, also in words.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use super::{
    super::{
        by_port::Port,
        cilium,
        claim::{Claim, ClaimKind},
        owners::owner_name,
        part::Field,
        proxy_sockets::Own,
        redirections::declares,
        round::Round,
        served::{may_have, service_port, unsettled},
        service_lb::sent_on,
        sockets::{place, socket_in_words, workers, workers_in_words},
    },
    ownership::Claimant,
};
use portreeve_facts::{
    ContainerPort, Family, Gap, Mode, Pod, Protocol, Service, ServicePort, Snapshot, Socket, Source, Unread,
};

/// Every claim, in the order in which the kernel checks claims for a new connection: external IPs, NodePorts,
/// hostPorts, then sockets. A socket on one address comes before a socket on every address.
///
/// # Errors
/// Fails if listeners were not read. Other unread inputs, such as Pods or redirections, add no claims, and the answer
/// names these inputs. If this node's name is unknown, hostPorts of pods that may be here are claims.
pub(super) fn claims<'a>(round: &Round<'a>, port: Port) -> Result<Vec<Claim<'a>>, Gap> {
    let external = round.external_at(port).map(|(address, port)| Claim::External(address, port));
    let unread = Unread::Reported("Ownership::unread");
    let node_ports = round.node_ports().known(unread).into_iter().flat_map(|it| it.at(port));
    let node_ports = node_ports.map(|(service, port)| Claim::NodePort(service, port));
    let host_ports = round.host_ports().known(unread).into_iter().flat_map(|it| it.at(port)).copied();
    let host_ports = host_ports.chain(unplaced(round.now, port)).map(|(pod, port)| Claim::HostPort(pod, port));
    let redirections = round.redirections().known(Unread::Reported("Ownership::redirections"));
    let left_behind = redirections.into_iter().flat_map(|it| it.left_behind(port));
    let (first, last): (Vec<_>, Vec<_>) = left_behind.partition(|(_, is_first)| *is_first);
    let redirection = |(left, _)| Claim::Redirection(left);
    let redirected = first.into_iter().map(redirection).chain(host_ports).chain(last.into_iter().map(redirection));
    let mut sockets = workers(round.listeners().get()?.at(port));
    sockets.sort_by_key(|(socket, _)| (socket.local.is_unspecified(), socket.device == 0));
    let sockets = sockets.into_iter().map(|(socket, count)| Claim::Listener(socket, count));
    Ok(external.chain(node_ports).chain(redirected).chain(sockets).collect())
}

/// The hostPorts of pods that may be on this node, because this node's name is unknown. Pods of one controller have
/// equal answers, so one of these pods is enough.
fn unplaced(snapshot: &Snapshot, (protocol, number): Port) -> impl Iterator<Item = (&Pod, &ContainerPort)> {
    let mut kinds = BTreeSet::new();
    let all = snapshot.cluster.unplaced_ports().filter(move |(at, pod, port)| {
        (port.protocol, *at) == (protocol, number) && !pod.host_network && !pod.may_be_on(snapshot.node_name())
    });
    all.map(|(_, pod, port)| (pod, port)).filter(move |(pod, port)| {
        kinds.insert((made_by(pod), port.host_ip, Family::BOTH.map(|family| may_have(pod, family))))
    })
}

/// The namespace of a pod, and the kind and name of its controller. A static pod's name ends with its node's name.
fn made_by(pod: &Pod) -> (&str, &str, &str) {
    let (kind, name) = match &pod.controller {
        None => ("Pod", &*pod.name),
        Some(it) if it.is_node() => (&*it.kind, pod.name.strip_suffix(&*it.name).unwrap_or(&pod.name)),
        Some(it) => (&*it.kind, &*it.name),
    };
    (&*pod.namespace, kind, name)
}

impl Claim<'_> {
    pub(super) fn claimant(&self, round: &Round<'_>) -> Claimant {
        let (snapshot, endpoints, proxy) = (round.now, round.endpoints(), round.proxy());
        let of_service = |claim, service: &Service, port: &ServicePort, what: String| {
            let endpoints = service
                .families
                .iter()
                .map(|family| format!("{family} endpoints {}", endpoints.in_words(service, port, *family)));
            let detail = std::iter::once(what).chain(endpoints).collect::<Vec<_>>().join("; ");
            Claimant { claim, name: format!("Service {}", service_port(service, &port.name)), detail }
        };
        match self {
            Self::External(address, port) => {
                let ranges = address.service.source_ranges;
                let has_range = ranges.contains(&Family::of(address.ip));
                // If loadBalancerSourceRanges has no range of the address's family, kube-proxy serves every client, and
                // Cilium serves no client (kubernetes pkg/proxy/serviceport.go; cilium pkg/loadbalancer/service.go,
                // `GetSourceRangesEnabled`).
                let limit = match cilium::serves_here(snapshot) {
                    _ if address.field != Field::LoadBalancer || ranges.is_empty() => "",
                    Some(false) if !has_range => "",
                    None if !has_range => ", perhaps only for clients that loadBalancerSourceRanges allows",
                    _ => ", only for clients that loadBalancerSourceRanges allows",
                };
                let what = format!("{} {}{limit}", address.field, address.ip);
                of_service(ClaimKind::ExternalIp, address.service, port, what)
            }
            Self::NodePort(service, port) => {
                let addresses = if serves_by_device(snapshot) { cilium::ONE_ADDRESS } else { "" };
                of_service(ClaimKind::NodePort, service, port, format!("type {}{addresses}", service.kind.name()))
            }
            Self::HostPort(pod, host) => {
                let sent_on = sent_on(snapshot, pod, host).map(|it| format!("; {it}"));
                let is_left_out = host.host_port.is_some_and(|it| cilium::ignores_host_port(snapshot, it));
                // Cilium redirects no connections of a hostPort in the NodePort range, so the pod needs no address. But
                // it may be unknown whether the pod is on this node.
                let unsettled = unsettled(snapshot, pod).filter(|gap| !is_left_out || gap.source != Source::Pods);
                let unsettled = unsettled.map(|gap| format!("; not known: {}", gap.detail));
                let left_out =
                    if is_left_out { "; Cilium does not serve it: the number is in the NodePort range" } else { "" };
                Claimant {
                    claim: ClaimKind::HostPort,
                    name: format!("pod {}/{}", pod.namespace, pod.name),
                    detail: format!(
                        "hostPort to container port {}{}{left_out}{}",
                        host.port,
                        sent_on.unwrap_or_default(),
                        unsettled.unwrap_or_default()
                    ),
                }
            }
            Self::Redirection(redirection) => {
                let is_left = !snapshot.cluster.unplaced_pods().any(|pod| declares(pod, redirection));
                let what = if is_left { "a leftover redirection" } else { "a redirection" };
                let target = SocketAddr::new(redirection.to, redirection.to_port);
                Claimant {
                    claim: ClaimKind::Redirection,
                    name: format!("{what} of a hostPort, to {target}"),
                    detail: round.redirections().get().map_or_else(|gap| gap.detail, |it| it.whose(redirection)),
                }
            }
            Self::Listener(socket, count) => {
                let claim = if proxy.owns(socket) == Own::Yes { ClaimKind::Proxy } else { ClaimKind::Listener };
                let workers = workers_in_words(socket, *count);
                let name = format!("{} on {}", owner_name(snapshot, &socket.owner), place(socket));
                let checked = health_check_of(snapshot, socket).filter(|_| claim == ClaimKind::Proxy);
                let checked = checked.map(|it| format!("health check of Service {}/{}; ", it.namespace, it.name));
                let detail = format!("{}{}{workers}", checked.unwrap_or_default(), socket_in_words(socket));
                Claimant { claim, name, detail }
            }
        }
    }
}

fn serves_by_device(snapshot: &Snapshot) -> bool {
    let listed = snapshot.proxy_config().is_ok_and(|config| !config.node_port_addresses.is_empty());
    snapshot.is_in(Mode::Cilium) && !listed
}

fn health_check_of<'a>(snapshot: &'a Snapshot, socket: &Socket) -> Option<&'a Service> {
    let mut services = snapshot.cluster.services.known_part(Unread::Adds).iter().map(Arc::as_ref);
    services.find(|it| socket.protocol == Protocol::Tcp && it.health_check_node_port == Some(socket.local_port))
}
