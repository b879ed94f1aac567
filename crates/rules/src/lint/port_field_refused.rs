//! A field with a port is one that the API server does not take, whatever else is there.
//!
//! ## Why it hurts
//! The API server refuses the object, in the middle of a chart: a nodePort in a Service of type ClusterIP or ExternalName, a
//! healthCheckNodePort without type LoadBalancer and `externalTrafficPolicy: Local`, one port of the node twice in one pod, and in the
//! host's network a hostPort that is not the containerPort. Of a template in the host's network with one containerPort twice, it is
//! the pods that are refused.
//!
//! ## Silent when
//! - a Service is updated to such a type, and writes the number that it has: the API server takes that away;
//! - the two ports of a pod have different protocols, or the `hostIP` is written differently;
//! - a container and one of `initContainers` have the port: these are not compared.
//!
//! ## Fix
//! Leave the field out, or give it the type or the number that it needs.

use super::{Linted, linted::placed, rule::LintRule};
use crate::findings::{Evidence, PlacedFinding, Severity, Step};
use portreeve_facts::{Refusal, Refused};

pub(super) const RULE: LintRule = LintRule::new(
    "port-field-refused",
    "The API server does not take a field with a port",
    Severity::Warning,
    include_str!("port_field_refused.rs"),
    check,
);

fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let mut findings = Vec::new();
    for manifest in &linted.manifests {
        for Refused { claim, why } in &manifest.refused {
            let Some((number, protocol)) = claim.what.port() else { continue };
            let is_wiped = matches!(why, Refusal::NodePortOf(_) | Refusal::HealthCheck);
            if is_wiped && linted.has_already(manifest, (number, protocol)) {
                continue;
            }
            let (what, remedy) = match why {
                Refusal::NodePortOf(kind) => (
                    format!("nodePort {number}/{protocol} of {manifest} stands in a Service of type {kind}"),
                    format!("leave the nodePort out of {manifest}, or write `type: NodePort`"),
                ),
                Refusal::HealthCheck => (
                    format!(
                        "healthCheckNodePort {number} of {manifest} needs type LoadBalancer and externalTrafficPolicy: Local"
                    ),
                    format!("leave healthCheckNodePort out of {manifest}, or write both"),
                ),
                Refusal::Twice => (
                    format!("port {number}/{protocol} of the node is there twice in one pod of {manifest}"),
                    format!("give one of the two ports in {manifest} another number, or leave it out"),
                ),
                Refusal::NotThePort(port) => (
                    format!(
                        "hostPort {number}/{protocol} of {manifest} is not its containerPort {port}, in the host's network"
                    ),
                    format!("leave the hostPort out of {manifest}: in the host's network it is the containerPort"),
                ),
            };
            let evidence = Evidence::new(Severity::Warning, format!("{what}: the API server refuses that."))
                .in_cluster()
                .remedy(Step::advice(remedy));
            findings.push(placed(RULE.id, (manifest, claim), evidence));
        }
    }
    findings
}
