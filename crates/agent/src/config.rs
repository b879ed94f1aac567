//! The configuration of the agent.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use crate::log::LogStyle;
use portreeve_cluster::ClusterSource;
use portreeve_facts::{NodePortRange, Overrides};
use portreeve_rules::Limits;

/// All settings, after flags, environment and configuration file are merged.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The source of facts about the cluster.
    pub cluster: ClusterSource,
    /// This node's name in the cluster.
    pub node: Option<String>,
    /// The root directory of the node.
    pub host_root: PathBuf,
    /// Configured facts about the node.
    pub overrides: Overrides,
    /// The NodePort range, if it is configured.
    pub node_port_range: Option<NodePortRange>,
    /// The address of the HTTP server.
    pub listen: SocketAddr,
    /// A Unix socket. The owner of the socket can read every document through the socket. The probe connects to the
    /// socket.
    pub socket: Option<PathBuf>,
    /// Whether to write the Node condition.
    pub node_condition: bool,
    /// The time between two scans.
    pub interval: Duration,
    /// The share of one core for scans, per cent. To read connections, the agent may use an equal share in addition.
    pub cpu_percent: f64,
    /// Form and level of the log.
    pub log: LogStyle,
    /// Every threshold of every rule.
    pub limits: Limits,
}

impl Config {
    /// Takes the new configuration. Returns true if the agent must restart, because a source or a path has changed.
    pub(super) fn adopt(&mut self, new: Self) -> bool {
        let fixed = |it: &Self| {
            let Self { cluster, node, host_root, listen, socket, node_condition, .. } = it.clone();
            (cluster, node, host_root, listen, socket, node_condition)
        };
        let old = std::mem::replace(self, new);
        fixed(&old) != fixed(self)
    }
}
