//! One socket, as a reader reports it. Its owner is still unknown. The type is small and `Copy`, because there may be a
//! million sockets.

use std::net::IpAddr;

use portreeve_facts::{Family, Owner, PortSet, Protocol, Socket, Source, State};

/// The facts of one socket in a socket table. The fields are the fields of [`Socket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// The record's protocol.
    pub protocol: Protocol,
    pub(crate) local_port: u16,
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) remote_port: u16,
    pub(crate) family: Family,
    pub(crate) state: State,
    pub(crate) inode: u64,
    pub(crate) v6only: Option<bool>,
    pub(crate) uid: u32,
    pub(crate) cgroup: Option<u64>,
    pub(crate) device: u32,
    pub(crate) retransmits: u8,
}

impl Record {
    /// A socket with these addresses and ports. All other facts are zero or missing.
    pub(crate) fn of(
        protocol: Protocol,
        state: State,
        (local, local_port): (IpAddr, u16),
        (remote, remote_port): (IpAddr, u16),
    ) -> Self {
        Self {
            protocol,
            local_port,
            local,
            remote,
            remote_port,
            family: Family::of(local),
            state,
            inode: 0,
            v6only: None,
            uid: 0,
            cgroup: None,
            device: 0,
            retransmits: 0,
        }
    }
}

impl From<Record> for Socket {
    fn from(record: Record) -> Self {
        let Record { protocol, local_port, local, remote, remote_port, family, state, inode, .. } = record;
        let Record { v6only, uid, cgroup, device, retransmits, .. } = record;
        // An IPv6 socket that is bound to `::ffff:a.b.c.d` serves IPv4. The local address of this socket is stored as
        // IPv4, because all other code compares IPv4 addresses. The two addresses of a connection stay in the kernel's
        // form: code that compares addresses converts both.
        let local = if remote.is_unspecified() { local.to_canonical() } else { local };
        Self {
            protocol,
            state,
            family,
            local,
            local_port,
            remote,
            remote_port,
            v6only,
            uid,
            inode,
            cgroup,
            device,
            retransmits,
            owner: Owner::NotRead,
        }
    }
}

/// A set of states, as the bit mask of `idiag_states`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States(pub u32);

impl States {
    /// TCP and SCTP listeners. If a request has only this state, the kernel walks over the small hash table of
    /// listeners.
    pub const LISTENING: Self = Self::of(&[State::Listen]);
    /// UDP sockets that were never connected.
    pub const UNCONNECTED: Self = Self::of(&[State::Close]);
    /// Connected UDP sockets.
    pub const ESTABLISHED: Self = Self::of(&[State::Established]);
    /// Sockets that have a peer. NEW_SYN_RECV is missing: a connection request at a listener is not yet a socket.
    pub const WITH_PEER: Self = Self::of(&[
        State::Established,
        State::SynSent,
        State::SynRecv,
        State::FinWait1,
        State::FinWait2,
        State::TimeWait,
        State::CloseWait,
        State::LastAck,
        State::Closing,
    ]);

    /// TCP sockets that are bound but neither listen nor connect. The state exists only in requests
    /// (`TCP_BOUND_INACTIVE`, include/net/tcp_states.h, Linux 6.8). In answers, these sockets have the state CLOSE.
    /// Older kernels do not report these sockets.
    pub const BOUND: Self = Self(1 << 13);

    const fn of(states: &[State]) -> Self {
        let mut mask = 0;
        let mut index = 0;
        while index < states.len() {
            mask |= 1 << states[index] as u8;
            index += 1;
        }
        Self(mask)
    }

    /// The set with one more state.
    pub const fn with(self, state: State) -> Self {
        Self(self.0 | 1 << state as u8)
    }

    /// Whether a state is in the set.
    pub fn contains(self, state: State) -> bool {
        self.0 & (1 << state as u8) != 0 || state == State::Close && self == Self::BOUND
    }
}

/// A request for sockets.
pub struct SocketRequest<'a> {
    /// The source of the fact.
    pub source: Source,
    /// The protocol, which selects the table.
    pub protocol: Protocol,
    /// The requested states.
    pub states: States,
    /// The requested local ports. `None` stands for all ports except 0.
    pub ports: Option<&'a PortSet>,
    /// The requested ports of peers. A request has either local ports or ports of peers.
    pub peers: Option<&'a PortSet>,
}

impl<'a> SocketRequest<'a> {
    /// A request for sockets on these local ports, with any peers.
    pub fn new(source: Source, protocol: Protocol, states: States, ports: Option<&'a PortSet>) -> Self {
        Self { source, protocol, states, ports, peers: None }
    }

    /// Whether a request includes this socket. A reader may get sockets that were not requested.
    pub fn wants(&self, record: &Record) -> bool {
        self.states.contains(record.state)
            && record.local_port != 0
            && self.ports.is_none_or(|ports| ports.contains(record.local_port))
            && self.peers.is_none_or(|ports| ports.contains(record.remote_port))
    }
}

/// The listeners that may have accepted a connection. sock_diag does not report the direction of a connection. So a
/// connection counts as accepted if a listener covers its local end.
pub struct Accepting<'a> {
    by_port: Vec<&'a Socket>,
    /// One bit for each port, which is set if the port has a listener. The bit saves a search, because most connections
    /// are on ports without a listener.
    ports: Vec<u64>,
}

impl<'a> Accepting<'a> {
    /// Keeps the TCP and SCTP sockets of `listeners`.
    pub fn new(listeners: &'a [Socket]) -> Self {
        let mut accepting: Vec<_> = listeners.iter().filter(|socket| socket.protocol != Protocol::Udp).collect();
        accepting.sort_unstable_by_key(|socket| socket.local_port);
        let mut ports = vec![0; 1 << 10];
        for socket in &accepting {
            let (word, bit) = place_of(socket.local_port);
            ports[word] |= bit;
        }
        Self { by_port: accepting, ports }
    }

    /// Whether a listener covers the local port, address and family of a connection. If v6only is unknown, a listener
    /// on `[::]` also covers IPv4, which is the default.
    pub fn covers(&self, record: &Record) -> bool {
        let (word, bit) = place_of(record.local_port);
        if self.ports[word] & bit == 0 {
            return false;
        }
        let from = self.by_port.partition_point(|listener| listener.local_port < record.local_port);
        let local = record.local.to_canonical();
        let on_port = self.by_port.iter().skip(from).take_while(|listener| listener.local_port == record.local_port);
        on_port.filter(|listener| listener.protocol == record.protocol).any(|listener| {
            let bound = listener.local.to_canonical();
            bound == local || bound.is_unspecified() && listener.serves(Family::of(local)) != Some(false)
        })
    }
}

fn place_of(port: u16) -> (usize, u64) {
    (usize::from(port >> 6), 1 << (port & 63))
}

/// The sockets in order, each once. A table that changes during the walk shows some sockets twice.
pub fn in_order(mut records: Vec<Record>) -> Vec<Socket> {
    records.sort_unstable();
    records.dedup();
    records.into_iter().map(Socket::from).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(protocol: Protocol, state: State, local: &str, remote: &str) -> Record {
        let local: std::net::SocketAddr = local.parse().expect("an address");
        let remote: std::net::SocketAddr = remote.parse().expect("an address");
        let [local, remote] = [local, remote].map(|end| (end.ip(), end.port()));
        Record { inode: 1, ..Record::of(protocol, state, local, remote) }
    }

    fn listener(local: &str, v6only: Option<bool>) -> Socket {
        let unspecified = if local.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        Record { v6only, ..record(Protocol::Tcp, State::Listen, local, unspecified) }.into()
    }

    fn connection(local: &str) -> Record {
        let remote = if local.starts_with('[') { "[2001:db8::9]:9" } else { "192.0.2.9:9" };
        record(Protocol::Tcp, State::Established, local, remote)
    }

    #[test]
    fn a_connection_below_a_listener_was_accepted() {
        let listeners = [listener("0.0.0.0:80", None), listener("10.0.0.1:81", None)];
        let accepting = Accepting::new(&listeners);
        assert!(accepting.covers(&connection("10.0.0.1:80")));
        assert!(accepting.covers(&connection("10.0.0.1:81")));
        assert!(!accepting.covers(&connection("10.0.0.2:81")), "another address");
        assert!(!accepting.covers(&connection("10.0.0.1:82")), "another port");
        assert!(!accepting.covers(&connection("[2001:db8::1]:80")), "another family");
    }

    #[test]
    fn the_ipv6_wildcard_accepts_ipv4_unless_it_is_v6only() {
        let mapped = connection("[::ffff:10.0.0.1]:80");
        for (v6only, accepted) in [(Some(false), true), (None, true), (Some(true), false)] {
            let listeners = [listener("[::]:80", v6only)];
            assert_eq!(Accepting::new(&listeners).covers(&connection("10.0.0.1:80")), accepted);
            assert_eq!(Accepting::new(&listeners).covers(&mapped), accepted);
            assert!(Accepting::new(&listeners).covers(&connection("[2001:db8::1]:80")));
        }
    }

    #[test]
    fn an_ipv6_listener_may_serve_ipv4_only() {
        for (bound, serves) in [("[::ffff:0.0.0.0]:80", "0.0.0.0"), ("[::ffff:10.0.0.1]:80", "10.0.0.1")] {
            let socket = listener(bound, Some(false));
            assert_eq!(socket.local.to_string(), serves);
            assert_eq!(Family::BOTH.map(|family| socket.serves(family)), [Some(true), Some(false)]);
            assert!(Accepting::new(std::slice::from_ref(&socket)).covers(&connection("10.0.0.1:80")));
            assert!(!Accepting::new(&[socket]).covers(&connection("[2001:db8::1]:80")));
        }
        assert_eq!(Socket::from(connection("[::ffff:10.0.0.1]:80")).local.to_string(), "::ffff:10.0.0.1");
    }

    #[test]
    fn udp_sockets_accept_nothing() {
        let mut socket = listener("0.0.0.0:80", None);
        socket.protocol = Protocol::Udp;
        let client = Record { protocol: Protocol::Udp, ..connection("10.0.0.1:80") };
        assert!(!Accepting::new(&[socket]).covers(&client));
    }
}
