//! An external IP of a Service is an address that the cluster has for something else.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use super::{
    Linted,
    linted::copy_with,
    rule::{LintRule, Needs},
};
use crate::findings::{Evidence, PlacedFinding, Severity, Step};
use crate::ids;
use portreeve_facts::{Claimed, Mode, Node, NodeAddressKind, Service, Snapshot};

pub(super) const RULE: LintRule =
    LintRule::new(&ids::EXTERNAL_IP_CONFLICT, &["node-address", "cluster-ip"], check).needs(Needs::Addresses);

fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let nodes = linted.nodes().unwrap_or_default();
    let nodes: HashMap<IpAddr, (&Node, NodeAddressKind)> =
        nodes.into_iter().flat_map(|node| node.addresses.iter().map(move |it| (it.ip, (node, it.kind)))).collect();
    let is_ipvs = linted.snapshot.is_in(Mode::Ipvs);
    let by_name = linted.services_by_name();
    let cluster_ips =
        by_name.values().flatten().flat_map(|service| service.cluster_ips.iter().map(|ip| (*ip, *service)));
    let services: HashMap<IpAddr, &Service> = cluster_ips.collect();
    let mut findings = Vec::new();
    for (manifest, claim) in linted.claims() {
        let Claimed::ExternalIp(ip) = claim.what else { continue };
        let is_other = |it: &Service| (&it.namespace, &it.name) != (&manifest.namespace, &manifest.name);
        let other = || services.get(&ip).filter(|it| is_other(it));
        let copies = by_name.get(&(&*manifest.namespace, &*manifest.name));
        let own = copies.and_then(|copies| copy_with(copies, claim));
        if own.is_some_and(|own| {
            !nodes.contains_key(&ip) && other().is_some_and(|it| share_a_port(&linted.snapshot, own, it))
        }) {
            continue;
        }
        // Elsewhere than in ipvs mode the Service takes its own ports of the address, and the Node keeps the others.
        let of_node = |kind| match kind {
            _ if !is_ipvs => Severity::Info,
            NodeAddressKind::InternalIp => Severity::Critical,
            NodeAddressKind::ExternalIp | NodeAddressKind::Hostname => Severity::Warning,
        };
        let (severity, variant) = match nodes.get(&ip) {
            Some((_, kind)) => (of_node(*kind), "node-address"),
            None => (Severity::Warning, "cluster-ip"),
        };
        let whose = match nodes.get(&ip) {
            Some((node, _)) => format!("an address of Node {}", node.name),
            None => match (other(), linted.service_cidrs.iter().find(|cidr| cidr.contains(&ip))) {
                (Some(service), _) => format!("the cluster IP of Service {}/{}", service.namespace, service.name),
                (None, Some(cidr)) => format!("in {cidr}, of which the API server makes cluster IPs"),
                (None, None) => continue,
            },
        };
        let summary = format!(
            "external IP {ip} of {manifest} is {whose}: the Service gets connections that are meant for others."
        );
        let evidence = Evidence::new(severity, summary)
            .in_cluster()
            .variant(variant)
            .value("address", format!("{ip}, {whose}"))
            .remedy(Step::advice(format!("have an address in {manifest} that nobody else has")))
            .remedy(Step::advice(format!(
                "make {manifest} a Service of type LoadBalancer: external IPs are deprecated since Kubernetes 1.36"
            )));
        findings.push(linted.finding(RULE.name(), (manifest, claim), evidence));
    }
    findings
}

/// Whether connections to an address of both would meet.
fn share_a_port(snapshot: &Snapshot, one: &Service, other: &Service) -> bool {
    let ports: HashSet<_> = one.ports.iter().map(|port| (port.port, port.protocol)).collect();
    let is_served = [one, other].iter().all(|service| snapshot.proxy_serves(service));
    is_served && other.ports.iter().any(|port| ports.contains(&(port.port, port.protocol)))
}
