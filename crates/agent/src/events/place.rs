//! Where an agent reports from.

use portreeve_facts::{Snapshot, Unread};

/// Where an agent reports from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This node's name.
    pub node: String,
    /// The uid of its Node, where that was seen.
    pub node_uid: Option<String>,
    /// The uid of the Service `default/kubernetes`, which stands for the cluster, where it was seen.
    pub kubernetes_uid: Option<String>,
    /// How many Nodes the cluster has, where they were read.
    pub nodes: Option<usize>,
    /// The namespace that agents run in, where it is known.
    pub agents: Option<String>,
}

impl Place {
    /// The place of a look by one of the agents in this namespace.
    pub fn of(snapshot: &Snapshot, agents: Option<&str>) -> Self {
        let mut services = snapshot.cluster.services.known_part(Unread::Adds).iter();
        let kubernetes = services.find(|service| service.namespace == "default" && service.name == "kubernetes");
        Self {
            node: snapshot.node_name().to_owned(),
            node_uid: snapshot.own_node().and_then(|node| node.uid.clone()),
            kubernetes_uid: kubernetes.and_then(|service| service.uid.clone()),
            nodes: snapshot.cluster.nodes.known(Unread::Doubted).map(Vec::len),
            agents: agents.map(str::to_owned),
        }
    }
}
