//! Pods, with the fields that rules use.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{PortRange, PortSet, Protocol, Reading, Source};

/// `core/v1` Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: Option<String>,
    /// `metadata.annotations["kubernetes.io/config.hash"]`. In the control group of a static pod, this text is the uid.
    /// `None` if this Pod does not mirror a static pod, because then any user could have written the text.
    pub config_hash: Option<String>,
    /// The entry of `metadata.ownerReferences` that is the pod's controller.
    #[serde(default)]
    pub controller: Option<Controller>,
    /// The Service of type LoadBalancer for which ServiceLB of k3s or RKE2 made the pod.
    #[serde(default)]
    pub service_lb_of: Option<ServiceName>,
    /// `metadata.deletionTimestamp`: the time by which the pod must end.
    #[serde(default)]
    pub ends: Option<Timestamp>,
    /// `spec.nodeName`.
    pub node: Option<String>,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// Whether `status.phase` is `Succeeded` or `Failed`.
    pub finished: bool,
    /// Whether the condition `Ready` is true.
    pub ready: bool,
    /// Whether any container runs, according to `status.containerStatuses` and `initContainerStatuses`. Init containers
    /// count, because some run as long as the pod. `None` if the pod has no container status.
    #[serde(default)]
    pub running: Option<bool>,
    /// Whether the pod has a container that is not ready and that ended with an error, now or in its last run.
    #[serde(default)]
    pub failing: bool,
    /// The time from which all [`failing`](Self::failing) containers have been running again. `None` if a failing
    /// container does not run now.
    #[serde(default)]
    pub restarted: Option<Timestamp>,
    /// `lastTransitionTime` of the condition `PodScheduled`: the time at which the pod got a Node.
    #[serde(default)]
    pub scheduled: Option<Timestamp>,
    /// `status.podIPs`.
    pub ips: Vec<IpAddr>,
    /// The entries of `spec.containers[].ports` that are ports of the node: hostPorts, and ports of a pod in the host
    /// network.
    pub ports: Vec<ContainerPort>,
    /// For a pod in the host network, the port numbers of its probes that no container declares.
    #[serde(default)]
    pub probed: Vec<ContainerPort>,
    /// The ports that containers declare and the port numbers of probes, for a [`failing`](Self::failing) pod in its
    /// own network. The list is empty for other pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_ports: Vec<ContainerPort>,
    /// The pod's containers that have an id, if the pod has several containers. The list is empty unless the pod is
    /// [`failing`](Self::failing), or is in the host network and not ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerPorts>,
    /// At most four addresses that containers reported as *in use* in their last messages. The list is empty unless the
    /// pod is [`failing`](Self::failing) and in the host network. Any program can write such a message, so the
    /// addresses are only a hint.
    #[serde(default, alias = "said_in_use", skip_serializing_if = "Vec::is_empty")]
    pub reported_in_use: Vec<ContainerPort>,
    /// Whether the pod has the annotation `k8s.v1.cni.cncf.io/networks`. A pod with this annotation may have addresses
    /// of Multus that the pod's status does not list.
    #[serde(default)]
    pub more_networks: bool,
    /// `securityContext.sysctls["net.ipv4.ip_local_port_range"]`. `None` if the sysctl is not set or cannot be parsed.
    pub ip_local_port_range: Option<PortRange>,
    /// `securityContext.sysctls["net.ipv4.ip_local_reserved_ports"]`. `None` if the sysctl is not set or cannot be
    /// parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_local_reserved_ports: Option<PortSet>,
}

impl Pod {
    /// Whether the pod runs or may run on this Node. False for a Pod of the API server without a `nodeName`, because
    /// this Pod waits for the scheduler. True for a Pod of a manifest without a `nodeName`, because this Pod may run on
    /// any Node.
    pub fn may_be_on(&self, node: &str) -> bool {
        self.node.as_deref().map_or(self.uid.is_none(), |its| its == node)
    }

    /// Whether the pod has its network, according to its status. A pod from a manifest has no status, and is treated as
    /// a pod with a network.
    pub fn has_begun(&self) -> bool {
        self.ready || !self.ips.is_empty() || self.uid.is_none()
    }

    /// Whether `name` is the `namespace/name` of this pod.
    pub fn is_named(&self, name: &str) -> bool {
        name.split_once('/') == Some((&self.namespace, &self.name))
    }

    /// The ephemeral ports in the pod's own network namespace, according to the pod's specification. If the
    /// specification does not set the range, this is the kernel's default range.
    pub fn ephemeral_ports(&self) -> PortSet {
        let range = self.ip_local_port_range.unwrap_or(PortRange::DEFAULT_EPHEMERAL);
        self.ip_local_reserved_ports.as_ref().map_or(range.into(), |reserved| PortSet::from(range).minus(reserved))
    }

    /// The uids that may be in the paths of the containers' control groups.
    pub fn uids_of_cgroups(&self) -> impl Iterator<Item = &str> {
        [&self.uid, &self.config_hash].into_iter().flatten().map(String::as_str)
    }

    /// Whether the container with this id needs a port, according to its declared ports and its probes. `None` if
    /// [`containers`](Self::containers) does not contain the id, for example if the container was removed.
    pub fn container_needs(&self, id: &str, port: u16) -> Option<bool> {
        self.containers.iter().find(|it| it.id == id).map(|it| it.ports.contains(&port))
    }

    /// A container's report that a port is in use, for example `0.0.0.0:9100 is in use`. The report is only a hint.
    pub fn reported_use_of(&self, protocol: Protocol, port: u16) -> Option<String> {
        let reported = self.reported_in_use.iter().find(|it| (it.protocol, it.port) == (protocol, port))?;
        let at = reported.host_ip.map_or_else(|| format!("*:{port}"), |ip| SocketAddr::new(ip, port).to_string());
        Some(format!("{at}/{protocol} is in use"))
    }

    /// The ports of the node that the pod needs. The first value of each pair is the port's number on the node.
    pub fn node_ports(&self) -> impl Iterator<Item = (u16, &ContainerPort)> {
        node_ports(&self.ports, self.host_network)
    }

    /// The ports of [`Self::node_ports`], and then the ports of probes.
    pub fn needed_ports(&self) -> impl Iterator<Item = (u16, &ContainerPort)> {
        self.node_ports().chain(self.probed.iter().map(|port| (port.port, port)))
    }
}

/// The ports of the node that containers need. The first value of each pair is the port's number on the node.
pub(super) fn node_ports(ports: &[ContainerPort], host_network: bool) -> impl Iterator<Item = (u16, &ContainerPort)> {
    let own = move |port: &ContainerPort| host_network.then_some(port.port);
    ports.iter().filter_map(move |port| Some((port.host_port.or(own(port))?, port)))
}

/// A container of a pod, and the ports that the container needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerPorts {
    /// `status.containerStatuses[].containerID` without the name of the runtime. The path of the container's control
    /// group contains this id.
    pub id: String,
    /// The ports that the container declares, and the port numbers of its probes.
    pub ports: Vec<u16>,
}

/// One entry of a container's `ports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerPort {
    /// `containerPort`.
    pub port: u16,
    /// `hostPort`.
    pub host_port: Option<u16>,
    /// `hostIP`.
    pub host_ip: Option<IpAddr>,
    /// `protocol`.
    pub protocol: Protocol,
}

/// The controller that made a Pod. If the Pod is deleted, the controller makes a new Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Controller {
    /// `kind`, e.g. `DaemonSet`.
    pub kind: String,
    /// `name`. The controller is in the namespace of the Pod.
    pub name: String,
}

impl Controller {
    /// Whether the controller is a Node. A pod with a Node as its controller is static: the kubelet made the pod from a
    /// file (kubernetes pkg/kubelet/pod/mirror_client.go).
    pub fn is_node(&self) -> bool {
        self.kind == "Node"
    }
}

/// The name of a Service, from a label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServiceName {
    /// The Service's namespace.
    pub namespace: String,
    /// The Service's name.
    pub name: String,
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Pod that cannot start because of its ports. The scheduler found no Node with free ports, or the kubelet of the
/// Pod's Node refused the Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingPod {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: Option<String>,
    /// The controller, as in [`Pod::controller`].
    pub controller: Option<Controller>,
    /// The Service, as in [`Pod::service_lb_of`].
    pub service_lb_of: Option<ServiceName>,
    /// The only Node on which the Pod can run. `None` if several Nodes are possible. The Node comes from `nodeName`,
    /// the scheduler's nomination, a node affinity (as in Pods of a DaemonSet), or the host name in a node selector.
    pub meant_for: Option<String>,
    /// Whether the scheduler reports that the ports are in use on every Node. If the value is false, this Node may
    /// refuse the Pod for another reason.
    #[serde(default)]
    pub everywhere: bool,
    /// Whether the kubelet refused the Pod. The kubelet does not start a refused Pod later.
    #[serde(default)]
    pub rejected: bool,
    /// The ports that the scheduler compares. Each port has a `host_port`.
    pub ports: Vec<ContainerPort>,
    /// The time at which the Pod began to wait: `lastTransitionTime` of the condition `PodScheduled`, or
    /// `status.startTime` if the kubelet refused the Pod.
    pub since: Option<Timestamp>,
}

impl WaitingPod {
    /// Whether the Pod may run on this Node. If the Pod selects a host name, the host name may be the first part of the
    /// Node's name.
    pub fn may_be_on(&self, node: &str) -> bool {
        let meant_for = self.meant_for.as_deref();
        meant_for.is_none_or(|it| it == node || node.strip_prefix(it).is_some_and(|rest| rest.starts_with('.')))
    }

    /// The value if waiting Pods were not requested. Older snapshots, which have no waiting Pods, also get this value.
    pub fn not_requested() -> Reading<Vec<Arc<Self>>> {
        Reading::not_requested(Source::WaitingPods, "Pods without a Node were not requested")
    }
}
