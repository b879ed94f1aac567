//! The place of a client: the vantage points that data planes treat differently.

use std::{collections::BTreeSet, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The place of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Vantage {
    /// Clients on other machines.
    Remote,
    /// Clients on this node that connect to its own addresses.
    Node,
    /// Clients on this node that connect to 127.0.0.1 or `::1`.
    Loopback,
    /// This node's pods.
    Pods,
}

/// The vantage points that are affected.
pub type Affected = BTreeSet<Vantage>;

impl Vantage {
    /// Every vantage point, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Remote, Self::Node, Self::Loopback, Self::Pods];

    /// The word in JSON.
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
