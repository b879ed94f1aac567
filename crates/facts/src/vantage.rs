//! The place from which a client connects. Data planes treat these places differently.

use std::{collections::BTreeSet, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The place from which a client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Vantage {
    /// Clients on other machines.
    Remote,
    /// Clients on this node that connect to an address of the node.
    Node,
    /// Clients on this node that connect to 127.0.0.1 or `::1`.
    Loopback,
    /// This node's pods.
    Pods,
}

/// The places whose clients are affected.
pub type Affected = BTreeSet<Vantage>;

impl Vantage {
    /// Every place, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Remote, Self::Node, Self::Loopback, Self::Pods];

    /// The name of the place in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Remote => "remote",
            Self::Node => "node",
            Self::Loopback => "loopback",
            Self::Pods => "pods",
        }
    }
}

impl fmt::Display for Vantage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Remote => "remote clients",
            Self::Node => "this node",
            Self::Loopback => "its loopback",
            Self::Pods => "its pods",
        })
    }
}
