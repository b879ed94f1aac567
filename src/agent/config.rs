//! What an agent has to know.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use crate::{
    cluster::ClusterSource,
    facts::{NodePortRange, Said},
    rules::Limits,
};

/// Everything that flags, the environment and the configuration file say together.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where the cluster is told.
    pub cluster: ClusterSource,
    /// This node's name in the cluster.
    pub node: Option<String>,
    /// Where the node's root is.
    pub host_root: PathBuf,
    /// What a person said about the node.
    pub said: Said,
    /// The NodePort range, where a person said it.
    pub node_port_range: Option<NodePortRange>,
    /// Where to answer over HTTP.
    pub listen: SocketAddr,
    /// From one look to the next.
    pub interval: Duration,
    /// The share of one core that looks may take, per cent; the interval is stretched to keep it.
    pub cpu_percent: f64,
    /// The file whose age tells an exec probe that the agent lives.
    pub heartbeat: Option<PathBuf>,
    /// Every threshold of every rule.
    pub limits: Limits,
}

impl Config {
    /// Takes over a new one; says whether part of it cannot hold before the next start: sources and places.
    pub(super) fn adopt(&mut self, new: Self) -> bool {
        let fixed = |it: &Self| {
            let Self { cluster, node, host_root, listen, heartbeat, .. } = it.clone();
            (cluster, node, host_root, listen, heartbeat)
        };
        let old = std::mem::replace(self, new);
        fixed(&old) != fixed(self)
    }
}
