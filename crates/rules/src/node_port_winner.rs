//! Who gets the connections to a NodePort that a redirection takes too, as the CNI makes it for a hostPort.

use crate::findings::Affected;
use portreeve_dataplane::{Candidate, Case, ClaimKind, LocalAddress, Outcome, Round, is_link_local, vantage_points};
use portreeve_facts::{Family, Service, ServicePort};

/// Who answers on a port that a Service and a pod claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Winner {
    /// It is the same to clients: the pod is one of those to which the Service sends.
    Both,
    /// The pod, since the Service has no endpoint to send to.
    PodForNow,
    /// Either, as far as can be seen.
    Undefined,
    /// The Service: the pod's hostPort gets nothing.
    Service,
    /// The pod: the Service's NodePort gets nothing.
    Pod,
}

/// Who wins on these addresses, where both could answer, and from where the other one is lost.
pub(super) fn winner(
    round: &Round<'_>,
    (candidate, case): (&Candidate, &mut Case),
    (service, port): (&Service, &ServicePort),
    meeting: &[LocalAddress],
) -> (Winner, Affected) {
    let mut winner = Winner::PodForNow;
    let mut affected = Affected::new();
    let places =
        meeting.iter().flat_map(|local| vantage_points(local.ip).iter().map(move |vantage| (*local, *vantage)));
    // Nothing answers on what is link-local.
    for (local, vantage) in places.filter(|(local, _)| !is_link_local(local.ip)) {
        let backing = case.backing_of(round, (service, port), Family::of(local.ip));
        let outcome = candidate.outcome((local, port.protocol), vantage, backing);
        let (wins, lost) = match (candidate.node_port_or_host_port(outcome), outcome) {
            (Some(ClaimKind::NodePort), _) => (Winner::Service, true),
            (Some(_), Outcome::Pod) => (Winner::Pod, true),
            (Some(_), _) => (Winner::PodForNow, false),
            (None, _) => (Winner::Undefined, false),
        };
        winner = winner.max(wins);
        affected.extend(lost.then_some(vantage));
    }
    (winner, affected)
}
