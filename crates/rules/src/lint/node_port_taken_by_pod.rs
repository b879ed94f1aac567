//! A Service wants a number that a pod of the cluster has as its port of the node.

use super::{
    Linted,
    linted::copy_with,
    rule::{LintRule, Needs},
};
use crate::findings::{Evidence, PlacedFinding, Severity, Step};
use crate::ids;
use portreeve_facts::{Claimed, ContainerPort, Pod, Service, ServiceName};

pub(super) const RULE: LintRule =
    LintRule::new(&ids::NODE_PORT_CLAIMED_TWICE, &["pods", "own"], check).needs(Needs::Pods);

fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let (pods, services) = (linted.pods_by_port(), linted.services_by_name());
    let mut findings = Vec::new();
    for (manifest, claim) in linted.claims() {
        let Some((number, protocol)) = claim.what.of_service() else { continue };
        let Some(there) = pods.get(&(number, protocol)) else { continue };
        let copies = services.get(&(&*manifest.namespace, &*manifest.name));
        let Some(service) = copies.and_then(|copies| copy_with(copies, claim)) else { continue };
        let is_other = |(pod, port): &&(&Pod, &ContainerPort)| {
            !port.host_ip.is_some_and(|ip| ip.is_loopback()) && !is_made_for(pod, service)
        };
        let mut others = there.iter().filter(|_| linted.snapshot.proxy_serves(service)).filter(is_other).peekable();
        let Some((Pod { namespace, name, node, host_network, .. }, _)) = others.peek() else { continue };
        let node = node.as_deref().unwrap_or("a node");
        let how = if *host_network { "a port in the host's network" } else { "hostPort" };
        let whose = format!("{how} of pod {namespace}/{name} on {node}");
        let is_own = others.all(|other| may_be_own(service, number, other));
        let (severity, variant, end) = match is_own {
            true => (Severity::Info, "own", "nothing is lost where the Service sends to these pods alone"),
            false => (Severity::Warning, "pods", "there one of them gets no connections"),
        };
        let what = match claim.what {
            Claimed::HealthCheckNodePort(_) => "healthCheckNodePort",
            _ => "nodePort",
        };
        let summary = format!("{what} {number}/{protocol} of {manifest} is also {whose}: {end}.");
        let evidence = Evidence::new(severity, summary)
            .in_cluster()
            .variant(variant)
            .value("taken by", whose)
            .remedy(Step::advice(format!("write another {what} into {manifest}")))
            .remedy(Step::advice("give the pod another port of the node, outside the NodePort range, in its template"));
        findings.push(linted.finding(RULE.name(), (manifest, claim), evidence));
    }
    findings
}

/// ServiceLB of k3s and RKE2 has the ports of a Service as hostPorts of its own pods.
fn is_made_for(pod: &Pod, service: &Service) -> bool {
    let is_it = |of: &ServiceName| (&of.namespace, &of.name) == (&service.namespace, &service.name);
    pod.service_lb_of.as_ref().is_some_and(is_it)
}

/// Whether the Service may send to this pod. Its selector would tell, which no rule reads.
fn may_be_own(service: &Service, number: u16, (pod, port): &(&Pod, &ContainerPort)) -> bool {
    let mut of_number = service.ports.iter().filter(|it| it.node_port == Some(number) && it.protocol == port.protocol);
    pod.namespace == service.namespace && of_number.any(|it| it.target.is_none_or(|target| target == port.port))
}
