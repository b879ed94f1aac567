//! Decides who gets the connections to a NodePort, if a redirection of a hostPort has the same number.

use crate::findings::Affected;
use portreeve_dataplane::{
    Addressed, Assumption, Case, Claim, Contest, LocalAddress, Outcome, Part, Round, is_link_local, unsettled,
    vantage_points,
};
use portreeve_facts::{Family, Gap, Service, ServicePort};

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

/// The result on all addresses at which the winner is known.
pub(super) struct Won {
    pub(super) winner: Winner,
    /// The vantage points from which the losing claim loses connections to at least one address.
    pub(super) affected: Affected,
    /// The reason why the winner is not known at some address.
    pub(super) unread: Option<Gap>,
}

/// A NodePort, and a hostPort or a leftover redirection with the same number.
pub(super) struct Rivals<'r, 'a, 'c> {
    round: &'r Round<'a>,
    service: &'c Service,
    port: &'c ServicePort,
    contest: Contest<'r, 'a, 'c>,
    /// The addresses of the hostPort or redirection.
    covered: Vec<LocalAddress>,
    /// Whether the pod has no address yet. At an address without the NodePort, this doubt changes nothing.
    is_unsettled: bool,
}

impl<'r, 'a, 'c> Rivals<'r, 'a, 'c> {
    pub(super) fn of(
        round: &'r Round<'a>,
        addressed: &'r Addressed<'a>,
        (service, port): (&'c Service, &'c ServicePort),
        redirected: Claim<'c>,
        covers: impl Fn(&LocalAddress) -> bool,
    ) -> Self {
        let number = (port.protocol, port.node_port.unwrap_or_default());
        let is_unsettled = matches!(redirected, Claim::HostPort(pod, _) if unsettled(round.now, pod).is_some());
        let contest = Contest::of(round, addressed, number, [Claim::NodePort(service, port), redirected]);
        // On link-local addresses, neither claim answers.
        let covered = addressed.locals.iter().copied().filter(|local| covers(local) && !is_link_local(local.ip));
        Self { round, service, port, contest, covered: covered.collect(), is_unsettled }
    }

    /// Which of the two claims gets the connections in this case. `None` if the node does not serve the NodePort on an
    /// address of the redirection.
    ///
    /// # Errors
    /// Fails if the winner is known at no address.
    pub(super) fn winner(&self, assumption: &Assumption, case: &mut Case) -> Result<Option<Won>, Gap> {
        let Self { round, service, port, .. } = *self;
        let number = port.node_port.unwrap_or_default();
        let meets = |local: &LocalAddress| assumption.captures(*local, number);
        if !self.covered.iter().any(meets) || !case.is_served(round, assumption, (service, Part::NodePorts)) {
            return Ok(None);
        }
        let (mut winner, mut affected, mut unread) = (None, Affected::new(), None);
        let places = self.covered.iter().flat_map(|local| vantage_points(local.ip).iter().map(move |it| (*it, *local)));
        for (from, to) in places {
            let winners = match self.contest.winners((assumption, &mut *case), (from, to)) {
                Ok(winners) if meets(&to) => winners,
                Ok(_) => continue,
                Err(_) if !meets(&to) && self.is_unsettled => continue,
                Err(gap) => {
                    unread.get_or_insert(gap);
                    continue;
                }
            };
            let backing = case.backing_of(round, (service, port), Family::of(to.ip));
            let has_pod = assumption.outcome((to, (port.protocol, number)), from, backing) == Outcome::Pod;
            // The NodePort is the first claim of the contest.
            let (wins, lost) = match (winners.contains(&0), winners.contains(&1)) {
                (true, true) => (Winner::Undefined, false),
                (true, false) => (Winner::Service, true),
                (false, true) if has_pod => (Winner::Pod, true),
                (false, true) => (Winner::PodForNow, false),
                (false, false) => continue,
            };
            winner = winner.max(Some(wins));
            affected.extend(lost.then_some(from));
        }
        match (winner, unread) {
            (None, Some(gap)) => Err(gap),
            (winner, unread) => Ok(Some(Won { winner: winner.unwrap_or(Winner::PodForNow), affected, unread })),
        }
    }
}
