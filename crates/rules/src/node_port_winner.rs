//! Decides who gets the connections to a NodePort, if a hostPort with a redirection of the CNI has the same number.

use crate::findings::Affected;
use portreeve_dataplane::{Assumption, Case, ClaimKind, LocalAddress, Outcome, Round, is_link_local, vantage_points};
use portreeve_facts::{Family, Service, ServicePort};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Winner {
    /// Clients see no difference: the pod is an endpoint of the Service.
    Both,
    /// The pod, as long as the Service has no endpoint.
    PodForNow,
    /// Portreeve does not know whether the Service or the pod gets the connections.
    Undefined,
    Service,
    Pod,
}

/// Which of the two claims gets the connections on these addresses, and the vantage points from which the losing claim
/// loses connections.
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
    // On link-local addresses, neither claim answers.
    for (local, vantage) in places.filter(|(local, _)| !is_link_local(local.ip)) {
        let backing = case.backing_of(round, (service, port), Family::of(local.ip));
        let number = port.node_port.unwrap_or_default();
        let outcome = assumption.outcome((local, (port.protocol, number)), vantage, backing);
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
