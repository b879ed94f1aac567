//! Workloads, with the ports of a node that their pods will want.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ContainerPort, pods::node_ports};

/// An object with a pod template, or a Pod of a manifest. Its pods want ports of a node. Workloads are read from files
/// only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// `kind`.
    pub kind: WorkloadKind,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The number of pods at the same time, if set: `spec.replicas`, or the `parallelism` of a Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Whether a rollout of a Deployment or a DaemonSet keeps every old pod until a new pod is ready. With the strategy
    /// `RollingUpdate`, a rollout does so if `maxUnavailable` comes to zero pods. This is the default of a Deployment
    /// with fewer than four pods.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_old_pods: bool,
    /// `spec.template.spec.hostNetwork`.
    pub host_network: bool,
    /// The conditions for a node in the workload's template, each as one text: node selectors and required affinity.
    /// The condition that the node runs Linux is left out. With a condition, the workload may be for some nodes only.
    #[serde(default)]
    pub selects: Vec<String>,
    /// The nodes that required affinity excludes (`NotIn`, `DoesNotExist`), each as one text. The workload is for most
    /// other nodes.
    #[serde(default)]
    pub avoids: Vec<String>,
    /// The taints that the workload's template tolerates, each as one text.
    #[serde(default)]
    pub tolerates: Vec<String>,
    /// The entries of `spec.template.spec.containers[].ports` that are ports of the node. These are ports with a
    /// hostPort; in the host's network, all ports.
    pub ports: Vec<ContainerPort>,
    /// In the host's network: the port numbers of probes that no container declares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probed: Vec<ContainerPort>,
}

impl Workload {
    /// The ports of a node that the workload's pods want, each with its number on the node.
    pub fn node_ports(&self) -> impl Iterator<Item = (u16, &ContainerPort)> {
        node_ports(&self.ports, self.host_network)
    }

    /// Like [`Self::node_ports`], with the ports that probes name.
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

    /// The kind with this name, if it owns pods. A kind between an owner and its pods is left out, such as the
    /// ReplicaSet of a Deployment.
    pub fn of(kind: &str) -> Option<Self> {
        [Self::DaemonSet, Self::Deployment, Self::StatefulSet].into_iter().find(|it| it.name() == kind)
    }

    /// The group of the kind in `apiVersion`.
    pub fn group(self) -> &'static str {
        match self {
            Self::DaemonSet | Self::Deployment | Self::StatefulSet | Self::ReplicaSet => "apps",
            Self::Job | Self::CronJob => "batch",
            Self::ReplicationController | Self::Pod => "",
        }
    }

    /// The path of the pods' spec in the object.
    pub fn pod_spec(self) -> &'static str {
        match self {
            Self::Pod => "spec",
            Self::CronJob => "spec.jobTemplate.spec.template.spec",
            _ => "spec.template.spec",
        }
    }

    /// Kubernetes' word for the kind.
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
