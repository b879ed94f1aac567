//! A process of a node that was looked at listens on a port that a manifest claims.

use std::collections::HashMap;

use super::{
    Linted,
    rule::{LintRule, Needs},
};
use crate::findings::{Evidence, PlacedFinding, Severity, Step};
use crate::ids::{self, Id};
use portreeve_dataplane::owner_name;
use portreeve_facts::{Claimed, Manifest, Owner, Protocol, Reading, Socket};

/// One for each kind of claim: they are the cases that a rule of nodes finds once the object is there.
pub(super) const RULES: [LintRule; 3] = [
    LintRule::new(&ids::LISTENER_ON_NODE_PORT, &["loses"], |linted| {
        check(linted, &ids::LISTENER_ON_NODE_PORT, |what| {
            matches!(what, Claimed::NodePort(..) | Claimed::HealthCheckNodePort(_))
        })
    })
    .needs(Needs::Listeners),
    LintRule::new(&ids::HOST_PORT_CONFLICT, &["takes-listener"], |linted| {
        check(linted, &ids::HOST_PORT_CONFLICT, |what| matches!(what, Claimed::HostPort(..)))
    })
    .needs(Needs::Listeners),
    LintRule::new(&ids::HOST_NETWORK_PORT_TAKEN, &["listener"], |linted| {
        check(linted, &ids::HOST_NETWORK_PORT_TAKEN, |what| matches!(what, Claimed::HostNetworkPort(..)))
    })
    .needs(Needs::Listeners),
];

fn check(linted: &Linted, id: &Id, is_wanted: fn(&Claimed) -> bool) -> Vec<PlacedFinding> {
    let Some(listeners) = linted.snapshot.kernel.listeners.seen() else { return Vec::new() };
    let node = linted.snapshot.node_name();
    let reached = listeners.iter().filter(|it| !it.local.to_canonical().is_loopback());
    let mut by_port: HashMap<(u16, Protocol), Vec<&Socket>> = HashMap::new();
    reached.for_each(|it| by_port.entry((it.local_port, it.protocol)).or_default().push(it));
    let mut findings = Vec::new();
    for (manifest, claim) in linted.claims().filter(|(_, claim)| is_wanted(&claim.what)) {
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
        findings.push(linted.finding(id.name, (manifest, claim), evidence));
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
