//! A pod's port of the node lies in the NodePort range.

use std::collections::HashSet;

use super::{Linted, rule::LintRule};
use crate::findings::{Evidence, PlacedFinding, Severity, Step};
use crate::ids::{self, Id};
use portreeve_facts::{Claimed, WorkloadKind};

/// One for each kind of port: they are the cases that a rule of nodes finds once the pod is there.
pub(super) const RULES: [LintRule; 2] = [
    LintRule::new(&ids::HOST_PORT_CONFLICT, &["latent"], |linted| {
        check(linted, &ids::HOST_PORT_CONFLICT, |what| matches!(what, Claimed::HostPort(..)))
    }),
    LintRule::new(&ids::LISTENER_ON_NODE_PORT, &["latent"], |linted| {
        check(linted, &ids::LISTENER_ON_NODE_PORT, |what| matches!(what, Claimed::HostNetworkPort(..)))
    }),
];

/// It is a warning where the range is known and the pod is on every node: no Service can have the number then.
fn check(linted: &Linted, id: &Id, is_wanted: fn(&Claimed) -> bool) -> Vec<PlacedFinding> {
    let Some(range) = linted.snapshot.cluster.node_port_range.seen() else { return Vec::new() };
    let services = linted.snapshot.cluster.services.seen().into_iter().flatten();
    let ports = services.flat_map(|service| &service.ports);
    let taken: HashSet<_> = ports.filter_map(|port| Some((port.node_port?, port.protocol))).collect();
    let mut findings = Vec::new();
    for (manifest, claim) in linted.claims().filter(|(_, claim)| is_wanted(&claim.what)) {
        let Some((number, protocol)) = claim.what.of_pods().filter(|(number, _)| range.range.contains(*number)) else {
            continue;
        };
        if taken.contains(&(number, protocol)) || claim.what.is_at_loopback() {
            continue;
        }
        let (what, end) = match claim.what {
            Claimed::HostPort(..) => {
                ("hostPort", "a Service may be given the number, and Cilium in place of kube-proxy would not serve it")
            }
            _ => ("host network port", "a Service may be given the number, and then gets the connections"),
        };
        let range = format!("{} ({})", range.range, range.place);
        let summary = format!("{what} {number}/{protocol} of {manifest} lies in the NodePort range: {end}.");
        let is_certain = linted.knows_range && manifest.kind == WorkloadKind::DaemonSet.name();
        let severity = if is_certain { Severity::Warning } else { Severity::Info };
        let evidence = Evidence::new(severity, summary)
            .in_cluster()
            .variant("latent")
            .value("NodePort range", range)
            .remedy(Step::advice(format!("give {manifest} a port of the node outside the NodePort range")));
        findings.push(linted.finding(id.name, (manifest, claim), evidence));
    }
    findings
}
