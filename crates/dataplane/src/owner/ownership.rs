//! The answer: the claims to a port, and who answers.

use std::net::IpAddr;

use super::{
    super::{cases::Stratum, claim::ClaimKind, outcome::Outcome},
    beside::Beside,
};
use portreeve_facts::{Gap, Mode, Protocol, Vantage};

/// All known facts about one port and protocol: the answer of `owner`.
#[derive(Clone, Debug)]
pub struct Ownership {
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
    /// All claims, in the order in which the kernel checks claims for a new connection.
    pub claimants: Vec<Claimant>,
    /// Other users of the same port number: connections, Services and servers that get no new connections.
    pub beside: Vec<Beside>,
    /// Who answers on each address from each vantage point. IPv4 loopback addresses without a claim are not listed,
    /// because they have the same answer as 127.0.0.1.
    pub answers: Vec<Answered>,
    /// The proxy's mode, if known.
    pub proxy_mode: Option<Mode>,
    /// The proxy's mode and its source, in words.
    pub mode: String,
    /// Unread inputs that may contain another claim to the port: Services, Pods, this Node's object, or sockets that
    /// the kernel did not list. Also the addresses of the node: without addresses, there are no answers.
    ///
    /// If the number is no possible NodePort, an answer of a claim assumes that no unread Service has an external
    /// address of this node.
    pub unread: Vec<Gap>,
    /// The reason why redirections of hostPorts were not read. If a right or a kernel feature is missing, the answers
    /// assume that there is no leftover redirection. After a failure, no answer assumes this.
    pub redirections: Option<Gap>,
    /// The reason why no proxy answered on this node, if a Service claims the port. The answers of Services assume that
    /// a proxy serves Services on this node. `None` if another data plane than kube-proxy serves Services, or if the
    /// user named the mode.
    pub no_proxy: Option<Gap>,
}

/// A Service, pod or socket that claims a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// The kind of the claim.
    pub claim: ClaimKind,
    /// The claimant: `Service default/web port http`, `pod default/web`, `process nginx`.
    pub name: String,
    /// The address, the socket or the endpoints with which the claimant serves.
    pub detail: String,
}

/// Who answers a new connection to one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The client.
    pub from: Vantage,
    /// The destination.
    pub to: IpAddr,
    /// The outcome, or the reason why it is not known. The outcome is also unknown if an unread claim may come first.
    pub outcome: Result<Outcome, Gap>,
    /// The claimant that gives this outcome: an index into [`Ownership::claimants`]. `None` if the outcome comes from
    /// no claimant.
    pub by: Option<usize>,
    /// The listeners that would answer if no other claim came first. Several owners may share an address and a port.
    pub losers: Vec<usize>,
    /// The settings for which the answer is true.
    pub assumed: Stratum,
}
