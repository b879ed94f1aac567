//! hostPorts of this node's pods: redirections, as NodePorts are.

use std::{net::IpAddr, sync::Arc};

use crate::facts::{ContainerPort, Family, Pod, Snapshot};

/// Every hostPort of pods that run, or may run, on this node, with the pod and its port. The host's network has none:
/// there Kubernetes copies container ports into `hostPort`.
pub(super) fn host_ports<'a>(
    snapshot: &'a Snapshot,
    pods: &'a [Arc<Pod>],
) -> impl Iterator<Item = (&'a Pod, &'a ContainerPort, u16)> {
    let here =
        pods.iter().map(Arc::as_ref).filter(|pod| pod.node.as_deref().is_none_or(|node| node == snapshot.node_name()));
    here.filter(|pod| !pod.host_network && !pod.finished)
        .flat_map(|pod| pod.ports.iter().filter_map(move |port| Some((pod, port, port.host_port?))))
}

/// Whether a hostPort is for an address of the node: for each, unless a hostIP says which.
pub(super) fn covers(port: &ContainerPort, address: IpAddr) -> bool {
    port.host_ip.is_none_or(|ip| ip == address || ip.is_unspecified() && Family::of(ip) == Family::of(address))
}
