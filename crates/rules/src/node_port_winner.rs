//! Who gets the connections to a NodePort that a redirection takes too, as the CNI makes it for a hostPort.

use crate::findings::Affected;
use portreeve_dataplane::{Backing, Candidate, Claim, Endpoints, LocalAddress, Outcome, is_link_local, vantage_points};
use portreeve_facts::{Family, Protocol, Service, ServicePort};

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

/// Who wins on these addresses, and from where the other one is lost, with each value that unknown endpoints may have.
pub(super) fn winners(
    candidate: &Candidate,
    endpoints: &Endpoints<'_>,
    (service, port): (&Service, &ServicePort),
    meeting: &[LocalAddress],
) -> Vec<(Winner, Affected)> {
    let [four, six] = Family::BOTH.map(|family| endpoints.possible(service, port, family));
    let backings = four.iter().flat_map(|four| six.iter().map(move |six| [*four, *six]));
    backings.map(|backings| winner(candidate, port.protocol, meeting, backings)).collect()
}

/// Who wins where both could answer, and from where the other one is lost.
fn winner(
    candidate: &Candidate,
    protocol: Protocol,
    meeting: &[LocalAddress],
    [four, six]: [Backing; 2],
) -> (Winner, Affected) {
    let mut winner = Winner::PodForNow;
    let mut affected = Affected::new();
    let places =
        meeting.iter().flat_map(|local| vantage_points(local.ip).iter().map(move |vantage| (*local, *vantage)));
    // Nothing answers on what is link-local.
    for (local, vantage) in places.filter(|(local, _)| !is_link_local(local.ip)) {
        let outcome = candidate.outcome((local, protocol), vantage, if local.ip.is_ipv4() { four } else { six });
        let (wins, lost) = match (candidate.node_port_or_host_port(outcome), outcome) {
            (Some(Claim::NodePort), _) => (Winner::Service, true),
            (Some(_), Outcome::Pod) => (Winner::Pod, true),
            (Some(_), _) => (Winner::PodForNow, false),
            (None, _) => (Winner::Undefined, false),
        };
        winner = winner.max(wins);
        affected.extend(lost.then_some(vantage));
    }
    (winner, affected)
}
