//! A DaemonSet wants a port of every node, and a pod of the cluster has it on one.
//!
//! ## Why it hurts
//! The API server accepts the DaemonSet. Its pod stays Pending on each node where another pod has the port.
//!
//! ## Silent when
//! - the manifests are compared with no cluster, or its pods are not known: of a live cluster they are not read;
//! - the pod is of the same DaemonSet, or has ended;
//! - the DaemonSet selects nodes, or avoids some: the pod may run where it does not;
//! - the two want the port on different addresses of the node, or for different protocols.
//!
//! ## Fix
//! Give one of the two another port.

use std::net::IpAddr;

use super::{Linted, rule::LintRule};
use crate::{
    facts::{ContainerPort, Pod, Workload, WorkloadKind},
    findings::{Evidence, PlacedFinding, Severity, Step},
};

pub(super) const RULE: LintRule = LintRule::new(
    "host-port-taken",
    "A pod of the cluster has a port that a DaemonSet wants",
    Severity::Warning,
    include_str!("host_port_taken.rs"),
    check,
);

fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let everywhere = |workload: &&Workload| {
        workload.kind == WorkloadKind::DaemonSet && workload.selects.is_empty() && workload.avoids.is_empty()
    };
    let mut findings = Vec::new();
    for workload in linted.snapshot.cluster.workloads.iter().map(AsRef::as_ref).filter(everywhere) {
        let name = workload.to_string();
        for (manifest, claim) in linted.claims().filter(|(manifest, _)| manifest.to_string() == name) {
            let Some((number, protocol)) = claim.what.of_pods() else { continue };
            let own = workload.node_ports().find(|(own, port)| (*own, port.protocol) == (number, protocol));
            let Some(pod) = own.and_then(|(_, own)| linted.pods().find(|pod| has(pod, number, own))) else { continue };
            let Pod { namespace, name: pod, node, .. } = pod;
            let node = node.as_deref().unwrap_or("a node");
            let summary = format!(
                "port {number}/{protocol} of {manifest} is taken by pod {namespace}/{pod} on {node}: there its pod stays Pending."
            );
            let evidence = Evidence::new(Severity::Warning, summary)
                .in_cluster()
                .value("taken by", format!("pod {namespace}/{pod} on {node}"))
                .remedy(Step::advice(format!("give {manifest} another port of the node than {number}/{protocol}")));
            findings.push(linted.finding(RULE.id, (manifest, claim), evidence));
        }
    }
    findings
}

/// Whether a pod has the port of its node on an address on which the other is wanted.
fn has(pod: &Pod, number: u16, wanted: &ContainerPort) -> bool {
    let every = |port: &ContainerPort| port.host_ip.is_none_or(|ip: IpAddr| ip.is_unspecified());
    pod.node.is_some()
        && pod.node_ports().any(|(its, port)| {
            its == number
                && port.protocol == wanted.protocol
                && (every(port) || every(wanted) || port.host_ip == wanted.host_ip)
        })
}
