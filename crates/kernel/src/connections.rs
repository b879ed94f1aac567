//! One walk over all connections, for all readers of connections. The time of a walk depends on the number of
//! connections, so a scan walks once for all requested facts.

use std::{collections::HashSet, net::SocketAddr};

use super::{
    ephemeral::{Counted, Counting, Tally},
    record::{Accepting, Record, SocketRequest, States, in_order},
    sockets::{ReadFrom, Sockets},
};
use portreeve_facts::{Clients, Gap, PortSet, Protocol, Socket, Source, State, Why};

/// The largest number of sockets in the result that are bound, but neither listen nor connect.
const BOUND: usize = 64;

/// The results of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    /// At most [`Clients::MOST`] client sockets. Sockets in SYN-SENT and UDP sockets come first. Accepted connections
    /// come last.
    pub clients: Result<Clients, Gap>,
    /// The use of ephemeral ports.
    pub counted: Result<Counted, Gap>,
}

#[derive(Clone, Default)]
struct Found {
    kept: KeptClients,
    tally: Tally,
}

impl Sockets {
    /// Lists the sockets that have a peer and a local port in `clients`. With `counting`, counts the local ports in use
    /// for each (protocol, source, destination, destination port). A connection that one of `listeners` accepted is
    /// listed last, and its port does not count. The walk is skipped if there are no ports to list and nothing to
    /// count.
    ///
    /// # Errors
    /// Fails if TCP or UDP cannot be read, or if a result was not requested, the result is a [`Gap`].
    pub fn connections(
        &self,
        clients: Option<&PortSet>,
        counting: Option<&Counting<'_>>,
        listeners: &[Socket],
    ) -> Connections {
        let idle = counting.and_then(Counting::without_a_walk);
        let counting = counting.filter(|_| idle.is_none());
        let ports = clients.filter(|ports| !ports.is_empty());
        let accepting = Accepting::new(listeners);
        let walked = match (ports, counting) {
            (None, None) => Ok(Found::default()),
            _ => self.walk_once(ports, counting, &accepting),
        };
        let not_wanted = |source| Gap::new(source, Why::NotRequested, "not requested");
        let counted = match (idle, counting, &walked) {
            (Some(idle), ..) => Ok(idle),
            (None, None, _) => Err(not_wanted(Source::EphemeralUse)),
            (None, Some(_), Err(gap)) => Err(Gap { source: Source::EphemeralUse, ..gap.clone() }),
            (None, Some(counting), Ok(found)) => self.counted(counting, &accepting, &found.tally),
        };
        let clients = match (clients, walked) {
            (None, _) => Err(not_wanted(Source::Clients)),
            (Some(_), Err(gap)) if ports.is_some() => Err(Gap { source: Source::Clients, ..gap }),
            (Some(_), Err(_)) => Ok(Clients::default()),
            (Some(_), Ok(found)) => self.with_sctp(ports, found.kept, &accepting).map(KeptClients::finish),
        };
        Connections { clients, counted }
    }

    /// The use of ephemeral ports, as [`Self::connections`] counts it.
    ///
    /// # Errors
    /// A [`Gap`] of [`Source::EphemeralUse`] when TCP or UDP cannot be read.
    pub fn ephemeral_use(&self, counting: &Counting<'_>, listeners: &[Socket]) -> Result<Counted, Gap> {
        self.connections(None, Some(counting), listeners).counted
    }

    fn walk_once(
        &self,
        clients: Option<&PortSet>,
        counting: Option<&Counting<'_>>,
        accepting: &Accepting<'_>,
    ) -> Result<Found, Gap> {
        let none = PortSet::default();
        let (listed, counted) = (clients.unwrap_or(&none), counting.map_or(&none, |counting| counting.ports));
        let ports = listed.union(counted);
        let each = |found: &mut Found, record: &Record| {
            if listed.contains(record.local_port) {
                found.kept.keep(record, accepting);
            }
            if let Some(counting) = counting
                && counted.contains(record.local_port)
                && !accepting.covers(record)
            {
                found.tally.count(counting, record);
            }
        };
        let mut found = Found::default();
        for (protocol, states) in TABLES {
            let request = SocketRequest::new(Source::Clients, protocol, states, Some(&ports));
            (found, _) = self.walk(&request, found, each)?;
        }
        Ok(found)
    }

    /// Finds the peers that are servers, for clients on `contested` ports without a listener. Without clients on these
    /// ports, the walk for servers is skipped. If `lists_bound` is true, the function also adds the sockets that are
    /// bound to `contested` ports without a listener. These sockets neither listen nor connect.
    ///
    /// # Errors
    /// A [`Gap`] of [`Source::Clients`] when TCP cannot be read.
    pub fn walk_again(
        &self,
        mut clients: Clients,
        contested: &PortSet,
        listeners: &[Socket],
        lists_bound: bool,
    ) -> Result<Clients, Gap> {
        let accepting = Accepting::new(listeners);
        let listened = listeners.iter().filter(|it| it.protocol == Protocol::Tcp).map(|it| it.local_port);
        let free = contested.minus(&listened.collect());
        let may_be_accepted = |it: &&Socket| {
            let is_open = it.protocol == Protocol::Tcp && it.state != State::SynSent && it.remote_port != 0;
            is_open && free.contains(it.local_port)
        };
        let peers: HashSet<SocketAddr> = clients
            .sockets
            .iter()
            .filter(may_be_accepted)
            .map(|it| SocketAddr::new(it.remote.to_canonical(), it.remote_port))
            .collect();
        if !peers.is_empty() {
            let ports: PortSet = peers.iter().map(SocketAddr::port).collect();
            let (source, protocol, states) = (Source::Clients, Protocol::Tcp, States::WITH_PEER);
            let request = SocketRequest { source, protocol, states, ports: None, peers: Some(&ports) };
            let (servers, _) = self.walk(&request, HashSet::new(), |servers, record| {
                let peer = SocketAddr::new(record.remote.to_canonical(), record.remote_port);
                let is_opened = !contested.contains(record.local_port) && !accepting.covers(record);
                if is_opened && peers.contains(&peer) {
                    servers.insert(peer);
                }
            })?;
            clients.servers = servers.into_iter().collect();
            clients.servers.sort_unstable();
        }
        clients.bound_unlisted = !lists_bound;
        if lists_bound && !free.is_empty() {
            let bound = |bound: &mut Vec<Record>, record: &Record| {
                if bound.len() <= BOUND {
                    bound.push(*record);
                }
            };
            let request = SocketRequest::new(Source::Clients, Protocol::Tcp, States::BOUND, Some(&free));
            let (mut bound, read_from) = self.walk(&request, Vec::new(), bound)?;
            clients.bound_unlisted = read_from == ReadFrom::Text || bound.len() > BOUND;
            clients.bound_searched = if clients.bound_unlisted { PortSet::default() } else { free };
            bound.truncate(BOUND);
            clients.sockets.extend(in_order(bound));
        }
        Ok(clients)
    }

    /// Adds the clients of SCTP. The first walk has only TCP and UDP, because rules do not count ephemeral ports of
    /// SCTP.
    fn with_sctp(
        &self,
        ports: Option<&PortSet>,
        kept: KeptClients,
        accepting: &Accepting<'_>,
    ) -> Result<KeptClients, Gap> {
        let Some(ports) = ports else { return Ok(kept) };
        let request = SocketRequest::new(Source::Clients, Protocol::Sctp, States::WITH_PEER, Some(ports));
        match self.walk(&request, kept.clone(), |kept, record| kept.keep(record, accepting)) {
            Ok((kept, _)) => Ok(kept),
            Err(gap) if gap.why == Why::NotSupported => Ok(kept),
            Err(gap) => Err(gap),
        }
    }

    /// Walks a second time if the first walk forgot destinations, and a destination may use enough ports for a finding.
    fn counted(&self, counting: &Counting<'_>, accepting: &Accepting<'_>, tally: &Tally) -> Result<Counted, Gap> {
        let Some(mut recount) = tally.recount(counting) else { return Ok(tally.clone().finish(counting)) };
        for (protocol, states) in TABLES {
            let request = SocketRequest::new(Source::EphemeralUse, protocol, states, Some(counting.ports));
            (recount, _) = self.walk(&request, recount, |tally, record| {
                if !accepting.covers(record) {
                    tally.count(counting, record);
                }
            })?;
        }
        Ok(recount.finish(counting))
    }
}

const TABLES: [(Protocol, States); 2] = [(Protocol::Tcp, States::WITH_PEER), (Protocol::Udp, States::ESTABLISHED)];

#[derive(Clone, Default)]
struct KeptClients {
    by_rank: [Vec<Record>; 3],
    beyond: u64,
    outgoing: u64,
}

impl KeptClients {
    /// Keeps a client socket. If there is no space, the function drops a socket of the last rank. Sockets in SYN-SENT
    /// and UDP sockets have the first rank, and accepted connections have the last rank.
    fn keep(&mut self, record: &Record, accepting: &Accepting<'_>) {
        let rank = match record {
            Record { state: State::SynSent, .. } | Record { protocol: Protocol::Udp, .. } => 0,
            record if !accepting.covers(record) => 1,
            _ => 2,
        };
        self.outgoing += u64::from(rank < 2);
        if self.by_rank.iter().map(Vec::len).sum::<usize>() >= Clients::MOST {
            self.beyond += 1;
            if self.by_rank.iter_mut().skip(rank + 1).rev().find_map(Vec::pop).is_none() {
                return;
            }
        }
        if let Some(same_rank) = self.by_rank.get_mut(rank) {
            same_rank.push(*record);
        }
    }

    fn finish(self) -> Clients {
        let Self { by_rank, beyond, outgoing } = self;
        let sockets = by_rank.into_iter().flat_map(in_order).collect();
        Clients { sockets, beyond, outgoing, ..Clients::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn sockets_in_syn_sent_are_kept_even_if_they_come_last() {
        let listeners: [Socket; 1] = [record(Protocol::Tcp, State::Listen, "0.0.0.0:30080", "0.0.0.0:0").into()];
        let accepting = Accepting::new(&listeners);
        let accepted = record(Protocol::Tcp, State::Established, "10.0.0.1:30080", "10.0.0.9:999");
        let outgoing = record(Protocol::Tcp, State::Established, "10.0.0.1:30081", "10.0.0.9:999");
        let hanging = record(Protocol::Tcp, State::SynSent, "10.0.0.1:30081", "10.0.0.9:998");
        let mut kept = KeptClients::default();
        for _ in 0..Clients::MOST {
            kept.keep(&accepted, &accepting);
        }
        kept.keep(&outgoing, &accepting);
        kept.keep(&hanging, &accepting);
        kept.keep(&accepted, &accepting);
        assert_eq!(kept.by_rank.each_ref().map(Vec::len), [1, 1, Clients::MOST - 2]);
        assert_eq!((kept.beyond, kept.outgoing), (3, 2));
    }
}
