//! Outgoing connections that use reserved ports. Each connection keeps its port until the connection ends.

use std::{
    collections::BTreeSet,
    fmt, mem,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    sync::watch::Sender,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tracing::warn;

use super::{GuardState, few, query};
use portreeve_facts::{Gap, KernelFacts, PortSet, Protocol, Socket, State};
use portreeve_kernel::Host;

/// The pause after a search, because each search walks over all connections of the node.
const PAUSE: Duration = Duration::from_secs(10);
/// The time between two searches while known connections use reserved ports.
const AGAIN: Duration = Duration::from_secs(60);

/// An outgoing connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection {
    /// The local port.
    pub port: u16,
    protocol: Protocol,
    to: SocketAddr,
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} to {}", self.port, self.protocol, self.to)
    }
}

/// The outgoing connections that use ports of a given set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    /// The connections that were read.
    pub listed: BTreeSet<Connection>,
    /// The reason why `listed` may be incomplete.
    pub others: Option<Gap>,
}

/// Says in words how many of the ports have connections, and names some connections. Example: `2 of these ports until
/// they end: 30080/tcp to 192.0.2.9:443, and 7 more`.
pub fn kept_by(Connections { listed, others }: &Connections) -> String {
    let words = format!("{} of these ports until they end: {}", ports_of(listed).len(), few(listed.iter()));
    match others {
        None => words,
        Some(gap) => format!("at least {words}; there may be others: {}", gap.detail),
    }
}

pub(super) fn ports_of(connections: &BTreeSet<Connection>) -> PortSet {
    connections.iter().map(|it| it.port).collect()
}

/// The outgoing connections that use these ports.
///
/// # Errors
/// Fails if connections or listeners cannot be read.
pub fn connections_on(host_root: &Path, ports: &PortSet) -> Result<Connections, Gap> {
    connections_in(&Host::at(host_root).read(&query(ports.clone())), ports)
}

fn connections_in(kernel: &KernelFacts, ports: &PortSet) -> Result<Connections, Gap> {
    let (clients, listeners) = (kernel.clients.get()?, kernel.listeners.get()?);
    let listening: BTreeSet<_> = listeners.iter().map(|it| (it.protocol, it.local_port)).collect();
    let is_outgoing = |socket: &&Socket| {
        // A closed connection holds its port for at most a minute. A connection on a port with a listener may be an
        // accepted connection.
        socket.state != State::TimeWait && !listening.contains(&(socket.protocol, socket.local_port))
    };
    let on = clients.sockets.iter().filter(|socket| ports.contains(socket.local_port)).filter(is_outgoing);
    let connection = |socket: &Socket| Connection {
        port: socket.local_port,
        protocol: socket.protocol,
        to: SocketAddr::new(socket.remote.to_canonical(), socket.remote_port),
    };
    Ok(Connections { listed: on.map(connection).collect(), others: clients.outgoing_missing() })
}

/// Searches for connections on ports that were just reserved. Repeats the search while outgoing connections use
/// reserved ports.
pub(super) async fn follow(host_root: PathBuf, state: Sender<GuardState>) {
    let (mut changes, mut known, mut failed) = (state.subscribe(), BTreeSet::new(), String::new());
    loop {
        drop(timeout(AGAIN, changes.wait_for(|state| !state.unsearched.is_empty())).await);
        let mut ports = PortSet::default();
        state.send_if_modified(|state| {
            let found = state.connections.as_ref().map(ports_of).unwrap_or_default();
            ports = mem::take(&mut state.unsearched).union(&found);
            false
        });
        if ports.is_empty() {
            continue;
        }
        let (root, searched) = (host_root.clone(), ports.clone());
        let found = match spawn_blocking(move || connections_on(&root, &searched)).await {
            Ok(found) => found.map_err(|gap| gap.detail),
            Err(panicked) => Err(panicked.to_string()),
        };
        // A failed search may have walked over all connections, so the next search waits longer.
        let pause = if found.is_ok() { PAUSE } else { AGAIN };
        let error = found.as_ref().err().cloned().unwrap_or_default();
        if !error.is_empty() && failed != error {
            warn!(error, "connections on reserved ports cannot be read");
        }
        failed = error;
        let (found, others) = found.ok().map(|it| (it.listed, it.others)).unzip();
        let mut new = BTreeSet::new();
        state.send_modify(|state| new = take(state, &mut known, &ports, found));
        if !new.is_empty() {
            let (ports, connections) = (ports_of(&new).len(), few(new.iter()));
            let others = others.flatten().map(|gap| gap.detail);
            warn!(ports, connections, others, "outgoing connections have reserved ports, and keep them until they end");
        }
        sleep(pause).await;
    }
}

/// Stores the result of a search on these ports. `found` is `None` if the search failed. Returns the connections that
/// are new since the last successful search. A port that was removed from the list during the search does not count.
fn take(
    state: &mut GuardState,
    known: &mut BTreeSet<Connection>,
    ports: &PortSet,
    found: Option<BTreeSet<Connection>>,
) -> BTreeSet<Connection> {
    state.connections = found.map(|it| it.into_iter().filter(|it| state.list.contains(it.port)).collect());
    let Some(found) = &state.connections else {
        state.unsearched = state.unsearched.union(ports).intersection(&state.list);
        return BTreeSet::new();
    };
    let new = found.difference(known).copied().collect();
    known.clone_from(found);
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        Clients, Snapshot, Source, Why,
        healthy::{gap, seen},
    };

    #[test]
    fn what_a_listener_may_have_accepted_is_not_outgoing_and_unread_connections_are_not_none() {
        let ports: PortSet = "30080,30090".parse().expect("ports");
        let mut world = Snapshot::healthy()
            .listens("0.0.0.0:30090")
            .connects(State::Established, "192.0.2.1:30080", "198.51.100.7:443")
            .connects(State::TimeWait, "192.0.2.1:30080", "198.51.100.8:443")
            .connects(State::Established, "192.0.2.1:30090", "198.51.100.9:40000")
            .connects(State::SynSent, "192.0.2.1:30091", "198.51.100.9:443");
        let found = connections_in(&world.kernel, &ports).expect("read");
        let words = "1 of these ports until they end: 30080/tcp to 198.51.100.7:443";
        assert_eq!(kept_by(&found), words);
        let clients = seen(&mut world.kernel.clients);
        (clients.beyond, clients.outgoing) = (7, Clients::MOST as u64);
        assert_eq!(
            kept_by(&connections_in(&world.kernel, &ports).expect("read")),
            words,
            "a listener accepted the others"
        );
        seen(&mut world.kernel.clients).outgoing += 1;
        let full = "; there may be others: the list of connections on these ports is full; connections that hang are listed first";
        let found = connections_in(&world.kernel, &ports).expect("read");
        assert_eq!(kept_by(&found), format!("at least {words}{full}"));
        world.kernel.clients = gap(Source::Clients, Why::Torn);
        assert!(connections_in(&world.kernel, &ports).is_err());
    }

    #[test]
    fn a_failed_search_makes_no_connection_new_and_a_port_that_left_the_list_meanwhile_stays_away() {
        let ports = |text: &str| text.parse::<PortSet>().expect("ports");
        let to = |port| Connection { port, protocol: Protocol::Tcp, to: ([192, 0, 2, 9], 443).into() };
        let (both, one) = (BTreeSet::from([to(30080), to(30090)]), BTreeSet::from([to(30080)]));
        let mut state = GuardState { list: ports("30080,30090"), ..GuardState::default() };
        let mut known = BTreeSet::new();
        assert_eq!(take(&mut state, &mut known, &ports("30080,30090"), Some(both.clone())), both);
        state.list = ports("30080");
        assert_eq!(take(&mut state, &mut known, &ports("30080,30090"), None), BTreeSet::new());
        assert_eq!((&state.connections, &state.unsearched), (&None, &ports("30080")), "not read is not none");
        assert_eq!(take(&mut state, &mut known, &ports("30080"), Some(both)), BTreeSet::new(), "no news");
        assert_eq!(state.connections, Some(one));
    }
}
