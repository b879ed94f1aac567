//! Port fields that the API server refuses because of the object itself, or because of the number that the object has
//! now. Other objects do not matter.

use super::{Linted, linted::placed};
use crate::findings::{Evidence, PlacedFinding, REFUSED, Severity, Step};
use crate::ids::{self, Rows};
use portreeve_facts::Refusal;

pub(super) const ROWS: Rows =
    Rows { rule: ids::PORT_FIELD_REFUSED.name, variants: &["node-port", "twice", "host-network"] };

pub(super) fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let mut findings = Vec::new();
    for manifest in &linted.manifests {
        for (claim, why) in linted.refused(manifest) {
            let Some((number, protocol)) = claim.what.port() else { continue };
            let (variant, what, remedy) = match why {
                Refusal::NodePort => (
                    "node-port",
                    format!("nodePort {number}/{protocol} of {manifest} is set in a Service of type ClusterIP"),
                    format!("leave the nodePort out of {manifest}, or write `type: NodePort`"),
                ),
                Refusal::HealthCheck => (
                    "node-port",
                    format!(
                        "healthCheckNodePort {number} of {manifest} needs type LoadBalancer and externalTrafficPolicy: Local"
                    ),
                    format!("leave healthCheckNodePort out of {manifest}, or write both"),
                ),
                Refusal::HealthCheckReplaced(its) => (
                    "node-port",
                    format!("healthCheckNodePort {number} of {manifest} would replace {its}, which the Service has"),
                    format!("leave healthCheckNodePort out of {manifest}, or write {its}"),
                ),
                Refusal::Twice | Refusal::TwiceInPods => (
                    "twice",
                    format!("port {number}/{protocol} of the node is declared twice in one pod of {manifest}"),
                    format!("give one of the two ports in {manifest} another number, or leave it out"),
                ),
                Refusal::PortTwice => (
                    "twice",
                    format!("port {number}/{protocol} is declared twice in {manifest}"),
                    format!("give one of the two ports in {manifest} another port or protocol, or leave it out"),
                ),
                Refusal::NameTwice => (
                    "twice",
                    format!("two ports of {manifest} have one name, and one of them is {number}/{protocol}"),
                    format!("give each port in {manifest} a name of its own"),
                ),
                Refusal::NotThePort(port) => (
                    "host-network",
                    format!(
                        "hostPort {number}/{protocol} of {manifest} is not its containerPort {port}, in the host's network"
                    ),
                    format!("leave the hostPort out of {manifest}: in the host's network it is the containerPort"),
                ),
            };
            let refused = if why == Refusal::TwiceInPods { "its pods" } else { "the object" };
            let evidence = Evidence::new(Severity::Warning, format!("{what}: the API server refuses {refused}."))
                .in_cluster()
                .variant(variant)
                .outcome(REFUSED)
                .remedy(Step::advice(remedy));
            findings.push(placed(ROWS.rule, (manifest, claim), evidence));
        }
    }
    findings
}
