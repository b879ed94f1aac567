//! Flows whose source this node translates to an address of its own.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

use super::{Gap, Protocol, Reading, Source, Why};

/// What conntrack tells of flows whose source was translated to an address of this node, over the protocols that
/// Services can have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Masquerade {
    /// How many were given a port of [`super::NodeQuery::masquerade_ports`], by protocol; one that is absent has none.
    pub flows: Reading<BTreeMap<Protocol, u64>>,
    /// Those that have no answer yet and were given a port of [`super::NodeQuery::client_ports`]: over TCP in SYN_SENT,
    /// over others without a reply. At most 64.
    pub unanswered: Vec<MasqueradedFlow>,
    /// How many more of these there are.
    pub beyond: u64,
}

impl Masquerade {
    /// The reading of whoever has no use for it, and of snapshots older than it.
    pub fn not_asked() -> Reading<Self> {
        Reading::Gap(Gap::new(Source::Conntrack, Why::NotAsked, "IPVS serves nothing here"))
    }
}

/// One flow whose source was translated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasqueradedFlow {
    /// Its protocol.
    pub protocol: Protocol,
    /// Who sends, by its own address and port.
    pub source: (IpAddr, u16),
    /// This node's address and the port that was chosen for it: where answers go.
    pub translated: (IpAddr, u16),
    /// From where an answer would come: the destination, itself translated where it is a Service's.
    pub server: (IpAddr, u16),
}
