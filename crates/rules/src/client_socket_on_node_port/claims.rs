//! Which Service ports a socket meets.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use portreeve_dataplane::Part;
use portreeve_facts::{Family, Protocol, Service, ServicePort, Snapshot, Socket};

/// A Service port at whose address and port a socket may be.
#[derive(Clone, Copy)]
pub(super) struct Claim<'a> {
    pub(super) service: &'a Service,
    pub(super) port: &'a ServicePort,
    /// By its nodePort, or else by an external address and its own port.
    pub(super) by_node_port: bool,
}

impl Claim<'_> {
    /// What of the Service a socket at an address meets.
    pub(super) fn part(self, local: IpAddr) -> Part {
        Part::at(self.service, (!self.by_node_port).then(|| local.to_canonical()))
    }
}

/// The Service ports by protocol and number, those on which there is a socket.
pub(super) struct Claims<'a>(HashMap<(Protocol, u16), Vec<Claim<'a>>>);

impl<'a> Claims<'a> {
    pub(super) fn of(snapshot: &Snapshot, services: &'a [Arc<Service>], wanted: &HashSet<(Protocol, u16)>) -> Self {
        let mut claims: HashMap<_, Vec<_>> = HashMap::new();
        for service in services.iter().filter(|service| snapshot.proxy_serves(service)) {
            let has_external = !service.external_ips.is_empty() || !service.load_balancer_ips.is_empty();
            for port in &service.ports {
                for (number, by_node_port) in [(port.node_port, true), (has_external.then_some(port.port), false)] {
                    if let Some(key) = number.map(|number| (port.protocol, number)).filter(|key| wanted.contains(key)) {
                        claims.entry(key).or_default().push(Claim { service, port, by_node_port });
                    }
                }
            }
        }
        Self(claims)
    }

    /// Those that a socket's local address meets too.
    pub(super) fn on(&self, socket: &Socket) -> impl Iterator<Item = Claim<'a>> {
        let local = socket.local.to_canonical();
        let claims = self.0.get(&(socket.protocol, socket.local_port)).into_iter().flatten().copied();
        claims.filter(move |Claim { service, by_node_port, .. }| match by_node_port {
            true => local.is_unspecified() || service.families.contains(&Family::of(local)),
            false => service.external_ips.iter().chain(&service.load_balancer_ips).any(|ip| *ip == local),
        })
    }
}
