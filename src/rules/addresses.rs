//! Whose an address is: a Service claims it from outside the cluster, a Node has it.

use std::{collections::HashMap, fmt, net::IpAddr, sync::Arc};

use crate::facts::{Node, NodeAddressKind, Service};

/// Lists in evidence name this many things and count the rest.
const MOST_NAMED: usize = 16;

/// An address besides its cluster IPs that a Service has its node proxies take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<'a> {
    /// The Service.
    pub(super) service: &'a Service,
    /// The address.
    pub(super) ip: IpAddr,
    /// Where the Service names it.
    pub(super) field: Field,
}

/// Where a Service names an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// `spec.externalIPs`, at this index.
    ExternalIps(usize),
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
}

impl<'a> Claim<'a> {
    /// Every claim of a Service that this node's proxy serves: its external IPs, then its load balancer's addresses.
    pub(super) fn of(service: &'a Service) -> impl Iterator<Item = Self> {
        let external = service.external_ips.iter().enumerate().map(|(index, ip)| (*ip, Field::ExternalIps(index)));
        let load_balancer = service
            .load_balancer_ips
            .iter()
            .filter(|ip| !service.external_ips.contains(ip))
            .map(|ip| (*ip, Field::LoadBalancer));
        external.chain(load_balancer).filter(|_| service.proxy_name.is_none()).map(move |(ip, field)| Self {
            service,
            ip,
            field,
        })
    }
}

impl fmt::Display for Field {
    /// `externalIP`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ExternalIps(_) => "externalIP",
            Self::LoadBalancer => "load balancer address",
        })
    }
}

/// `default/trap type ClusterIP, ports 6666/tcp, 53/udp`, for evidence.
pub(super) fn service_in_words(service: &Service) -> String {
    let ports = service.ports.iter().map(|port| format!("{}/{}", port.port, port.protocol));
    format!("{}/{} type {}, ports {}", service.namespace, service.name, service.kind.name(), listed(ports))
}

/// The Nodes that have an address, with its type there.
pub(super) type NodesByAddress<'a> = HashMap<IpAddr, Vec<(&'a Node, NodeAddressKind)>>;

/// Every Node by each of its addresses.
pub(super) fn nodes_by_address(nodes: &[Arc<Node>]) -> NodesByAddress<'_> {
    let mut by_address = NodesByAddress::new();
    for node in nodes {
        for address in &node.addresses {
            by_address.entry(address.ip).or_default().push((node, address.kind));
        }
    }
    for owners in by_address.values_mut() {
        owners.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    }
    by_address
}

/// Kubernetes' word for an address of this type.
pub(super) fn kind_in_words(kind: NodeAddressKind) -> &'static str {
    match kind {
        NodeAddressKind::InternalIp => "InternalIP",
        NodeAddressKind::ExternalIp => "ExternalIP",
        NodeAddressKind::Hostname => "Hostname address",
    }
}

/// `a, b and 3 more`: the first sixteen by name.
pub(super) fn listed<T: fmt::Display>(things: impl IntoIterator<Item = T>) -> String {
    let mut things = things.into_iter();
    let mut words = String::new();
    for thing in things.by_ref().take(MOST_NAMED) {
        let separator = if words.is_empty() { "" } else { ", " };
        words.push_str(&format!("{separator}{thing}"));
    }
    match things.count() {
        0 => words,
        more => format!("{words} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{
        Snapshot,
        healthy::{PEER, ip},
    };

    #[test]
    fn an_address_named_in_both_fields_is_one_claim_and_another_proxys_service_makes_none() {
        let world = Snapshot::healthy().service("trap", |it| {
            it.external_ip(PEER).with(|service| service.load_balancer_ips = vec![ip(PEER), ip("198.51.100.7")])
        });
        let mut service = Service::clone(&world.cluster.services.seen().expect("services")[0]);
        let claims: Vec<_> = Claim::of(&service).map(|claim| (claim.ip, claim.field)).collect();
        assert_eq!(claims, [(ip(PEER), Field::ExternalIps(0)), (ip("198.51.100.7"), Field::LoadBalancer)]);
        service.proxy_name = Some("other".to_owned());
        assert_eq!(Claim::of(&service).count(), 0);
    }

    #[test]
    fn long_lists_are_counted_not_written() {
        assert_eq!(listed([1, 2]), "1, 2");
        assert!(listed(0..20).ends_with("14, 15 and 4 more"));
    }
}
