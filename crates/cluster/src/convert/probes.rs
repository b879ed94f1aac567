//! From probes to the ports on which a pod of the host's network has to listen, though no container declares them.

use std::net::IpAddr;

use crate::{
    slim_object::{Container, Probed},
    tolerant_field::Field,
};
use portreeve_facts::{ContainerPort, Protocol};

/// So many ports of one pod are kept.
const MOST: usize = 16;

/// The ports that the probes of a container ask. A name is one that a container declares, and is left out; so is what may be
/// another's: a host that is neither loopback nor one that the kubelet fills in.
pub(super) fn probed(container: &Container) -> impl Iterator<Item = ContainerPort> {
    let probes = [&container.startup, &container.liveness, &container.readiness].into_iter().filter_map(Field::seen);
    probes.flat_map(|probe| [&probe.http, &probe.tcp, &probe.grpc]).filter_map(Field::seen).filter_map(port)
}

fn port(Probed { host, port }: &Probed) -> Option<ContainerPort> {
    let host_ip = match host.seen().map_or("", String::as_str) {
        "" | "localhost" => None,
        host => Some(host.parse().ok().filter(IpAddr::is_loopback)?),
    };
    // A number in quotes is one, too (kubernetes pkg/probe/util.go).
    let port = port.seen()?.0.parse().ok().filter(|port| *port > 0)?;
    Some(ContainerPort { port, host_port: None, host_ip, protocol: Protocol::Tcp })
}

/// Those that no container declares, each once.
pub(super) fn undeclared(probed: Vec<ContainerPort>, declared: &[ContainerPort]) -> Vec<ContainerPort> {
    let mut kept: Vec<ContainerPort> = Vec::new();
    for it in probed {
        let is_same = |other: &ContainerPort| (other.protocol, other.port) == (it.protocol, it.port);
        if kept.len() < MOST && !declared.iter().chain(&kept).any(is_same) {
            kept.push(it);
        }
    }
    kept.shrink_to_fit();
    kept
}
