//! What makes pods: workloads, reduced to the ports that their pods will want of a node.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ContainerPort, pods::node_ports};

/// An object of group `apps` with the template of its pods, where these want ports of a node. Read from files only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// `kind`.
    pub kind: WorkloadKind,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `spec.template.spec.hostNetwork`.
    pub host_network: bool,
    /// What its template demands of a node by selector or by required affinity, Linux apart, each as one text. It may be meant
    /// for some nodes only.
    #[serde(default)]
    pub selects: Vec<String>,
    /// What a node must not be by required affinity (`NotIn`, `DoesNotExist`), each as one text: it is meant for most nodes.
    #[serde(default)]
    pub avoids: Vec<String>,
    /// The taints that its template tolerates, each as one text.
    #[serde(default)]
    pub tolerates: Vec<String>,
    /// `spec.template.spec.containers[].ports` that are the node's: those with a hostPort, or all in the host's network.
    pub ports: Vec<ContainerPort>,
}

impl Workload {
    /// The ports of a node that its pods want, each with its number there.
    pub fn node_ports(&self) -> impl Iterator<Item = (u16, &ContainerPort)> {
        node_ports(&self.ports, self.host_network)
    }
}

/// `kind` of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "Kubernetes' own names")]
pub enum WorkloadKind {
    DaemonSet,
    Deployment,
    StatefulSet,
}

impl WorkloadKind {
    /// The kind of this name.
    pub fn of(kind: &str) -> Option<Self> {
        [Self::DaemonSet, Self::Deployment, Self::StatefulSet].into_iter().find(|it| it.name() == kind)
    }

    /// Kubernetes' word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::DaemonSet => "DaemonSet",
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
        }
    }
}

impl fmt::Display for Workload {
    /// `DaemonSet default/agent`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}
