//! The facts about sockets that a rule needs, with the ports of the sockets. Each rule lists these facts in its `RULE`.

use std::sync::Arc;

use portreeve_dataplane::health_address;
use portreeve_facts::{
    ClusterFacts, ContainerPort, PROXY_HEALTH, PROXY_METRICS, Pod, PortRange, PortSet, Service, Unread, Workload,
};

/// Facts about sockets that a rule needs in addition to the list of listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketNeed {
    /// The processes that own the listeners on these ports.
    Owners(Ports),
    /// The client sockets with one of these local ports.
    Clients(Ports),
    /// The answers on all healthCheckNodePorts.
    HealthCheckAnswers,
}

/// Ports that Portreeve finds in the facts of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// The NodePorts of Services.
    NodePorts,
    /// The healthCheckNodePorts of Services.
    HealthCheckNodePorts,
    /// The whole NodePort range, in use or not.
    NodePortRange,
    /// The ports of Services that have external IPs or load balancer addresses.
    ExternalIps,
    /// The hostPorts of pods on this node, and of pods that workloads will make.
    HostPorts,
    /// The ports of hostNetwork pods on this node.
    HostNetworkPods,
    /// The ports of hostNetwork pods that are not ready or do not exist yet, and ports that a container reported as in
    /// use.
    UnreadyHostNetworkPods,
    /// The ports of kube-proxy itself.
    Proxy,
}

/// The NodePort range. If the range is not known, the default range.
pub fn node_ports_or_default(cluster: &ClusterFacts) -> PortRange {
    cluster.node_port_range.known(Unread::Chooses).map_or(PortRange::DEFAULT_NODE_PORTS, |range| range.range)
}

impl Ports {
    pub(super) fn of(self, cluster: &ClusterFacts) -> PortSet {
        match self {
            Self::NodePorts => {
                services(cluster).flat_map(|service| &service.ports).filter_map(|port| port.node_port).collect()
            }
            Self::HealthCheckNodePorts => {
                services(cluster).filter_map(|service| service.health_check_node_port).collect()
            }
            Self::NodePortRange => node_ports_or_default(cluster).into(),
            Self::ExternalIps => services(cluster)
                .filter(|service| !service.external_ips.is_empty() || !service.load_balancer_ips.is_empty())
                .flat_map(|service| service.ports.iter().map(|port| port.port))
                .collect(),
            Self::HostPorts => {
                let to_come = wanted(cluster, |workload| !workload.host_network);
                container_ports(cluster, |_| true).filter_map(|port| port.host_port).chain(to_come).collect()
            }
            Self::HostNetworkPods => container_ports(cluster, |pod| pod.host_network).map(|port| port.port).collect(),
            Self::UnreadyHostNetworkPods => pods(cluster, |pod| pod.host_network && !pod.ready)
                .flat_map(|pod| pod.ports.iter().chain(&pod.probed).chain(&pod.reported_in_use))
                .map(|port| port.port)
                .chain(wanted(cluster, |workload| workload.host_network))
                .collect(),
            Self::Proxy => [PROXY_METRICS, configured_health(cluster).unwrap_or(PROXY_HEALTH)].into_iter().collect(),
        }
    }
}

fn configured_health(cluster: &ClusterFacts) -> Option<u16> {
    health_address(cluster.proxy_config.known(Unread::Chooses)?.healthz_bind_address.as_deref()?)
        .map(|address| address.port())
}

fn services(cluster: &ClusterFacts) -> impl Iterator<Item = &Service> {
    cluster.services.known_part(Unread::Chooses).iter().map(Arc::as_ref)
}

fn wanted(cluster: &ClusterFacts, which: fn(&Workload) -> bool) -> impl Iterator<Item = u16> {
    let workloads = cluster.workloads.iter().map(Arc::as_ref).filter(move |workload| which(workload));
    workloads.flat_map(|workload| workload.node_ports().map(|(number, _)| number))
}

fn container_ports(cluster: &ClusterFacts, which: fn(&Pod) -> bool) -> impl Iterator<Item = &ContainerPort> {
    pods(cluster, which).flat_map(|pod| &pod.ports)
}

fn pods(cluster: &ClusterFacts, which: fn(&Pod) -> bool) -> impl Iterator<Item = &Pod> {
    let pods = cluster.pods.known_part(Unread::Chooses).iter().map(Arc::as_ref);
    pods.filter(move |pod: &&Pod| !pod.finished && is_here(cluster, pod) && which(pod))
}

/// Whether a pod may be on this node. True if the pod's node is not known, for example for a pod from a file.
fn is_here(cluster: &ClusterFacts, pod: &Pod) -> bool {
    match (&cluster.node_name, &pod.node) {
        (Some(here), Some(node)) => here == node,
        _ => true,
    }
}
