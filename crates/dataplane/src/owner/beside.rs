//! Other users of a port number: the users that get no new connections to the port of this node.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use super::super::{
    by_port::Port,
    cilium::serves_here,
    claim::ClaimKind,
    owners::owner_name,
    round::Round,
    sockets::{is_bound, place, socket_in_words},
};
use portreeve_facts::{Clients, Family, Protocol, Service, Socket, State, Unread, if_requested};

/// The kind of a user of a port number that gets no new connections to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BesideKind {
    /// A connection with this local port, or a socket that is bound to the port.
    Connection,
    /// A port of a Service at its cluster IP.
    ClusterIp,
    /// A nodePort or an external address of a Service that this node's proxy does not serve.
    NotServed,
    /// A server or a tunnel that needs the port, perhaps without a socket on the port.
    Need,
    /// A socket or a connection that may exist. The reason is that an input was not read, or that the scan does not
    /// list sockets of this kind.
    Possible,
}

impl BesideKind {
    /// The kind's word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::ClusterIp => "cluster-ip",
            Self::NotServed => "not-served",
            Self::Need => "need",
            Self::Possible => "possible",
        }
    }
}

/// A user of a port number that gets no new connections to the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The kind.
    pub kind: BesideKind,
    /// The user of the port number, in words.
    pub name: String,
    /// The effect on a server or a Service that wants the port.
    pub detail: String,
}

/// Without the listeners, `owner` has no answer.
pub(super) const NO_LISTENERS: Unread = Unread::Reported("the error of `owner`");

/// The largest number of users that are listed for each kind.
pub(super) const MOST: usize = 4;

/// The other users of the port number. A connection is left out if a listener may have accepted the connection. Cluster
/// IPs are left out if the number is outside the NodePort range.
pub(super) fn beside(round: &Round<'_>, port: Port, is_unclaimed: bool) -> Vec<Beside> {
    let snapshot = round.now;
    let (protocol, number) = port;
    let listeners = round.listeners().known(NO_LISTENERS).map_or(&[][..], |all| all.at(port));
    // A listener on another address did not accept the connection.
    let bound: BTreeSet<IpAddr> = listeners.iter().map(|it| it.local.to_canonical()).collect();
    let everywhere = Family::BOTH
        .map(|family| listeners.iter().any(|it| it.local.is_unspecified() && it.serves(family) != Some(false)));
    let may_be_accepted = |it: &&Socket| {
        let local = it.local.to_canonical();
        bound.contains(&local) || everywhere[Family::of(local).index()]
    };
    let read = if_requested(snapshot.kernel.clients.get());
    let listed = read.as_ref().ok().copied().flatten();
    let clients = listed.into_iter().flat_map(|it| &it.sockets).filter(|it| (it.protocol, it.local_port) == port);
    let mut clients: Vec<_> = clients.filter(|it| !may_be_accepted(it)).collect();
    clients.sort_by_key(|it| (it.local, it.remote, it.remote_port, it.inode));
    // A scan searches only the ports that rules need. `portreeve owner PORT` also searches `PORT`.
    let unsearched = || format!("the scan did not search the port; `portreeve owner {number}` on the node does");
    let is_searched = !clients.is_empty() || listed.is_some_and(|it| it.searched.contains(number));
    let unread = match read {
        _ if everywhere.contains(&true) => None,
        Err(gap) => Some(gap.detail),
        Ok(_) if !is_searched => Some(unsearched()),
        Ok(listed) => listed.and_then(Clients::outgoing_missing).map(|gap| gap.detail),
    };
    let is_open = protocol == Protocol::Tcp && is_unclaimed && unread.is_none() && clients.is_empty();
    let is_bound_searched = listed.is_some_and(|it| it.bound_searched.contains(number));
    let doubt = round.bound_unlisted().or_else(|| (!is_bound_searched).then(unsearched)).filter(|_| is_open);
    let unbound = round.assumed_unbound(port).map(|assumed| format!("assumed: {assumed}"));
    let unlisted = unbound.or_else(|| Some(format!("not known: {}", doubt?))).map(|detail| Beside {
        kind: BesideKind::Possible,
        name: "perhaps a socket that is bound and does not listen".to_owned(),
        detail,
    });
    let unread = unread.map(|why| Beside {
        kind: BesideKind::Possible,
        name: "perhaps an outgoing connection".to_owned(),
        detail: format!("not known; if the connection is outgoing, a server cannot listen on this port: {why}"),
    });
    let connection = |it: &&Socket| connection(&owner_name(snapshot, &it.owner), it);
    let more = more(BesideKind::Connection, clients.len());
    let mut all: Vec<Beside> =
        clients.iter().take(MOST).map(connection).chain(more).chain(unread).chain(unlisted).collect();

    all.extend(not_served(round, port));

    let claims: BTreeSet<(&str, &str)> = round
        .node_ports()
        .known(Unread::Adds)
        .into_iter()
        .flat_map(|it| it.at(port))
        .map(|(service, _)| (&*service.namespace, &*service.name))
        .collect();
    let is_beside = |it: &&Service| {
        let has_it = it.ports.iter().any(|entry| (entry.protocol, entry.port) == (protocol, number));
        has_it && !it.cluster_ips.is_empty() && !claims.contains(&(&*it.namespace, &*it.name))
    };
    let range = snapshot.cluster.node_port_range.known(Unread::Adds).filter(|it| it.range.contains(number));
    let services =
        range.map_or(&[][..], |_| snapshot.cluster.services.known_part(Unread::Adds)).iter().map(Arc::as_ref);
    let cluster_ip = |it: &Service| Beside {
        kind: BesideKind::ClusterIp,
        name: format!("Service {}/{} at its cluster IP", it.namespace, it.name),
        detail: format!("{}, which is another address: no conflict", it.cluster_ips[0]),
    };
    let services: Vec<&Service> = services.filter(is_beside).collect();
    all.extend(
        services.iter().take(MOST).copied().map(cluster_ip).chain(self::more(BesideKind::ClusterIp, services.len())),
    );
    all
}

fn not_served(round: &Round<'_>, port: Port) -> impl Iterator<Item = Beside> {
    let services = round.not_served().at(port);
    // It may be unknown whether Cilium serves Services with the label `service.kubernetes.io/service-proxy-name`.
    let doubt = round.unread_proxy_name().filter(|_| serves_here(round.now) != Some(false));
    let detail = doubt.map_or_else(
        || "this node's proxy does not serve the Service, because of its labels; another proxy may answer".to_owned(),
        |gap| gap.detail,
    );
    let named = |(kind, it): &(ClaimKind, &Service)| {
        let place = if *kind == ClaimKind::NodePort { "its nodePort" } else { "its external addresses" };
        let name = format!("Service {}/{} at {place}", it.namespace, it.name);
        Beside { kind: BesideKind::NotServed, name, detail: detail.clone() }
    };
    let listed: Vec<Beside> = services.iter().take(MOST).map(named).collect();
    listed.into_iter().chain(more(BesideKind::NotServed, services.len()))
}

pub(super) fn more(kind: BesideKind, all: usize) -> Option<Beside> {
    let more = all.checked_sub(MOST).filter(|more| *more > 0)?;
    let (name, detail) = match kind {
        BesideKind::ClusterIp => (format!("{more} more Services"), "at their cluster IPs: no conflict"),
        BesideKind::NotServed => (format!("{more} more ports of Services"), "not served by this node's proxy"),
        BesideKind::Need => (format!("{more} more servers"), "which need this port"),
        BesideKind::Connection | BesideKind::Possible => (format!("{more} more connections"), "of the same port"),
    };
    Some(Beside { kind, name, detail: detail.to_owned() })
}

pub(super) fn connection(name: &str, socket: &Socket) -> Beside {
    let blocks = match socket.state {
        State::TimeWait => {
            "ended; if the connection was outgoing, for up to a minute no server can listen on this port"
        }
        _ if is_bound(socket) => {
            "a socket that neither listens nor connects; while it is open, possibly no server can listen on this port"
        }
        State::SynSent => {
            "while the connection is open, a server cannot listen on this port: bind fails with EADDRINUSE"
        }
        // The connection may be left from a server that ended. Most servers can listen on the port again while the
        // leftover connection is open.
        _ => {
            "if the connection is outgoing, a server cannot listen on this port while the connection is open: bind fails with EADDRINUSE"
        }
    };
    Beside {
        kind: BesideKind::Connection,
        name: format!("{name} from {}", place(socket)),
        detail: format!("{}; {blocks}", socket_in_words(socket)),
    }
}
