//! The answer: what claims a port, and who answers there.

use std::net::IpAddr;

use super::{
    super::{cases::Stratum, claim::ClaimKind, outcome::Outcome},
    beside::Beside,
};
use portreeve_facts::{Gap, Mode, Protocol, Vantage};

/// All known facts about one port and protocol.
#[derive(Clone, Debug)]
pub struct Ownership {
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// Everything that claims it, in the order in which a new connection meets them.
    pub claimants: Vec<Claimant>,
    /// What else has the number, and takes no new connection.
    pub beside: Vec<Beside>,
    /// Who answers on each address from each vantage point. A loopback address of IPv4 that is not listed is answered like
    /// 127.0.0.1, unless it is claimed alone.
    pub answers: Vec<Answered>,
    /// The proxy's mode, if known.
    pub proxy_mode: Option<Mode>,
    /// The proxy's mode and how it is known, in words.
    pub mode: String,
    /// Services or Pods that were not read or left out, and that this Node is not known: they may claim the port too.
    pub unread: Vec<Gap>,
    /// Why redirections of hostPorts are not among the claims, where pods of this node have hostPorts: none is assumed to be left behind.
    pub redirections: Option<Gap>,
}

/// A Service, pod or socket that claims a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// By what right.
    pub claim: ClaimKind,
    /// Who: `Service default/web port http`, `pod default/web`, `process nginx`.
    pub name: String,
    /// The place and the means: an address, a socket, endpoints.
    pub detail: String,
}

/// Who answers a new connection to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The client.
    pub from: Vantage,
    /// The destination.
    pub to: IpAddr,
    /// What becomes of it, or why that is not known.
    pub outcome: Result<Outcome, Gap>,
    /// The claimant that decides it: an index into [`Ownership::claimants`]. `None` where the port is not claimed there.
    pub by: Option<usize>,
    /// The listener that would answer there if no other claim stood before it.
    pub loser: Option<usize>,
    /// The settings for which this holds, if it does not hold for all.
    pub assumed: Stratum,
}
