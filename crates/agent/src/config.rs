//! The configuration of the agent.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use crate::log::LogStyle;
use portreeve_cluster::ClusterSource;
use portreeve_facts::{NodePortRange, Overrides};
use portreeve_rules::Limits;

/// Everything that flags, the environment and the configuration file set together.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where facts about the cluster come from.
    pub cluster: ClusterSource,
    /// This node's name in the cluster.
    pub node: Option<String>,
    /// Where the node's root is.
    pub host_root: PathBuf,
    /// What the configuration says about the node.
    pub overrides: Overrides,
    /// The NodePort range, where it is configured.
    pub node_port_range: Option<NodePortRange>,
    /// Where to answer over HTTP.
    pub listen: SocketAddr,
    /// A socket in the file tree at which everything is answered, to its owner and to a probe.
    pub socket: Option<PathBuf>,
    /// From one look to the next.
    pub interval: Duration,
    /// The share of one core that looks may take, and reading connections as much again, per cent.
    pub cpu_percent: f64,
    /// What the log contains.
    pub log: LogStyle,
    /// Every threshold of every rule.
    pub limits: Limits,
}

impl Config {
    /// Replaces this configuration. Returns whether a part of the new one takes effect only at the next start: sources
    /// and paths.
    pub(super) fn adopt(&mut self, new: Self) -> bool {
        let fixed = |it: &Self| {
            let Self { cluster, node, host_root, listen, socket, .. } = it.clone();
            (cluster, node, host_root, listen, socket)
        };
        let old = std::mem::replace(self, new);
        fixed(&old) != fixed(self)
    }
}
