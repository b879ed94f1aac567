//! All unread input, and all rules that could not judge, from the board and from the facts.

use std::collections::BTreeSet;

use super::outcome::{Open, is_failure};
use portreeve_facts::{Gap, Snapshot, Source, Unread, Why};
use portreeve_rules::{
    findings::{Subject, Unknown},
    ids::Rows,
    ledger::Board,
};

/// A fact that was not read, or a rule that could not judge.
#[derive(Clone, Copy, Debug)]
pub struct ReportedGap<'a> {
    /// The rule that could not judge; `None` if the missing input is only for evidence.
    pub rows: Option<Rows>,
    /// The subject. `None` if the rule could not judge several subjects, or judged nothing at all.
    pub subject: Option<&'a Subject>,
    /// The number of ports and objects that were not judged. 0 if the rule judged nothing, or if the missing input is
    /// only for evidence.
    pub claims: usize,
    /// The missing input.
    pub gap: &'a Gap,
}

impl<'a> ReportedGap<'a> {
    /// Converts the unknown result to an [`Open`], from which the exit code is computed.
    pub fn open(&self) -> Open {
        match self.rows {
            Some(rows) => Open::of_rule(rows, self.claims, self.gap),
            None => Open::input(self.gap),
        }
    }
}

/// The rules that could not judge, and then the other unread inputs.
pub(super) fn reported_gaps<'a>(snapshot: &'a Snapshot, board: &'a Board) -> Vec<ReportedGap<'a>> {
    let mut all: Vec<ReportedGap<'a>> = board
        .unknown
        .iter()
        .map(|Unknown { rows, subject, claims, gap }| ReportedGap {
            rows: Some(*rows),
            subject: subject.as_ref(),
            claims: *claims,
            gap,
        })
        .collect();
    let mut reported: BTreeSet<&Gap> = all.iter().map(|it| it.gap).collect();
    let mut gaps = snapshot_gaps(snapshot);
    if !board.findings.is_empty() {
        gaps.extend(owner_gaps(snapshot));
    }
    // If the reason is `NotRequested`, `NotYet` or `NotSupported`, an input is listed only if a rule names the input,
    // or a check fails without the input.
    gaps.retain(|gap| match gap.why {
        Why::NotRequested | Why::NotYet | Why::NotSupported => is_failure(gap.source, gap.why),
        _ => true,
    });
    for gap in gaps {
        if reported.insert(gap) {
            all.push(ReportedGap { rows: None, subject: None, claims: 0, gap });
        }
    }
    all
}

/// All unread inputs of a snapshot that may leave a rule without an answer. The proxy's descriptors and masqueraded
/// flows are reported only if a rule names them. Descriptors are also in the proxy's `/metrics`, and masqueraded flows
/// matter in ipvs mode only.
pub(super) fn snapshot_gaps(snapshot: &Snapshot) -> Vec<&Gap> {
    let Snapshot { kernel, cluster, .. } = snapshot;
    let proxy = &kernel.proxy;
    let mut gaps: Vec<&Gap> = cluster.rejected.iter().collect();
    if snapshot.proxy_mode().is_err() {
        gaps.extend(proxy.mode.gap());
    }
    if snapshot.proxy_config().is_err() {
        gaps.extend(proxy.config.gap());
        gaps.extend(cluster.proxy_config.gap());
    }
    let listed = snapshot.readings().into_iter().filter(|(source, _)| {
        use Source::{Conntrack, OwnPort, ProxyConfig, ProxyMode, ProxyProcess};
        !matches!(source, ProxyMode | ProxyConfig | ProxyProcess | Conntrack | OwnPort)
    });
    gaps.extend(listed.filter_map(|(_, gap)| gap));
    let pods = || kernel.pod_namespaces.known_part(Unread::Reported("its gap is listed above")).iter();
    gaps.extend(pods().filter_map(|pod| pod.ephemeral.gap()));
    // The sockets on the needed ports of a pod are read only if the pod fails.
    gaps.extend(pods().filter_map(|pod| pod.needed.gap()).filter(|gap| gap.why != Why::NotRequested));
    gaps
}

/// The reasons why the process of the proxy and the owners of sockets are unknown. Each reason is listed once.
fn owner_gaps(snapshot: &Snapshot) -> Vec<&Gap> {
    let mut reasons = BTreeSet::new();
    let of_holders = snapshot.holders().flat_map(|holder| [holder.cgroup.gap(), holder.process.gap()]).flatten();
    let all = of_holders.chain(snapshot.kernel.proxy.process.gap());
    all.filter(|gap| reasons.insert((gap.source, gap.why))).collect()
}
