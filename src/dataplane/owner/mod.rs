//! Who would answer on a port of this node: every claimant in the order in which a new connection meets them, who
//! answers from each vantage point, and which listener loses.

mod answers;
mod claims;

use std::{collections::BTreeSet, net::IpAddr};

use answers::Here;
use claims::{Standing, standings};

use super::{
    candidates::Candidates,
    claim::Claim,
    endpoints::Endpoints,
    local_address::{local_addresses, other_loopback},
    outcome::Outcome,
    proxy_sockets::Proxy,
    vantage::vantage_points,
};
use crate::facts::{Gap, Protocol, Snapshot, Vantage};

/// What is known of one port and protocol.
#[derive(Clone, Debug)]
pub struct Ownership {
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// Everything that claims it, in the order in which a new connection meets them.
    pub claimants: Vec<Claimant>,
    /// Who answers on each address from each vantage point. A loopback address of IPv4 that is not listed fares like
    /// 127.0.0.1, unless it is claimed alone.
    pub answers: Vec<Answered>,
    /// The proxy's mode and how it is known, in words.
    pub mode: String,
}

/// A Service, pod or socket that claims a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// By what right.
    pub claim: Claim,
    /// Who: `Service default/web port http`, `pod default/web`, `process nginx`.
    pub name: String,
    /// Where and with what: an address, a socket, endpoints.
    pub detail: String,
}

/// Who answers a new connection to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// From where it comes.
    pub from: Vantage,
    /// Where it goes.
    pub to: IpAddr,
    /// What becomes of it, or why that is not known.
    pub outcome: Result<Outcome, Gap>,
    /// The claimant that decides it: an index into [`Ownership::claimants`]. `None` where the port is not claimed there.
    pub by: Option<usize>,
    /// The listener that would answer there if no other claim stood before it.
    pub loser: Option<usize>,
}

/// Who owns a port. A proxy whose last sync is `lag_seconds` late is reported as behind.
///
/// # Errors
/// When the node's addresses or listeners, or the Services of a configured cluster, could not be read.
pub fn owner(snapshot: &Snapshot, lag_seconds: i64, protocol: Protocol, port: u16) -> Result<Ownership, Gap> {
    let interfaces = snapshot.kernel.interfaces.get()?;
    let services = match snapshot.cluster.services.get() {
        Err(gap) if snapshot.cluster.configured => return Err(gap),
        services => services.map_or(&[][..], Vec::as_slice),
    };
    let listeners = snapshot.kernel.listeners.get()?;
    let here = Here {
        candidates: Candidates::of(snapshot, interfaces, lag_seconds),
        endpoints: Endpoints::of(snapshot),
        interfaces,
        standings: standings(snapshot, services, listeners, protocol, port),
        protocol,
    };
    let mut places = local_addresses(interfaces);
    let sockets = here.standings.iter().filter_map(|standing| match standing {
        Standing::Socket(socket, _) => other_loopback(&places, socket),
        _ => None,
    });
    places.extend(sockets.collect::<BTreeSet<_>>());
    let places = places.iter().flat_map(|to| vantage_points(to.ip).iter().map(|from| (*from, *to)));
    let mut answers: Vec<Answered> = places.map(|(from, to)| here.ask(from, to)).collect();
    answers.sort_by_key(|it| (it.from, it.to));
    let proxy = Proxy::of(snapshot);
    let claimants = here.standings.iter().map(|it| it.claimant(snapshot, &here.endpoints, &proxy)).collect();
    Ok(Ownership { protocol, port, claimants, answers, mode: here.candidates.mode_in_words() })
}

#[cfg(test)]
mod tests;
