//! A workload wants several pods, and each of them the same port of its node.

use super::{Linted, rule::LintRule};
use crate::findings::{Evidence, PlacedFinding, Severity, Step};
use crate::ids;
use portreeve_facts::Manifest;

pub(super) const RULE: LintRule = LintRule::new(&ids::POD_WAITS_FOR_PORT, &["replicas"], check);

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
        findings.push(linted.finding(RULE.name(), (manifest, claim), evidence));
    }
    findings
}
