//! An index by protocol and port, or by another key.

use super::contest::alike;
use portreeve_facts::{Protocol, Socket};

/// Protocol and port.
pub type Port = (Protocol, u16);

/// Values, sorted by port when the index is made. The values of one port keep their order.
#[derive(Debug)]
pub struct ByPort<T, K = Port> {
    /// Each port that has values, with the position of its first value.
    ports: Vec<(K, u32)>,
    values: Vec<T>,
}

impl<T, K: Copy + Ord> ByPort<T, K> {
    /// An index of values with their ports.
    ///
    /// # Panics
    /// Panics if the number of values does not fit into a `u32`.
    pub fn of(all: impl IntoIterator<Item = (K, T)>) -> Self {
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by_key(|(port, _)| *port);
        let mut ports: Vec<(K, u32)> = Vec::new();
        for (index, (port, _)) in all.iter().enumerate() {
            if ports.last().is_none_or(|(last, _)| last != port) {
                ports.push((*port, u32::try_from(index).expect("fewer claims")));
            }
        }
        Self { ports, values: all.into_iter().map(|(_, value)| value).collect() }
    }

    /// The values of one port; empty if the port has no values.
    pub fn at(&self, port: K) -> &[T] {
        match self.ports.binary_search_by_key(&port, |(port, _)| *port) {
            Ok(index) => self.nth(index),
            Err(_) => &[],
        }
    }

    /// Every port that has values, with its values.
    pub fn ports(&self) -> impl Iterator<Item = (K, &[T])> {
        self.ports.iter().enumerate().map(|(index, (port, _))| (*port, self.nth(index)))
    }

    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.values.iter()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn nth(&self, index: usize) -> &[T] {
        let begin = |index: usize| self.ports.get(index).map_or(self.values.len(), |(_, begin)| *begin as usize);
        &self.values[begin(index)..begin(index + 1)]
    }
}

/// Sockets by their local ports. Sockets of one port are sorted by address. The result does not depend on the order of
/// lines in the kernel's files.
pub fn by_port(sockets: &[Socket]) -> ByPort<&Socket> {
    let mut sockets: Vec<_> = sockets.iter().collect();
    sockets.sort_by_key(|socket| (alike(socket), socket.inode));
    ByPort::of(sockets.into_iter().map(|socket| ((socket.protocol, socket.local_port), socket)))
}
