//! Who would answer on a port of this node: every claimant in the order in which a new connection meets them, who
//! answers from each vantage point, and which listener loses.

mod answers;
mod claims;
mod ownership;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use answers::Here;
use claims::{Standing, standings};
pub use ownership::{Answered, Claimant, Ownership};

use super::{
    candidates::Candidates,
    cilium::cilium_range,
    endpoints::Endpoints,
    external_address::ExternalAddress,
    kept_off::serves,
    local_address::{local_addresses, other_loopback},
    part::Field,
    proxy_sockets::Proxy,
    vantage::vantage_points,
};
use portreeve_facts::{Gap, Protocol, Service, Snapshot, Source};

/// The addresses of load balancers that Services have.
fn balanced(snapshot: &Snapshot, services: &[Arc<Service>]) -> BTreeSet<IpAddr> {
    let all = services.iter().flat_map(|service| ExternalAddress::of(snapshot, service));
    let served =
        all.filter(|it| it.field == Field::LoadBalancer && serves(snapshot, it.service, it.part()) != Ok(false));
    served.map(|it| it.ip).collect()
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
    if let Some(gap) = snapshot.kernel.no_udp.as_ref().filter(|_| protocol == Protocol::Udp) {
        return Err(gap.clone());
    }
    let here = Here {
        snapshot,
        candidates: Candidates::of(snapshot, interfaces, lag_seconds),
        endpoints: Endpoints::of(snapshot),
        interfaces,
        standings: standings(snapshot, services, listeners, protocol, port),
        balanced: balanced(snapshot, services),
        protocol,
        is_left_out: cilium_range(snapshot).map(|range| range.contains(port)),
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
    let cluster = &snapshot.cluster;
    let left_out =
        cluster.rejected.iter().filter(|it| matches!(it.source, Source::Services | Source::Pods | Source::Nodes));
    let unread = [cluster.services.gap(), cluster.pods.gap()].into_iter().flatten().chain(left_out).cloned().collect();
    let proxy_mode = snapshot.proxy_mode().ok().map(|mode| mode.value);
    Ok(Ownership { protocol, port, proxy_mode, claimants, answers, mode: here.candidates.mode_in_words(), unread })
}

#[cfg(test)]
mod tests;
