//! A process of a node that was looked at listens on a port that a manifest claims.
//!
//! ## Why it hurts
//! A pod in the host's network cannot have the port on that node. A hostPort or a nodePort takes the connections of whoever
//! listens there, or gets none, as the proxy's mode has it.
//!
//! ## Silent when
//! - the manifests are compared with no snapshot;
//! - an object of the same kind and name is there already: the listener may be its own;
//! - the listener is at loopback.
//!
//! ## Fix
//! Give the object another port, or move the process.

use std::collections::HashMap;

use super::{
    Linted,
    rule::{LintRule, Needs},
};
use crate::{
    dataplane::owner_name,
    facts::{Claimed, Protocol, Socket},
    findings::{Evidence, PlacedFinding, Severity, Step},
};

pub(super) const RULE: LintRule = LintRule::new(
    "listener-on-port",
    "A process listens on a port that a manifest claims",
    Severity::Warning,
    include_str!("listener_on_port.rs"),
    check,
)
.needs(Needs::Listeners);

fn check(linted: &Linted) -> Vec<PlacedFinding> {
    let Some(listeners) = linted.snapshot.kernel.listeners.seen() else { return Vec::new() };
    let node = linted.snapshot.node_name();
    let reached = listeners.iter().filter(|it| !it.local.to_canonical().is_loopback());
    let by_port: HashMap<(u16, Protocol), &Socket> = reached.map(|it| ((it.local_port, it.protocol), it)).collect();
    let mut findings = Vec::new();
    for (manifest, claim) in linted.claims().filter(|(manifest, _)| !linted.is_update(manifest)) {
        let Some((number, protocol)) = claim.what.port() else { continue };
        let Some(socket) = by_port.get(&(number, protocol)) else { continue };
        let owner = owner_name(&linted.snapshot, &socket.owner);
        let what = match claim.what {
            Claimed::NodePort(..) => "nodePort",
            Claimed::HealthCheckNodePort(_) => "healthCheckNodePort",
            Claimed::HostPort(..) => "hostPort",
            Claimed::HostNetworkPort(..) | Claimed::ExternalIp(_) => "host network port",
        };
        let summary = format!("{owner} listens on {what} {number}/{protocol} of {manifest}, on node {node}.");
        let evidence = Evidence::new(Severity::Warning, summary)
            .value("listener", format!("{protocol} {}:{number}", socket.local))
            .value("held by", &owner)
            .remedy(Step::advice(format!("give {manifest} another port than {number}/{protocol}")));
        findings.push(linted.finding(RULE.id, (manifest, claim), evidence));
    }
    findings
}
