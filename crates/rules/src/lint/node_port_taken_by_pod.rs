//! A Service wants a number that a pod of the cluster has as its port of the node.
//!
//! ## Why it hurts
//! The API server does not compare nodePorts with ports of pods, and accepts the Service. On the nodes where the pod runs one of the
//! two gets no connections, as the proxy's mode has it. Cilium in place of kube-proxy ignores the hostPort.
//!
//! It is information where the pod is in the namespace of the Service, which sends to that very port or to a named one: most likely
//! it is one of its own.
//!
//! ## Silent when
//! - the manifests are compared with no cluster, or its pods are not known: of a live cluster they are not read;
//! - the pod has ended, or is of a workload among the manifests: `node-port-claimed-twice` tells that;
//! - ServiceLB made the pod for the Service;
//! - the two are for different protocols, or the pod has the port at loopback;
//! - another proxy serves the Service (`service.kubernetes.io/service-proxy-name`).
//!
//! ## Fix
//! Give the Service another number, or the pod another port of the node, outside the NodePort range.

use super::{
    Linted,
    linted::copy_with,
    rule::{LintRule, Needs},
};
use crate::findings::{Evidence, PlacedFinding, Severity, Step};
use portreeve_facts::{Claimed, ContainerPort, Pod, Service, ServiceName};

pub(super) const RULE: LintRule = LintRule::new(
    "node-port-taken-by-pod",
    "A pod of the cluster has the number of a nodePort",
    Severity::Warning,
    include_str!("node_port_taken_by_pod.rs"),
    check,
)
.needs(Needs::Pods);

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
        let (severity, end) = match is_own {
            true => (Severity::Info, "nothing is lost where the Service sends to these pods alone"),
            false => (Severity::Warning, "there one of them gets no connections"),
        };
        let what = match claim.what {
            Claimed::HealthCheckNodePort(_) => "healthCheckNodePort",
            _ => "nodePort",
        };
        let summary = format!("{what} {number}/{protocol} of {manifest} is also {whose}: {end}.");
        let evidence = Evidence::new(severity, summary)
            .in_cluster()
            .value("taken by", whose)
            .remedy(Step::advice(format!("write another {what} into {manifest}")))
            .remedy(Step::advice("give the pod another port of the node, outside the NodePort range, in its template"));
        findings.push(linted.finding(RULE.id, (manifest, claim), evidence));
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
