//! A DaemonSet wants a port of every node, and a pod of the cluster has it on one.

use std::collections::HashMap;

use super::{
    Linted,
    rule::{LintRule, Needs},
};
use crate::findings::{Evidence, PlacedFinding, Severity, Step};
use crate::ids;
use portreeve_facts::{ContainerPort, Pod, Workload, WorkloadKind};

pub(super) const RULE: LintRule = LintRule::new(&ids::POD_WAITS_FOR_PORT, &["pod"], check).needs(Needs::Pods);

/// A toleration of every taint, as [`Workload::tolerates`] has it: no key, `Exists`, no value, no effect.
const EVERYTHING: &str = " Exists  ";

fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let everywhere = |workload: &&Workload| {
        workload.kind == WorkloadKind::DaemonSet && workload.selects.is_empty() && workload.avoids.is_empty()
    };
    let workloads = linted.snapshot.cluster.workloads.iter().map(AsRef::as_ref).filter(everywhere);
    let workloads: HashMap<String, &Workload> = workloads.map(|workload| (workload.to_string(), workload)).collect();
    let pods = linted.pods_by_port();
    let mut findings = Vec::new();
    for manifest in &linted.manifests {
        let Some(workload) = workloads.get(&manifest.to_string()) else { continue };
        for claim in &manifest.claims {
            let Some((number, protocol)) = claim.what.of_pods() else { continue };
            let Some(there) = pods.get(&(number, protocol)) else { continue };
            let own = workload.node_ports().find(|(own, port)| (*own, port.protocol) == (number, protocol));
            let meets = |wanted: &ContainerPort| there.iter().find(|(_, port)| share_an_address(port, wanted));
            let Some((pod, _)) = own.and_then(|(_, own)| meets(own)) else { continue };
            let Pod { namespace, name: pod, node, .. } = pod;
            let node = node.as_deref().unwrap_or("a node");
            let (severity, end) = match workload.tolerates.iter().any(|it| it == EVERYTHING) {
                true => (Severity::Warning, "there its pod stays Pending"),
                false => (Severity::Info, "its pod stays Pending there, unless a taint keeps it away from that node"),
            };
            let summary =
                format!("port {number}/{protocol} of {manifest} is taken by pod {namespace}/{pod} on {node}: {end}.");
            let evidence = Evidence::new(severity, summary)
                .in_cluster()
                .value("taken by", format!("pod {namespace}/{pod} on {node}"))
                .remedy(Step::advice(format!("give {manifest} another port of the node than {number}/{protocol}")));
            findings.push(linted.finding(RULE.name(), (manifest, claim), evidence));
        }
    }
    findings
}

/// Whether two ports of one number are on one address of the node.
fn share_an_address(one: &ContainerPort, other: &ContainerPort) -> bool {
    let every = |port: &ContainerPort| port.host_ip.is_none_or(|ip| ip.is_unspecified());
    every(one) || every(other) || one.host_ip == other.host_ip
}
