//! The ports that the kernel may choose by itself, and sockets on these ports that may be clients.

use super::{
    node_ports::{ports_in_words, range_in_words},
    remedies::LAST_BY_DEFAULT,
};
use portreeve_facts::{Gap, PortRange, PortSet, Protocol, Reading, Snapshot, Socket, State};

pub(super) fn effective_ephemeral(snapshot: &Snapshot) -> Result<PortSet, Gap> {
    let range = *snapshot.kernel.sysctls.ip_local_port_range.get()?;
    let reserved = snapshot.kernel.sysctls.ip_local_reserved_ports.get()?;
    Ok(PortSet::from(range).minus(reserved))
}

/// A part of a total, and its share: `3 of 64512 (0.005 %)`. The share is the chance that the kernel chooses one of
/// these ports.
pub(super) fn share(some: u32, all: u32) -> String {
    // Avoids a division by zero if the kernel can choose no port.
    format!("{some} of {all} ({:.3} %)", f64::from(some) * 100.0 / f64::from(all.max(1)))
}

/// An ephemeral port range above the NodePorts, not smaller than the default range. Its end is the default end, or
/// 65535 if the range would be too small.
pub(super) fn range_above(node_ports: PortRange) -> Option<PortRange> {
    let first = node_ports.last.checked_add(1)?;
    let ends = [LAST_BY_DEFAULT, u16::MAX].into_iter();
    let mut above = ends.filter_map(|last| PortRange::new(first, last));
    above.find(|range| range.size() >= PortRange::DEFAULT_EPHEMERAL.size())
}

/// The ports that the kernel may choose on a node, or the reason why they are not known. They are computed once for
/// many sockets.
pub(super) struct EphemeralPorts(Result<PortSet, Gap>);

impl EphemeralPorts {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        Self(effective_ephemeral(snapshot))
    }

    /// Whether a listening socket may belong to a client. An unconnected UDP socket on an ephemeral port usually does.
    ///
    /// # Errors
    /// If the result depends on the range, and the range was not read.
    pub(super) fn may_be_client(&self, socket: &Socket) -> Result<bool, Gap> {
        if !is_unconnected(socket) {
            return Ok(false);
        }
        self.0.as_ref().map(|ports| ports.contains(socket.local_port)).map_err(Gap::clone)
    }

    /// False if the ports are not known.
    pub(super) fn contain(&self, port: u16) -> bool {
        self.0.as_ref().is_ok_and(|ports| ports.contains(port))
    }

    /// If they are not known, the set is empty, and [`Self::gap`] has the reason.
    pub(super) fn ports(&self) -> PortSet {
        self.0.clone().unwrap_or_default()
    }

    pub(super) fn gap(&self) -> Option<&Gap> {
        self.0.as_ref().err()
    }
}

/// Whether a socket is a UDP socket without a peer: the socket of a server, or of a client with many peers.
pub(super) fn is_unconnected(socket: &Socket) -> bool {
    socket.protocol == Protocol::Udp && socket.state == State::Close
}

pub(super) fn ranges_in_words(snapshot: &Snapshot) -> Vec<(&'static str, String)> {
    fn words<T>(reading: &Reading<T>, words: impl Fn(&T) -> String) -> String {
        match reading {
            Reading::Seen(fact) => words(fact),
            Reading::Gap(gap) => format!("unknown: {}", gap.detail),
        }
    }
    let sysctls = &snapshot.kernel.sysctls;
    vec![
        ("ip_local_port_range", words(&sysctls.ip_local_port_range, ToString::to_string)),
        ("ip_local_reserved_ports", words(&sysctls.ip_local_reserved_ports, ports_in_words)),
        ("NodePort range", words(&snapshot.cluster.node_port_range, range_in_words)),
    ]
}
