//! The place of an agent: the agent's node and cluster.

use portreeve_facts::{Snapshot, Unread};

/// The node and the cluster of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This node's name.
    pub node: String,
    /// The uid of the Node object of this node, if it was read.
    pub node_uid: Option<String>,
    /// The uid of the Service `default/kubernetes`, if it was read. An Event about the cluster refers to this Service.
    pub kubernetes_uid: Option<String>,
    /// The number of Nodes in the cluster. `None` if Nodes were not read.
    pub nodes: Option<usize>,
    /// The namespace of the agents, if it is known.
    pub agents: Option<String>,
}

impl Place {
    /// The place of the agent that made the snapshot. `agents` is the namespace of the agents.
    pub fn of(snapshot: &Snapshot, agents: Option<&str>) -> Self {
        let mut services = snapshot.cluster.services.known_part(Unread::Adds).iter();
        let kubernetes = services.find(|service| service.namespace == "default" && service.name == "kubernetes");
        Self {
            node: snapshot.node_name().to_owned(),
            node_uid: snapshot.own_node().and_then(|node| node.uid.clone()),
            kubernetes_uid: kubernetes.and_then(|service| service.uid.as_ref().map(ToString::to_string)),
            nodes: snapshot.cluster.nodes.known(Unread::Doubted).map(Vec::len),
            agents: agents.map(str::to_owned),
        }
    }
}
