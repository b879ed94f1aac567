//! The ports that the kernel may choose by itself, and sockets on these ports that may be clients.

use super::{
    node_ports::{ports_in_words, range_in_words},
    remedies::LAST_BY_DEFAULT,
};
use crate::findings::Evidence;
use portreeve_facts::{Gap, PortRange, PortSet, Protocol, Reading, Snapshot, Socket, State, Sysctls, Unread};

pub(super) fn effective_ephemeral(snapshot: &Snapshot) -> Result<PortSet, Gap> {
    choosable(&snapshot.kernel.sysctls)
}

fn choosable(sysctls: &Sysctls) -> Result<PortSet, Gap> {
    let range = *sysctls.ip_local_port_range.get()?;
    Ok(PortSet::from(range).minus(sysctls.ip_local_reserved_ports.get()?))
}

/// A part of a total, with its percentage: `3 of 64512 (0.005 %)`. The percentage is the chance that the kernel chooses
/// one of these ports.
pub(super) fn share(some: u32, all: u32) -> String {
    // Avoids a division by zero if the kernel can choose no port.
    format!("{some} of {all} ({:.3} %)", f64::from(some) * 100.0 / f64::from(all.max(1)))
}

/// An ephemeral port range above the NodePorts, at least as large as the default range. The range ends at the default
/// end, or at 65535 if the default end makes the range too small.
pub(super) fn range_above(node_ports: PortRange) -> Option<PortRange> {
    let first = node_ports.last.checked_add(1)?;
    let ends = [LAST_BY_DEFAULT, u16::MAX].into_iter();
    let mut above = ends.filter_map(|last| PortRange::new(first, last));
    above.find(|range| range.size() >= PortRange::DEFAULT_EPHEMERAL.size())
}

/// The ports that the kernel may choose on a node, or the reason why they are not known. Callers compute the ports once
/// for many sockets.
pub(super) struct EphemeralPorts {
    now: Result<PortSet, Gap>,
    /// The ports from which the kernel chose a port for each open socket. `--set` does not change these ports.
    of_sockets: Result<PortSet, Gap>,
    /// The reserved ports of the range. Without the reservation, these ports would also be in `of_sockets`.
    reserved: PortSet,
}

impl EphemeralPorts {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let sysctls = snapshot.overrides.sysctls_before.as_ref().unwrap_or(&snapshot.kernel.sysctls);
        let range = sysctls.ip_local_port_range.known(Unread::Adds).copied();
        let reserved = sysctls.ip_local_reserved_ports.known(Unread::Adds);
        let reserved = range.zip(reserved).map(|(range, reserved)| PortSet::from(range).intersection(reserved));
        let reserved = reserved.unwrap_or_default();
        Self { now: effective_ephemeral(snapshot), of_sockets: choosable(sysctls), reserved }
    }

    /// Whether a listening socket may belong to a client. An unconnected UDP socket on an ephemeral port usually
    /// belongs to a client.
    ///
    /// # Errors
    /// Fails if the result depends on the range, and the range was not read.
    pub(super) fn may_be_client(&self, socket: &Socket) -> Result<bool, Gap> {
        if !is_unconnected(socket) {
            return Ok(false);
        }
        self.gave(socket.local_port)
    }

    /// The words of an assumption: the port was reserved before the socket was opened, so the socket belongs to a
    /// server. `None` if the port is not reserved now.
    pub(super) fn assumed_of(&self, socket: &Socket) -> Option<String> {
        let (port, protocol) = (socket.local_port, socket.protocol);
        let is_reserved = is_unconnected(socket) && self.reserved.contains(port);
        let words = "was reserved before the socket was opened; an older socket may belong to a client";
        is_reserved.then(|| format!("{port}/{protocol} {words}"))
    }

    /// Whether the kernel may have chosen this port for an open socket.
    ///
    /// # Errors
    /// Fails if the range or the reserved ports were not read.
    pub(super) fn gave(&self, port: u16) -> Result<bool, Gap> {
        self.of_sockets.as_ref().map(|ports| ports.contains(port)).map_err(Gap::clone)
    }

    /// Whether the kernel may choose the port now. False if the kernel's ports are not known.
    pub(super) fn contain(&self, port: u16) -> bool {
        self.now.as_ref().is_ok_and(|ports| ports.contains(port))
    }

    /// The ports. If the ports are not known, the set is empty, and [`Self::gap`] has the reason.
    pub(super) fn ports(&self) -> PortSet {
        self.now.clone().unwrap_or_default()
    }

    pub(super) fn gap(&self) -> Option<&Gap> {
        self.now.as_ref().err()
    }
}

/// Whether a socket is a UDP socket without a peer: the socket of a server, or of a client with many peers.
pub(super) fn is_unconnected(socket: &Socket) -> bool {
    socket.protocol == Protocol::Udp && socket.state == State::Close
}

/// Adds the ephemeral port range, the reserved ports and the NodePort range.
pub(super) fn with_ranges(evidence: Evidence, snapshot: &Snapshot) -> Evidence {
    fn words<T>(reading: &Reading<T>, words: impl Fn(&T) -> String) -> String {
        match reading {
            Reading::Seen(fact) => words(fact),
            Reading::Gap(gap) => format!("unknown: {}", gap.detail),
        }
    }
    let sysctls = &snapshot.kernel.sysctls;
    evidence
        .value("ip_local_port_range", words(&sysctls.ip_local_port_range, ToString::to_string))
        .value("ip_local_reserved_ports", words(&sysctls.ip_local_reserved_ports, ports_in_words))
        .value("NodePort range", words(&snapshot.cluster.node_port_range, range_in_words))
}
