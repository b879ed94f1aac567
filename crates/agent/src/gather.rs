//! Makes one snapshot. This module reads the cluster, finds out what to read on the node, and reads the node.

use std::{collections::BTreeSet, fmt, io};

use jiff::Timestamp;
use tracing::info;

use super::own_node::{another_host, no_own_node};
use portreeve_cluster::{self as cluster, ClusterSource};
use portreeve_facts::{
    NodePortRange, Overrides, OwnPort, PortSet, Reading, SNAPSHOT_SCHEMA, Snapshot, Source, Unread, VERSION,
};
use portreeve_kernel::Host;
use portreeve_rules as rules;

/// The sources of a snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotSources {
    /// The source of facts about the cluster.
    pub cluster: ClusterSource,
    /// This node's name in the cluster, if a person or the downward API set it.
    pub node: Option<String>,
    /// The node that is read.
    pub host: Host,
    /// Facts about the node that a person configured.
    pub overrides: Overrides,
    /// The NodePort range, if a person configured it.
    pub node_port_range: Option<NodePortRange>,
    /// Ports whose owners, client sockets and bound sockets are read, in addition to the ports that rules need.
    pub owner_ports: PortSet,
    /// A pod `namespace/name`. The owners of `owner_ports` are also read in the pod's own network.
    pub pod: Option<String>,
    /// Sources that the chosen rules do not use. These sources are not read.
    pub skipped: BTreeSet<Source>,
    /// Whether the snapshot may contain command lines of processes, which can hold secrets.
    pub command_lines: bool,
}

/// The current step, which is shown to a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reads Services, EndpointSlices, Pods and Nodes.
    Cluster,
    /// Reads sockets, settings, addresses and the proxy.
    Node,
    /// Runs the rules.
    Rules,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cluster => "reading the cluster",
            Self::Node => "reading the node",
            Self::Rules => "judging",
        })
    }
}

impl SnapshotSources {
    /// Makes a snapshot once, on the calling thread, and announces each step. `at` is the time of the snapshot.
    ///
    /// # Errors
    /// The errors of [`cluster::read_now`].
    pub fn gather(&self, at: Timestamp, announce: impl Fn(Step)) -> io::Result<Snapshot> {
        let Self { cluster: source, node, host, overrides, node_port_range, owner_ports, pod, skipped, command_lines } =
            self;
        announce(Step::Cluster);
        // If no name is configured, the Node with this hostname counts as this node.
        let hostname = if node.is_none() { host.hostname() } else { String::new() };
        let mut cluster = cluster::read_now(source, node.as_deref(), &hostname)?;
        // If the Node object of this node was not found, the addresses and Pods of this node are unknown. The snapshot
        // lists the missing Node as rejected input.
        cluster.rejected.extend(no_own_node(&cluster, &hostname));
        if let Some(range) = node_port_range {
            cluster.node_port_range = Reading::Seen(range.clone());
        }
        info!(origin = %cluster.origin, services = cluster.services.known(Unread::Adds).map(Vec::len), "read the cluster");

        announce(Step::Node);
        let mut query = rules::node_query(&cluster, *command_lines);
        query.owner_ports = query.owner_ports.union(owner_ports);
        if let Some(pod) = pod {
            rules::limit_to_pod(&mut query, &cluster, pod, owner_ports);
        } else {
            query.client_ports = query.client_ports.union(owner_ports);
            query.contested = query.contested.union(owner_ports);
        }
        // An agent needs several scans to find all sockets. A single snapshot must find all sockets in one scan.
        query.bound_on_purpose = true;
        query.skipped.clone_from(skipped);
        let kernel = host.read(&query);
        info!(listeners = kernel.listeners.known(Unread::Adds).map(Vec::len), sockets = %kernel.socket_source, "read the node");
        let own_port = OwnPort::not_requested();
        let (schema, version) = (SNAPSHOT_SCHEMA.to_owned(), Some(VERSION.to_owned()));
        let overrides = overrides.clone();
        // Pods from an API server are not older than `at`. Pods from a file may be older.
        let are_read = matches!(source, ClusterSource::Api(_)) && cluster.pods.gap().is_none();
        let pods_at = are_read.then_some(at);
        let mut snapshot =
            Snapshot { schema, version, at, connections_at: None, pods_at, overrides, kernel, cluster, own_port };
        // With a wrong name, the Pods and addresses of another node would count as this node's own.
        let doubt = another_host(&snapshot);
        snapshot.cluster.rejected.extend(doubt);
        Ok(snapshot)
    }
}
