//! An external IP of a Service is an address that the cluster has for something else.
//!
//! ## Why it hurts
//! Every node gives the connections to an external IP to the Service. Where the address is a Node's, connections to that node's own
//! daemons on this port go to the Service too, from every pod and every other node. Where it is another Service's cluster IP, that
//! Service loses its connections on this port.
//!
//! ## Silent when
//! - the manifests are compared with no cluster, and `--service-cidr` names no network;
//! - no Node and no other Service has the address, and no such network has it;
//! - it is the cluster IP of another Service with a port of this one: `external-address-claimed-twice` tells that.
//!
//! ## Fix
//! Have an address that is nobody's, or a Service of type LoadBalancer. Kubernetes 1.36 deprecates external IPs, and warns of
//! each: some clusters may no longer serve them.

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
use portreeve_facts::{Claimed, Node, Service, Snapshot};

pub(super) const RULE: LintRule = LintRule::new(
    "external-ip-in-cluster",
    "An external IP is a Node's address or a cluster IP",
    Severity::Warning,
    include_str!("external_ip_in_cluster.rs"),
    check,
)
.needs(Needs::Addresses);

fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let nodes = linted.nodes().unwrap_or_default();
    let nodes: HashMap<IpAddr, &Node> =
        nodes.into_iter().flat_map(|node| node.addresses.iter().map(move |it| (it.ip, node))).collect();
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
        let whose = match nodes.get(&ip) {
            Some(node) => format!("an address of Node {}", node.name),
            None => match (other(), linted.service_cidrs.iter().find(|cidr| cidr.contains(&ip))) {
                (Some(service), _) => format!("the cluster IP of Service {}/{}", service.namespace, service.name),
                (None, Some(cidr)) => format!("in {cidr}, of which the API server makes cluster IPs"),
                (None, None) => continue,
            },
        };
        let summary = format!(
            "external IP {ip} of {manifest} is {whose}: the Service gets connections that are meant for others."
        );
        let evidence = Evidence::new(Severity::Warning, summary)
            .in_cluster()
            .value("address", format!("{ip}, {whose}"))
            .remedy(Step::advice(format!("have an address in {manifest} that nobody else has")))
            .remedy(Step::advice(format!(
                "make {manifest} a Service of type LoadBalancer: external IPs are deprecated since Kubernetes 1.36"
            )));
        findings.push(linted.finding(RULE.id, (manifest, claim), evidence));
    }
    findings
}

/// Whether connections to an address of both would meet.
fn share_a_port(snapshot: &Snapshot, one: &Service, other: &Service) -> bool {
    let ports: HashSet<_> = one.ports.iter().map(|port| (port.port, port.protocol)).collect();
    let is_served = [one, other].iter().all(|service| snapshot.proxy_serves(service));
    is_served && other.ports.iter().any(|port| ports.contains(&(port.port, port.protocol)))
}
