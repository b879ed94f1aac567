//! Sockets by port, and in words.

use std::{collections::BTreeMap, net::SocketAddr};

use portreeve_facts::{Protocol, Socket, State};

/// Sockets by protocol and local port.
#[derive(Debug)]
pub struct ByPort<'a>(Vec<&'a Socket>);

/// Puts sockets in the order of their ports, and those of one port in that of their addresses, whatever order a file has; readers return
/// them in about that order.
pub fn by_port(sockets: &[Socket]) -> ByPort<'_> {
    let mut sockets: Vec<_> = sockets.iter().collect();
    sockets.sort_by_key(|socket| (port_of(socket), socket.local, socket.device, socket.inode));
    ByPort(sockets)
}

impl<'a> ByPort<'a> {
    /// Those of one port; empty where it is not in use.
    pub fn at(&self, port: (Protocol, u16)) -> &[&'a Socket] {
        let (_, from) = self.0.split_at(self.0.partition_point(|socket| port_of(socket) < port));
        from.split_at(from.partition_point(|socket| port_of(socket) == port)).0
    }

    /// Those of every port that is in use.
    pub fn ports(&self) -> impl Iterator<Item = ((Protocol, u16), &[&'a Socket])> {
        self.0.chunk_by(|a, b| port_of(a) == port_of(b)).map(|sockets| (port_of(sockets[0]), sockets))
    }
}

fn port_of(socket: &Socket) -> (Protocol, u16) {
    (socket.protocol, socket.local_port)
}

/// Sockets that share address, port and device are SO_REUSEPORT workers of one server: one of them, and how many.
pub fn workers<'a>(sockets: &[&'a Socket]) -> Vec<(&'a Socket, usize)> {
    let mut groups: BTreeMap<_, Vec<&Socket>> = BTreeMap::new();
    for socket in sockets {
        groups.entry((socket.local, socket.device, socket.v6only)).or_default().push(socket);
    }
    groups.into_values().map(|group| (group[0], group.len())).collect()
}

/// `0.0.0.0:30080/tcp`.
pub fn place(socket: &Socket) -> String {
    format!("{}/{}", SocketAddr::new(socket.local, socket.local_port), socket.protocol)
}

/// `tcp LISTEN 0.0.0.0:30080`, with the device where it is bound to one.
pub fn socket_in_words(socket: &Socket) -> String {
    let local = SocketAddr::new(socket.local, socket.local_port);
    let mut words = format!("{} {} {local}", socket.protocol, socket.state.name());
    if !matches!((socket.protocol, socket.state), (_, State::Listen) | (Protocol::Udp, State::Close)) {
        words.push_str(&format!(" -> {}", SocketAddr::new(socket.remote, socket.remote_port)));
    }
    if socket.retransmits > 0 {
        words.push_str(" retransmitting");
    }
    if socket.v6only == Some(true) {
        words.push_str(" v6only");
    }
    if socket.device != 0 {
        words.push_str(&format!(" on interface {}", socket.device));
    }
    words
}
