//! A pod's port of the node lies in the NodePort range.
//!
//! ## Why it hurts
//! The API server does not compare nodePorts with ports of pods. It may give the number to any Service, and then one of the two
//! gets no connections on every node where the pod runs. Cilium in place of kube-proxy ignores such a hostPort from the
//! beginning.
//!
//! ## Silent when
//! - a Service has the number already: `node-port-claimed-twice` tells that;
//! - the `hostIP` is an address of loopback, where NodePorts are served in some modes only.
//!
//! ## Fix
//! Give the pod a port outside the range.

use std::collections::HashSet;

use super::{Linted, rule::LintRule};
use crate::findings::{Evidence, PlacedFinding, Severity, Step};
use portreeve_facts::Claimed;

pub(super) const RULE: LintRule = LintRule::new(
    "pod-port-in-node-port-range",
    "A pod's port of the node lies in the NodePort range",
    Severity::Warning,
    include_str!("pod_port_in_node_port_range.rs"),
    check,
);

fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let Some(range) = linted.snapshot.cluster.node_port_range.seen() else { return Vec::new() };
    let services = linted.snapshot.cluster.services.seen().into_iter().flatten();
    let ports = services.flat_map(|service| &service.ports);
    let taken: HashSet<_> = ports.filter_map(|port| Some((port.node_port?, port.protocol))).collect();
    let mut findings = Vec::new();
    for (manifest, claim) in linted.claims() {
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
        let evidence = Evidence::new(Severity::Warning, summary)
            .in_cluster()
            .value("NodePort range", range)
            .remedy(Step::advice(format!("give {manifest} a port of the node outside the NodePort range")));
        findings.push(linted.finding(RULE.id, (manifest, claim), evidence));
    }
    findings
}
