//! Decides who opened a connection. The kernel does not show the opener. The state, the peer and the owner of the
//! socket may show the opener.

use portreeve_dataplane::{Role, Round, is_bound, is_usual};
use portreeve_facts::{
    Family, Gap, Owner, PortRange, Protocol, Service, Snapshot, Socket, State, Unread, if_requested,
};

/// The local ports of NFS clients, which connect from privileged ports (`RPC_DEF_MIN_RESVPORT` and
/// `RPC_DEF_MAX_RESVPORT` in Linux). A peer's port below this range is treated as the port of a server.
pub const NFS_CLIENT_PORTS: PortRange = PortRange { first: 665, last: 1023 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opener {
    /// A process of this node, or the kernel. The connection blocks a server that needs the connection's local port.
    Here,
    /// The peer. The server that accepted the connection has ended, and a new server can have the port.
    Peer,
    Either,
}

/// The facts that show who opened a connection on a port without a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clues {
    /// Whether the peer is a server: a listener on this node, a Service, or the target of another connection. `None` if
    /// an input was not read.
    pub(super) leads_to_server: Option<bool>,
    /// Whether the socket belongs to the container that needs the port.
    pub(super) is_of_server: bool,
    /// Whether the socket belongs to a container other than the failing container that needs the port.
    pub(super) is_of_another: bool,
    /// Whether the kernel may have chosen the port by itself. `None` if the port range was not read.
    pub(super) is_chosen: Option<bool>,
}

impl Clues {
    /// Checks the facts in order, and returns at the first fact that shows the opener. Some facts, for example port
    /// numbers, make the opener only probable.
    pub(super) fn opener(self, socket: &Socket) -> Opener {
        let Socket { protocol, state, local_port, remote_port, .. } = *socket;
        let of_kernel = matches!(&socket.owner, Owner::Kernel { link } if link.is_empty());
        let is_servers = is_mostly_a_servers(remote_port);
        // NFS clients of the kernel choose among ports outside the ephemeral port range.
        let of_nfs = NFS_CLIENT_PORTS.contains(local_port) && (of_kernel || is_servers);
        match state {
            State::SynSent => Opener::Here,
            State::SynRecv | State::NewSynRecv => Opener::Peer,
            _ if self.leads_to_server == Some(true) || remote_port != 0 && remote_port < NFS_CLIENT_PORTS.first => {
                Opener::Here
            }
            _ if self.is_of_server && self.leads_to_server.is_none() => Opener::Either,
            _ if self.is_of_server => Opener::Peer,
            _ if protocol == Protocol::Udp || is_bound(socket) || of_nfs => Opener::Here,
            _ if self.is_chosen == Some(false) && self.leads_to_server.is_some() => Opener::Peer,
            _ if self.is_chosen == Some(true) && (is_servers || self.is_of_another) => Opener::Here,
            _ => Opener::Either,
        }
    }
}

/// Whether the peer's port probably belongs to a server. Behind NAT, a client may have any port above 1023.
fn is_mostly_a_servers(port: u16) -> bool {
    let is_servers = is_usual(port, Role::Daemon) || is_usual(port, Role::Server);
    is_servers && !PortRange::DEFAULT_EPHEMERAL.contains(port)
}

/// Whether a connection leads to the cluster IP and port of a Service. A cluster IP is never the address of a client.
///
/// # Errors
/// Fails if an unread Service may have the address. If Services were not requested, the result is false.
pub(super) fn leads_to_service(snapshot: &Snapshot, socket: &Socket) -> Result<bool, Gap> {
    if socket.remote_port == 0 {
        return Ok(false);
    }
    let (ip, place) = (socket.remote.to_canonical(), (socket.protocol, socket.remote_port));
    let has = |service: &Service| {
        service.cluster_ips.contains(&ip) && service.ports.iter().any(|port| (port.protocol, port.port) == place)
    };
    let Some(services) = if_requested(snapshot.cluster.services.get())? else { return Ok(false) };
    match snapshot.cluster.unread_service() {
        _ if services.iter().any(|service| has(service)) => Ok(true),
        Some(gap) => Err(gap.clone()),
        None => Ok(false),
    }
}

/// Whether a connection leads to a listener on this node. `None` if the node's addresses were not read.
pub(super) fn leads_to_own_listener(round: &Round<'_>, socket: &Socket) -> Option<bool> {
    let peer = socket.remote.to_canonical();
    let listens = |listener: &&Socket| match listener.local.to_canonical() {
        bound if bound.is_unspecified() => listener.serves(Family::of(peer)) == Some(true),
        bound => bound == peer,
    };
    let listeners = || round.listeners().known(Unread::Reported("the rule, which needs listeners"));
    let on_port = |it| listeners().is_some_and(|all| all.at(it).iter().any(listens));
    if socket.protocol != Protocol::Tcp || !on_port((socket.protocol, socket.remote_port)) {
        return Some(false);
    }
    if peer.is_loopback() || peer == socket.local.to_canonical() {
        return Some(true);
    }
    let interfaces = round.now.kernel.interfaces.known(Unread::Doubted)?;
    Some(interfaces.addresses.iter().any(|address| address.ip == peer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use portreeve_facts::{
        Source, Why,
        healthy::{PRIMARY, gap, seen},
    };

    const NONE: Clues =
        Clues { leads_to_server: Some(false), is_of_server: false, is_of_another: false, is_chosen: Some(true) };

    fn socket(state: State, local_port: u16, remote: &str) -> Socket {
        let mut world = Snapshot::healthy().connects(state, &format!("{}:{local_port}", PRIMARY[0]), remote);
        seen(&mut world.kernel.clients).sockets.pop().expect("one")
    }

    #[test]
    fn what_comes_first_decides() {
        let of = |clues: Clues, remote: &str| clues.opener(&socket(State::Established, 40000, remote));
        let (client, webhook) = ("198.51.100.7:51811", "198.51.100.7:8443");
        let all =
            Clues { leads_to_server: Some(true), is_of_server: true, is_of_another: true, is_chosen: Some(false) };
        assert_eq!(of(all, client), Opener::Here, "a server's connections lead to clients");
        assert_eq!(of(Clues { leads_to_server: Some(false), ..all }, webhook), Opener::Peer, "of the server");
        assert_eq!(
            of(Clues { is_chosen: Some(false), ..NONE }, webhook),
            Opener::Peer,
            "the kernel does not choose it"
        );
        let unread = Clues { leads_to_server: None, is_chosen: Some(false), ..NONE };
        assert_eq!(of(unread, webhook), Opener::Either, "its peer may be a server of the node");
        for is_chosen in [Some(true), Some(false), None] {
            let servers_own = Clues { leads_to_server: None, is_of_server: true, is_chosen, ..NONE };
            assert_eq!(of(servers_own, client), Opener::Either, "a server may have opened a connection, too");
            assert_eq!(of(servers_own, webhook), Opener::Either, "with all read, this may be the peer's");
        }
        assert_eq!(of(NONE, webhook), Opener::Here, "a usual server's port");
        assert_eq!(of(NONE, client), Opener::Either);
        assert_eq!(of(Clues { is_of_another: true, ..NONE }, client), Opener::Here);
        for clues in [NONE, Clues { is_of_another: true, ..NONE }] {
            assert_eq!(of(Clues { is_chosen: None, ..clues }, webhook), Opener::Either, "the range was not read");
        }
        assert_eq!(of(Clues { is_of_server: true, ..NONE }, "198.51.100.7:443"), Opener::Here, "below 665 are servers");
        assert_eq!(all.opener(&socket(State::SynRecv, 40000, client)), Opener::Peer);
        assert_eq!(NONE.opener(&socket(State::SynSent, 40000, client)), Opener::Here);
    }

    #[test]
    fn of_seventeen_usual_servers_each_is_known() {
        let usual =
            [53, 443, 2049, 2379, 3306, 5432, 6379, 6443, 7445, 8080, 8443, 9200, 9443, 10250, 15012, 27017, 9100];
        for port in usual {
            let socket = socket(State::Established, 40000, &format!("198.51.100.7:{port}"));
            assert_eq!(NONE.opener(&socket), Opener::Here, "{port}");
        }
    }

    #[test]
    fn clients_of_nfs_have_ports_of_root_outside_of_the_range() {
        let outside = Clues { is_chosen: Some(false), ..NONE };
        let of = |local, remote| outside.opener(&socket(State::Established, local, remote));
        assert_eq!(of(988, "198.51.100.7:2049"), Opener::Here);
        assert_eq!(of(664, "198.51.100.7:2049"), Opener::Peer);
        assert_eq!(of(1024, "198.51.100.7:2049"), Opener::Peer);
        assert_eq!(of(988, "198.51.100.7:51811"), Opener::Peer, "a client of a server that has ended");
        let of_kernel = Socket {
            owner: Owner::Kernel { link: String::new() },
            ..socket(State::Established, 988, "198.51.100.7:51811")
        };
        assert_eq!(outside.opener(&of_kernel), Opener::Here, "mountd has any port");
    }

    #[test]
    fn a_socket_that_is_bound_alone_is_of_whoever_bound_it() {
        let bound = socket(State::Close, 40000, "0.0.0.0:0");
        assert_eq!(NONE.opener(&bound), Opener::Here);
        assert_eq!(Clues { is_chosen: Some(false), ..NONE }.opener(&bound), Opener::Here);
        assert_eq!(Clues { is_of_server: true, ..NONE }.opener(&bound), Opener::Peer, "it is about to listen");
    }

    #[test]
    fn a_connection_to_a_service_leads_to_a_server_and_one_that_was_not_read_may_be_there() {
        let leads = |world: &Snapshot, remote: &str| {
            leads_to_service(world, &socket(State::Established, 40000, remote)).map_err(|gap| gap.why)
        };
        let at = |service: &mut Service| {
            service.cluster_ips = vec![[10, 96, 0, 77].into()];
            service.ports[0].port = 9042;
        };
        let mut world = Snapshot::healthy().service("store", |it| it.with(at));
        let (own, other, no_peer) = ("10.96.0.77:9042", "10.96.0.77:9043", "0.0.0.0:0");
        assert_eq!([own, other].map(|remote| leads(&world, remote)), [Ok(true), Ok(false)]);
        world.cluster.rejected.push(Gap::new(Source::Services, Why::Malformed, "of Service d/odd, its ports"));
        let all = [own, other, no_peer];
        assert_eq!(all.map(|remote| leads(&world, remote)), [Ok(true), Err(Why::Malformed), Ok(false)]);
        world.cluster.services = gap(Source::Services, Why::Unreachable);
        assert_eq!(all.map(|it| leads(&world, it)), [Err(Why::Unreachable), Err(Why::Unreachable), Ok(false)]);
        world.cluster.services = gap(Source::Services, Why::NotRequested);
        assert_eq!(all.map(|remote| leads(&world, remote)), [Ok(false); 3], "without a cluster there is no Service");
    }

    #[test]
    fn a_connection_to_a_listener_of_the_node_leads_to_a_server() {
        let world = Snapshot::healthy().listens("0.0.0.0:7777").listens("127.0.0.1:7778");
        let leads = |remote: &str| {
            let round = Limits::default().round(&world, None);
            leads_to_own_listener(&round, &socket(State::Established, 40000, remote))
        };
        for own in ["127.0.0.1:7777", &format!("{}:7777", PRIMARY[0]), "127.0.0.1:7778"] {
            assert_eq!(leads(own), Some(true), "{own}");
        }
        for other in ["198.51.100.7:7777", &format!("{}:7778", PRIMARY[0]), "127.0.0.1:7779"] {
            assert_eq!(leads(other), Some(false), "{other}");
        }
        let mut unread = world.clone();
        unread.kernel.interfaces = gap(Source::Addresses, Why::Torn);
        let leads = |remote: &str| {
            let round = Limits::default().round(&unread, None);
            leads_to_own_listener(&round, &socket(State::Established, 40000, remote))
        };
        assert_eq!([leads("127.0.0.1:7777"), leads("198.51.100.7:7777")], [Some(true), None]);
        assert_eq!(leads("198.51.100.7:7779"), Some(false), "nobody listens on that port");
    }
}
