//! How much memory facts take, roughly: what the bounds of a LIST count.

use std::{mem::size_of, sync::Arc};

use crate::facts::{
    ContainerPort, Endpoint, EndpointPort, EndpointSlice, Node, NodeAddress, Pod, Service, ServicePort,
};

/// Something whose memory can be told.
pub(super) trait Memory {
    /// Bytes, on the heap and off it.
    fn memory(&self) -> usize;
}

impl<T: Memory> Memory for Arc<T> {
    fn memory(&self) -> usize {
        (**self).memory()
    }
}

impl Memory for Service {
    fn memory(&self) -> usize {
        let Self { ports, cluster_ips, external_ips, load_balancer_ips, namespace, name, .. } = self;
        let names: usize = ports.iter().map(|port| port.name.len()).sum();
        let addresses = cluster_ips.len() + external_ips.len() + load_balancer_ips.len();
        size_of::<Self>() + size_of_val::<[ServicePort]>(ports) + names + 17 * addresses + namespace.len() + name.len()
    }
}

impl Memory for EndpointSlice {
    fn memory(&self) -> usize {
        let Self { endpoints, ports, namespace, service, .. } = self;
        let of = |endpoint: &Endpoint| 17 * endpoint.addresses.len() + endpoint.node.as_ref().map_or(0, String::len);
        let endpoints = size_of_val::<[Endpoint]>(endpoints) + endpoints.iter().map(of).sum::<usize>();
        let names: usize = ports.iter().map(|port| port.name.len()).sum();
        size_of::<Self>() + endpoints + size_of_val::<[EndpointPort]>(ports) + names + namespace.len() + service.len()
    }
}

impl Memory for Pod {
    fn memory(&self) -> usize {
        let Self { ips, ports, namespace, name, .. } = self;
        size_of::<Self>() + 17 * ips.len() + size_of_val::<[ContainerPort]>(ports) + namespace.len() + name.len()
    }
}

impl Memory for Node {
    fn memory(&self) -> usize {
        size_of::<Self>() + size_of_val::<[NodeAddress]>(&self.addresses) + self.name.len()
    }
}
