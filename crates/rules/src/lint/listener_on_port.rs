//! A process of a node that was looked at listens on a port that a manifest claims.
//!
//! ## Why it hurts
//! A pod in the host's network cannot have the port on that node. A hostPort or a nodePort takes the connections of whoever
//! listens there, or gets none, as the proxy's mode has it.
//!
//! ## Silent when
//! - the manifests are compared with no snapshot;
//! - the object is there already and has this very port: the listener may be its own;
//! - the listener is of a pod of this workload, as it is there already, or it cannot be told that it is not: nobody knows whose
//!   pod it is where the snapshot has no pods;
//! - the listener is at loopback, or the two are at different addresses of the node.
//!
//! ## Fix
//! Give the object another port, or move the process.

use std::collections::HashMap;

use super::{
    Linted,
    rule::{LintRule, Needs},
};
use crate::findings::{Evidence, PlacedFinding, Severity, Step};
use portreeve_dataplane::owner_name;
use portreeve_facts::{Claimed, Manifest, Owner, Protocol, Reading, Socket};

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
    let mut by_port: HashMap<(u16, Protocol), Vec<&Socket>> = HashMap::new();
    reached.for_each(|it| by_port.entry((it.local_port, it.protocol)).or_default().push(it));
    let mut findings = Vec::new();
    for (manifest, claim) in linted.claims() {
        let Some((number, protocol)) = claim.what.port() else { continue };
        let Some(there) = by_port.get(&(number, protocol)) else { continue };
        if linted.has_already(manifest, (number, protocol)) {
            continue;
        }
        // A Service has no listener of its own.
        let may_be_own =
            |socket: &Socket| claim.what.of_pods().is_some() && may_be_own(linted, manifest, &socket.owner);
        let meets = |it: &&&Socket| claim.what.host_ip().is_none_or(|ip| it.local.is_unspecified() || it.local == ip);
        let Some(socket) = there.iter().filter(meets).find(|it| !may_be_own(it)) else { continue };
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

/// Whether a pod of the workload, as it is there already, may have the socket: one that its template did not declare until now.
fn may_be_own(linted: &Linted, manifest: &Manifest, owner: &Owner) -> bool {
    let has_pods = linted.snapshot.cluster.pods.seen().is_some();
    let is_known = match owner {
        Owner::Kernel { link } => !link.is_empty(),
        Owner::TimeWait => true,
        Owner::NotAsked => false,
        Owner::Held(holder) => match &holder.cgroup {
            Reading::Seen(cgroup) => match &cgroup.pod {
                Some(pod) => has_pods && !linted.is_replaced(manifest, &pod.pod_uid),
                None => !cgroup.is_root(),
            },
            Reading::Gap(_) => false,
        },
    };
    (linted.is_update(manifest) || !has_pods) && !is_known
}
