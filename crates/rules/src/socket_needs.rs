//! What a rule can need to know of sockets, and on which ports: each rule says it beside its title.

use std::sync::Arc;

use portreeve_dataplane::health_address;
use portreeve_facts::{
    ClusterFacts, ContainerPort, PROXY_HEALTH, PROXY_METRICS, Pod, PortRange, PortSet, Service, Unread, Workload,
};

/// What a rule needs to know of sockets, beyond which listeners there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketNeed {
    /// Which processes own the listeners on these ports.
    Owners(Ports),
    /// Which client sockets have one of these as their local port.
    Clients(Ports),
    /// What answers on every healthCheckNodePort.
    HealthCheckAnswers,
}

/// Ports that follow from the facts of the cluster.
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
    /// The hostPorts of pods on this node, or to come.
    HostPorts,
    /// The ports of hostNetwork pods on this node.
    HostNetworkPods,
    /// The same, of pods that are not ready, or to come; and those of which their containers said that they are in use.
    UnreadyHostNetworkPods,
    /// The ports of kube-proxy itself.
    Proxy,
}

/// The NodePort range; the default one where it is not known.
pub fn node_ports_or_default(cluster: &ClusterFacts) -> PortRange {
    cluster.node_port_range.known(Unread::Chooses).map_or(PortRange::DEFAULT_NODE_PORTS, |range| range.range)
}

impl Ports {
    /// These ports in that cluster.
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
            Self::UnreadyHostNetworkPods => {
                let blocked = pods(cluster, |pod| pod.host_network && !pod.ready);
                let ports = |pod: &'_ Pod| {
                    pod.ports.iter().chain(&pod.probed).chain(&pod.said_in_use).map(|it| it.port).collect()
                };
                blocked
                    .flat_map::<Vec<u16>, _>(ports)
                    .chain(wanted(cluster, |workload| workload.host_network))
                    .collect()
            }
            Self::Proxy => [PROXY_METRICS, PROXY_HEALTH].into_iter().chain(configured_health(cluster)).collect(),
        }
    }
}

/// The port of kube-proxy's health that the cluster's own configuration of it names.
fn configured_health(cluster: &ClusterFacts) -> Option<u16> {
    health_address(cluster.proxy_config.known(Unread::Chooses)?.healthz_bind_address.as_deref()?)
        .map(|address| address.port())
}

fn services(cluster: &ClusterFacts) -> impl Iterator<Item = &Service> {
    cluster.services.known_part(Unread::Chooses).iter().map(Arc::as_ref)
}

/// The ports of a node that pods of workloads will want.
fn wanted(cluster: &ClusterFacts, which: fn(&Workload) -> bool) -> impl Iterator<Item = u16> {
    let workloads = cluster.workloads.iter().map(Arc::as_ref).filter(move |workload| which(workload));
    workloads.flat_map(|workload| workload.node_ports().map(|(number, _)| number))
}

/// The ports of pods that run on this node.
fn container_ports(cluster: &ClusterFacts, which: fn(&Pod) -> bool) -> impl Iterator<Item = &ContainerPort> {
    pods(cluster, which).flat_map(|pod| &pod.ports)
}

/// The pods that run on this node.
fn pods(cluster: &ClusterFacts, which: fn(&Pod) -> bool) -> impl Iterator<Item = &Pod> {
    let pods = cluster.pods.known_part(Unread::Chooses).iter().map(Arc::as_ref);
    pods.filter(move |pod: &&Pod| !pod.finished && is_here(cluster, pod) && which(pod))
}

/// Pods of files may be anywhere; one whose node is not known counts.
fn is_here(cluster: &ClusterFacts, pod: &Pod) -> bool {
    match (&cluster.node_name, &pod.node) {
        (Some(here), Some(node)) => here == node,
        _ => true,
    }
}
