//! Every gap that a report lists: from the board, and from the facts themselves. And which of them make a check none.

use std::collections::BTreeSet;

use portreeve_facts::{Gap, Owner, Reading, Snapshot, Source, Why};
use portreeve_rules::{
    findings::{RuleId, Subject},
    ledger::Board,
};

/// One fact that was not read, or one rule without an answer.
#[derive(Clone, Copy, Debug)]
pub struct ReportedGap<'a> {
    /// The rule without an answer; nothing where only evidence is missing.
    pub rule: Option<RuleId>,
    /// The subject, where the answer is missing for this one only.
    pub subject: Option<&'a Subject>,
    /// The input that was missing.
    pub gap: &'a Gap,
}

/// First the rules without an answer, then what else was not read.
pub(super) fn reported_gaps<'a>(snapshot: &'a Snapshot, board: &'a Board) -> Vec<ReportedGap<'a>> {
    let mut all: Vec<ReportedGap<'a>> = board
        .unknown
        .iter()
        .map(|unknown| ReportedGap { rule: Some(unknown.rule), subject: unknown.subject.as_ref(), gap: &unknown.gap })
        .collect();
    let mut reported: BTreeSet<(Source, Why, &str)> =
        all.iter().map(|it| (it.gap.source, it.gap.why, it.gap.detail.as_str())).collect();
    let mut gaps = snapshot_gaps(snapshot);
    if !board.findings.is_empty() {
        gaps.extend(owner_gaps(snapshot));
    }
    gaps.retain(|gap| match gap.why {
        Why::NotAsked | Why::NotYet => false,
        Why::NotSupported => is_indispensable(gap.source),
        _ => true,
    });
    for gap in gaps {
        if reported.insert((gap.source, gap.why, &gap.detail)) {
            all.push(ReportedGap { rule: None, subject: None, gap });
        }
    }
    all
}

/// Every gap of a snapshot that may leave a rule without an answer. Some gaps are listed only where a rule names them:
/// what was not asked for, what this kernel does not have, the descriptors that the proxy's `/metrics` report too, and
/// masqueraded flows, which matter in ipvs mode.
fn snapshot_gaps(snapshot: &Snapshot) -> Vec<&Gap> {
    let Snapshot { kernel, cluster, .. } = snapshot;
    let (sysctls, proxy) = (&kernel.sysctls, &kernel.proxy);
    let mut gaps: Vec<&Gap> = cluster.rejected.iter().collect();
    if snapshot.proxy_mode().is_err() {
        gaps.extend(proxy.mode.gap());
    }
    if snapshot.proxy_config().is_err() {
        gaps.extend(proxy.config.gap());
        gaps.extend(cluster.proxy_config.gap());
    }
    let facts = [
        cluster.services.gap(),
        cluster.endpoint_slices.gap(),
        cluster.pods.gap(),
        cluster.waiting_pods.gap(),
        cluster.nodes.gap(),
        cluster.node_port_range.gap(),
        kernel.unread_listeners(),
        kernel.clients.gap(),
        kernel.ephemeral.gap(),
        kernel.pod_namespaces.gap(),
        sysctls.ip_local_port_range.gap(),
        sysctls.ip_local_reserved_ports.gap(),
        sysctls.ip_unprivileged_port_start.gap(),
        sysctls.route_localnet.gap(),
        sysctls.tcp_tw_reuse.gap(),
        kernel.sockstat.gap(),
        kernel.interfaces.gap(),
        kernel.interfaces.seen().and_then(|interfaces| interfaces.gateways_gap.as_ref()),
        kernel.nameservers.gap(),
        kernel.ip_vs.gap(),
        kernel.ip_vs_connections.gap(),
        kernel.netfilter.gap(),
        proxy.metrics.gap(),
        kernel.health_checks.gap(),
    ];
    gaps.extend(facts.into_iter().flatten());
    gaps.extend(kernel.pod_namespaces.seen().into_iter().flatten().filter_map(|pod| pod.ephemeral.gap()));
    gaps
}

/// Why the proxy and sockets' holders could not be named, each reason once however many sockets it concerns. Where
/// nothing was found, nobody has to be named.
fn owner_gaps(snapshot: &Snapshot) -> Vec<&Gap> {
    let listeners = snapshot.kernel.listeners.seen().into_iter().flatten();
    let clients = snapshot.kernel.clients.seen().into_iter().flat_map(|clients| &clients.sockets);
    let mut reasons = BTreeSet::new();
    listeners
        .chain(clients)
        .filter_map(|socket| match &socket.owner {
            Owner::Held(holder) => Some([gap_of(&holder.cgroup), gap_of(&holder.process)]),
            Owner::NotAsked | Owner::TimeWait | Owner::Kernel { .. } => None,
        })
        .flatten()
        .flatten()
        .chain(snapshot.kernel.proxy.process.gap())
        .filter(|gap| reasons.insert((gap.source, gap.why)))
        .collect()
}

fn gap_of<T>(reading: &Reading<T>) -> Option<&Gap> {
    reading.gap()
}

/// Whether nothing can be said of a node without this source. Every kernel has it, and every profile may see it.
pub fn is_indispensable(source: Source) -> bool {
    matches!(source, Source::Listeners | Source::Clients | Source::Addresses)
}

/// Whether an unread input of the core is a failure. Nothing excuses [what is indispensable](is_indispensable); of others
/// what a profile may not see, and what this kernel does not have, is none.
pub(super) fn is_failure(source: Source, why: Why) -> bool {
    let excused = matches!(why, Why::NotPermitted | Why::NotSupported) && !is_indispensable(source);
    !excused && !matches!(why, Why::NotAsked | Why::NotYet)
}
