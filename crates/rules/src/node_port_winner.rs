//! Decides who gets the connections to a NodePort that is also a hostPort with a redirection of the CNI.

use crate::findings::Affected;
use portreeve_dataplane::{Assumption, Case, ClaimKind, LocalAddress, Outcome, Round, is_link_local, vantage_points};
use portreeve_facts::{Family, Service, ServicePort};

/// Who answers on a port that a Service and a pod claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Winner {
    /// No difference for clients: the pod is an endpoint of the Service.
    Both,
    /// The pod, since the Service has no endpoint to send to.
    PodForNow,
    /// Either the Service or the pod: it is not known which.
    Undefined,
    /// The Service: the pod's hostPort gets no connections.
    Service,
    /// The pod: the Service's NodePort gets no connections.
    Pod,
}

/// The claim that gets the connections on these addresses, if both could answer, and the vantage points that cannot reach the other claim.
pub(super) fn winner(
    round: &Round<'_>,
    (assumption, case): (&Assumption, &mut Case),
    (service, port): (&Service, &ServicePort),
    meeting: &[LocalAddress],
) -> (Winner, Affected) {
    let mut winner = Winner::PodForNow;
    let mut affected = Affected::new();
    let places =
        meeting.iter().flat_map(|local| vantage_points(local.ip).iter().map(move |vantage| (*local, *vantage)));
    // Nothing answers on link-local addresses.
    for (local, vantage) in places.filter(|(local, _)| !is_link_local(local.ip)) {
        let backing = case.backing_of(round, (service, port), Family::of(local.ip));
        let outcome = assumption.outcome((local, port.protocol), vantage, backing);
        let (wins, lost) = match (assumption.node_port_or_host_port(outcome), outcome) {
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
