//! Addresses of a Service that proxies serve, except for cluster IPs.

use std::{collections::HashSet, net::IpAddr};

use super::part::{Field, Part};
use portreeve_facts::{Family, Mode, Service, Snapshot};

/// An address of a Service that the proxies of nodes serve, except for cluster IPs.
#[derive(Clone, Copy, Debug)]
pub struct ExternalAddress<'a> {
    /// The Service.
    pub service: &'a Service,
    /// The address.
    pub ip: IpAddr,
    /// The field of the Service that has the address.
    pub field: Field,
}

impl<'a> ExternalAddress<'a> {
    /// Every external address of a Service, if this node's proxy serves the Service: external IPs first, then the load
    /// balancer's addresses.
    pub fn of(snapshot: &Snapshot, service: &'a Service) -> impl Iterator<Item = Self> {
        let external = service.external_ips.iter().enumerate().map(|(index, ip)| (*ip, Field::ExternalIps(index)));
        let load_balancer = service.load_balancer_ips.iter().map(|ip| (*ip, Field::LoadBalancer));
        let mut known = HashSet::new();
        // A user can list one address a thousand times in a Service. An address is returned once, for its first field.
        let each_once = external.chain(load_balancer).filter(move |(ip, _)| known.insert(*ip));
        let is_served = snapshot.proxy_serves(service);
        each_once.filter(move |_| is_served).map(move |(ip, field)| Self { service, ip, field })
    }

    /// The addresses that a proxy in this mode serves. kube-proxy leaves out addresses of families that the Service
    /// does not have (kubernetes pkg/proxy/serviceport.go `newBaseServiceInfo`). Cilium serves these addresses too
    /// (pkg/loadbalancer/reflectors/conversions.go).
    pub fn served(snapshot: &Snapshot, service: &'a Service, mode: Option<Mode>) -> impl Iterator<Item = Self> {
        Self::of(snapshot, service).filter(move |claim| claim.is_served(mode))
    }

    /// Whether a proxy in this mode serves the address.
    pub fn is_served(&self, mode: Option<Mode>) -> bool {
        mode == Some(Mode::Cilium) || self.service.families.contains(&Family::of(self.ip))
    }

    /// The part of the Service to which the address belongs. Annotations can exclude a part.
    pub fn part(&self) -> Part {
        Part::Address(self.field)
    }

    /// The cluster IPs of a Service, if this node's proxy serves the Service. Rules compare cluster IPs with external
    /// addresses of other Services.
    pub fn cluster_ips(snapshot: &Snapshot, service: &'a Service) -> impl Iterator<Item = Self> {
        let is_served = snapshot.proxy_serves(service);
        service.cluster_ips.iter().filter(move |_| is_served).map(move |ip| Self {
            service,
            ip: *ip,
            field: Field::ClusterIps,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        Snapshot,
        healthy::{PEER, ip},
    };

    #[test]
    fn an_address_named_in_both_fields_is_one_claim_and_another_proxys_service_makes_none() {
        let world = Snapshot::healthy().service("trap", |it| {
            it.external_ip(PEER).with(|service| service.load_balancer_ips = vec![ip(PEER), ip("198.51.100.7")])
        });
        let mut service = Service::clone(&world.cluster.services.seen().expect("services")[0]);
        let claims: Vec<_> = ExternalAddress::of(&world, &service).map(|claim| (claim.ip, claim.field)).collect();
        assert_eq!(claims, [(ip(PEER), Field::ExternalIps(0)), (ip("198.51.100.7"), Field::LoadBalancer)]);
        assert_eq!(service.families, Family::BOTH);
        service.families = &[Family::V6];
        let served = |mode| ExternalAddress::served(&world, &service, mode).count();
        assert_eq!([served(None), served(Some(Mode::Ipvs)), served(Some(Mode::Cilium))], [0, 0, 2]);
        service.external_ips.push(ip("198.51.100.9"));
        service.external_ips.insert(0, ip(PEER));
        let fields: Vec<_> = ExternalAddress::of(&world, &service).map(|claim| claim.field).collect();
        // A patch needs the index of each external IP.
        assert_eq!(fields, [Field::ExternalIps(0), Field::ExternalIps(2), Field::LoadBalancer]);
        service.proxy_name = Some("other".to_owned());
        assert_eq!(ExternalAddress::of(&world, &service).count(), 0);
    }
}
