//! Workloads, with the ports of a node that their pods will need.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ContainerPort, pods::node_ports};

/// An object with a pod template, or a Pod of a manifest. The pods of a workload need ports of a node. Portreeve reads
/// workloads only from files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// `kind`.
    pub kind: WorkloadKind,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The number of pods at the same time: `spec.replicas`, or `parallelism` of a Job. `None` if the object does not
    /// set the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Whether a rollout of a Deployment or a DaemonSet keeps every old pod until a new pod is ready. True with the
    /// strategy `RollingUpdate` if `maxUnavailable` is zero pods. Zero is the default for a Deployment with fewer than
    /// four pods.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_old_pods: bool,
    /// `spec.template.spec.hostNetwork`.
    pub host_network: bool,
    /// The conditions that a node must meet, from node selectors and required affinity of the template. Each condition
    /// is one text. A condition for nodes with Linux is left out. If the list is not empty, the workload may run only
    /// on some nodes.
    #[serde(default)]
    pub selects: Vec<String>,
    /// The nodes that required affinity excludes (`NotIn`, `DoesNotExist`). Each condition is one text. The workload
    /// may run on most other nodes.
    #[serde(default)]
    pub avoids: Vec<String>,
    /// The taints that the workload's template tolerates. Each toleration is one text.
    #[serde(default)]
    pub tolerates: Vec<String>,
    /// The entries of `spec.template.spec.containers[].ports` that are ports of the node. If the pods use the host
    /// network, every entry is a port of the node. In other pods, only an entry with a hostPort is a port of the node.
    pub ports: Vec<ContainerPort>,
    /// Port numbers that probes use, but that no container declares. Empty if the pods do not use the host network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probed: Vec<ContainerPort>,
}

impl Workload {
    /// The ports of a node that the workload's pods need. The first value of a pair is the number on the node.
    pub fn node_ports(&self) -> impl Iterator<Item = (u16, &ContainerPort)> {
        node_ports(&self.ports, self.host_network)
    }

    /// Like [`Self::node_ports`]. Also has the ports of probes.
    pub fn needed_ports(&self) -> impl Iterator<Item = (u16, &ContainerPort)> {
        self.node_ports().chain(self.probed.iter().map(|port| (port.port, port)))
    }
}

/// `kind` of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "Kubernetes' own names")]
pub enum WorkloadKind {
    DaemonSet,
    Deployment,
    StatefulSet,
    ReplicaSet,
    ReplicationController,
    Job,
    CronJob,
    Pod,
}

impl WorkloadKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::DaemonSet,
        Self::Deployment,
        Self::StatefulSet,
        Self::ReplicaSet,
        Self::ReplicationController,
        Self::Job,
        Self::CronJob,
        Self::Pod,
    ];

    /// The kind with this name, if the kind is DaemonSet, Deployment or StatefulSet. A ReplicaSet is left out, because
    /// usually a Deployment owns it.
    pub fn of(kind: &str) -> Option<Self> {
        [Self::DaemonSet, Self::Deployment, Self::StatefulSet].into_iter().find(|it| it.name() == kind)
    }

    /// The API group of the kind.
    pub fn group(self) -> &'static str {
        match self {
            Self::DaemonSet | Self::Deployment | Self::StatefulSet | Self::ReplicaSet => "apps",
            Self::Job | Self::CronJob => "batch",
            Self::ReplicationController | Self::Pod => "",
        }
    }

    /// The path of the field with the pod's spec in an object of this kind.
    pub fn pod_spec(self) -> &'static str {
        match self {
            Self::Pod => "spec",
            Self::CronJob => "spec.jobTemplate.spec.template.spec",
            _ => "spec.template.spec",
        }
    }

    /// The name of the kind in Kubernetes.
    pub fn name(self) -> &'static str {
        match self {
            Self::DaemonSet => "DaemonSet",
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
            Self::ReplicaSet => "ReplicaSet",
            Self::ReplicationController => "ReplicationController",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
            Self::Pod => "Pod",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}
