//! A workload wants several pods, and each of them the same port of its node.
//!
//! ## Why it hurts
//! Two pods with one hostPort do not run on one node. The API server accepts the workload, and the pods that find no node stay
//! Pending: `didn't have free ports`. An update that begins with a new pod waits likewise.
//!
//! It is information as long as nobody says how many nodes there are, and a warning where the cluster that the manifests are
//! compared with has fewer than pods are wanted.
//!
//! ## Silent when
//! it is a DaemonSet, or wants one pod or none at a time. Of a Job its `parallelism` counts, as far as so many are to end.
//!
//! ## Fix
//! Make it a DaemonSet, or have a Service in place of the hostPort.

use super::{Linted, rule::LintRule};
use crate::findings::{Evidence, PlacedFinding, Severity, Step};
use portreeve_facts::Manifest;

pub(super) const RULE: LintRule = LintRule::new(
    "host-port-with-replicas",
    "Several pods of one workload want one port of a node",
    Severity::Warning,
    include_str!("host_port_with_replicas.rs"),
    check,
);

fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let nodes = linted.nodes().map(|nodes| nodes.len());
    let first = |manifest: &Manifest| manifest.claims.iter().position(|claim| claim.what.of_pods().is_some());
    let mut findings = Vec::new();
    for manifest in &linted.manifests {
        let Some(replicas) = manifest.replicas.filter(|replicas| *replicas > 1) else { continue };
        let Some(claim) = first(manifest).map(|index| &manifest.claims[index]) else { continue };
        let Some((number, protocol)) = claim.what.of_pods() else { continue };
        let too_few = nodes.filter(|nodes| i64::try_from(*nodes).is_ok_and(|nodes| nodes < replicas));
        let end = match too_few {
            Some(nodes) => format!(", and there are {nodes} nodes"),
            None => String::new(),
        };
        let severity = if too_few.is_some() { Severity::Warning } else { Severity::Info };
        let summary = format!(
            "{manifest} wants {replicas} pods with port {number}/{protocol} of their node: only one of them runs on a node{end}."
        );
        let evidence = Evidence::new(severity, summary)
            .in_cluster()
            .value("replicas", replicas)
            .remedy(Step::advice(format!("make {manifest} a DaemonSet, or have no port of the node in its template")));
        findings.push(linted.finding(RULE.id, (manifest, claim), evidence));
    }
    findings
}
