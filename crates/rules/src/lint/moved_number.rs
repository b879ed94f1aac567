//! NodePorts that move between Services of the manifests. The API server gets one object after another. For each
//! object, the API server compares a number with the numbers that Services have at this moment (Kubernetes 1.36
//! `pkg/registry/core/service/storage/alloc.go`).

use std::collections::HashMap;

use super::Linted;
use crate::{
    findings::{Evidence, PlacedFinding, REFUSED, Severity, Step, SubjectKind},
    ids,
    wording::number_field,
};
use portreeve_facts::{Claimed, Protocol, Service, Unread};

/// Finds the fields that the API server refuses because of the order of the input. When the API server receives the
/// object, another Service or field still has the number. If the other field also has the number after all manifests,
/// `node_port_claimed_twice.rs` reports the field that wants the number.
pub(super) fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let (cluster, unread) = (&linted.snapshot.cluster, Unread::Reported("LintReport::failures"));
    let services = cluster.services.known_part(unread);
    let range = cluster.node_port_range.known(unread);
    // If a Service has several copies, the first copy is used.
    let after: HashMap<(&str, &str), &Service> =
        services.iter().rev().map(|it| ((&*it.namespace, &*it.name), &**it)).collect();
    let before = linted.held.iter().flat_map(|((namespace, name), service)| {
        numbers(service).map(move |(number, field)| (number, ((namespace.as_str(), name.as_str()), field)))
    });
    let mut holders: HashMap<u16, ((&str, &str), &str)> = before.collect();
    let mut findings = Vec::new();
    for manifest in linted.manifests.iter().filter(|it| it.kind == SubjectKind::Service.name()) {
        let own = (&*manifest.namespace, &*manifest.name);
        let its_own = linted.before(manifest);
        let mut is_refused = linted.refused(manifest).next().is_some();
        for claim in &manifest.claims {
            let (number, protocol, field) = match claim.what {
                Claimed::NodePort(number, protocol) => (number, protocol, "nodePort"),
                Claimed::HealthCheckNodePort(number) => (number, Protocol::Tcp, "healthCheckNodePort"),
                _ => continue,
            };
            // The API server does not compare a number that this field of the Service already has.
            if its_own.is_some_and(|it| numbers(it).any(|had| had == (number, field))) {
                continue;
            }
            // `node_port_outside_range.rs` reports this field.
            is_refused |= range.is_some_and(|it| !it.range.contains(number));
            let Some(&(holder, its)) = holders.get(&number).filter(|it| **it != (own, field)) else { continue };
            is_refused = true;
            if after.get(&holder).is_some_and(|it| numbers(it).any(|kept| kept == (number, its))) {
                continue;
            }
            let (namespace, name) = holder;
            let summary = format!(
                "{field} {number}/{protocol} of {manifest} is still {its} of Service {namespace}/{name} in the order of the input: the API server refuses the object."
            );
            let evidence = Evidence::new(Severity::Warning, summary)
                .in_cluster()
                .variant("refused")
                .outcome(REFUSED)
                .remedy(Step::advice(format!("first apply Service {namespace}/{name} without {its} {number}")))
                .remedy(Step::advice(format!("give {manifest} another {field}")));
            findings.push(linted.finding(ids::NODE_PORT_CLAIMED_TWICE.name, (manifest, claim), evidence));
        }
        // A Service that the API server refuses keeps its numbers.
        if !is_refused {
            for (number, _) in its_own.into_iter().flat_map(|it| numbers(it)) {
                if holders.get(&number).is_some_and(|(holder, _)| *holder == own) {
                    holders.remove(&number);
                }
            }
            for (number, field) in after.get(&own).into_iter().flat_map(|it| numbers(it)) {
                holders.entry(number).or_insert((own, field));
            }
        }
    }
    findings
}

/// The numbers of a Service on each node, and the field of each number.
fn numbers(service: &Service) -> impl Iterator<Item = (u16, &'static str)> {
    service.numbers().map(|(number, port)| (number, number_field(port)))
}
