//! How much memory facts take: with what they hold on the heap, as an allocator hands it out.

use std::{mem::size_of, sync::Arc};

use portreeve_facts::{
    Controller, EndpointSlice, Gap, Node, Pod, ProxyConfig, RangeClaim, Reading, Service, ServiceName, WaitingPod,
    Workload,
};

/// Something whose memory can be told.
pub(super) trait Memory {
    /// Bytes on the heap, itself left out.
    fn heap(&self) -> usize;
}

/// What an allocator takes for so many bytes.
pub(super) fn block(bytes: usize) -> usize {
    const OVERHEAD: usize = size_of::<usize>();
    if bytes == 0 { 0 } else { (bytes + OVERHEAD).next_multiple_of(16) }
}

impl Memory for String {
    fn heap(&self) -> usize {
        block(self.capacity())
    }
}

impl<T: Memory> Memory for Option<T> {
    fn heap(&self) -> usize {
        self.as_ref().map_or(0, Memory::heap)
    }
}

impl<T: Memory> Memory for Vec<T> {
    fn heap(&self) -> usize {
        flat(self) + self.iter().map(Memory::heap).sum::<usize>()
    }
}

impl<T: Memory> Memory for Arc<T> {
    /// With its two counters. What several share counts for each.
    fn heap(&self) -> usize {
        block(2 * size_of::<usize>() + size_of::<T>()) + (**self).heap()
    }
}

impl<A: Memory, B: Memory> Memory for (A, B) {
    fn heap(&self) -> usize {
        self.0.heap() + self.1.heap()
    }
}

/// A list of what holds nothing on the heap.
fn flat<T>(list: &Vec<T>) -> usize {
    block(list.capacity() * size_of::<T>())
}

impl Memory for Service {
    fn heap(&self) -> usize {
        let Self { namespace, name, uid, cluster_ips, families, external_ips, load_balancer_ips, proxy_name, .. } =
            self;
        let addresses = flat(cluster_ips) + flat(families) + flat(external_ips) + flat(load_balancer_ips);
        let ports = flat(&self.ports) + self.ports.iter().map(|port| port.name.heap()).sum::<usize>();
        namespace.heap() + name.heap() + uid.heap() + proxy_name.heap() + addresses + ports
    }
}

impl Memory for EndpointSlice {
    fn heap(&self) -> usize {
        let Self { namespace, service, ports, endpoints, family: _ } = self;
        let names: usize = ports.iter().map(|port| port.name.heap()).sum();
        let of_each = endpoints.iter().map(|it| flat(&it.addresses) + it.node.heap());
        namespace.heap() + service.heap() + flat(ports) + names + flat(endpoints) + of_each.sum::<usize>()
    }
}

impl Memory for Pod {
    fn heap(&self) -> usize {
        let Self { namespace, name, uid, config_hash, controller, service_lb_of, node, ips, ports, .. } = self;
        let names = namespace.heap() + name.heap() + uid.heap() + config_hash.heap() + node.heap();
        names + controller.heap() + service_lb_of.heap() + flat(ips) + flat(ports)
    }
}

impl Memory for WaitingPod {
    fn heap(&self) -> usize {
        let Self {
            namespace,
            name,
            uid,
            controller,
            service_lb_of,
            meant_for,
            ports,
            everywhere: _,
            rejected: _,
            since: _,
        } = self;
        let names = namespace.heap() + name.heap() + uid.heap() + meant_for.heap();
        names + controller.heap() + service_lb_of.heap() + flat(ports)
    }
}

impl Memory for Controller {
    fn heap(&self) -> usize {
        self.kind.heap() + self.name.heap()
    }
}

impl Memory for ServiceName {
    fn heap(&self) -> usize {
        self.namespace.heap() + self.name.heap()
    }
}

impl Memory for Workload {
    fn heap(&self) -> usize {
        let Self {
            namespace,
            name,
            selects,
            avoids,
            tolerates,
            ports,
            kind: _,
            replicas: _,
            keeps_old_pods: _,
            host_network: _,
        } = self;
        let nodes =
            [selects, avoids, tolerates].map(|texts| flat(texts) + texts.iter().map(String::heap).sum::<usize>());
        namespace.heap() + name.heap() + nodes.into_iter().sum::<usize>() + flat(ports)
    }
}

impl Memory for Node {
    fn heap(&self) -> usize {
        let Self { name, uid, addresses, kubelet_version, container_runtime, pod_families, .. } = self;
        let versions = kubelet_version.heap() + container_runtime.heap();
        name.heap() + uid.heap() + flat(addresses) + versions + flat(pod_families)
    }
}

impl Memory for Gap {
    fn heap(&self) -> usize {
        self.detail.heap()
    }
}

impl Memory for ProxyConfig {
    fn heap(&self) -> usize {
        let Self { place, mode, node_port_addresses, detect_local_mode, cluster_cidr, healthz_bind_address, .. } = self;
        let texts = [mode, detect_local_mode, cluster_cidr, healthz_bind_address];
        place.heap() + node_port_addresses.heap() + texts.into_iter().map(Memory::heap).sum::<usize>()
    }
}

impl Memory for RangeClaim {
    fn heap(&self) -> usize {
        let ranges = match &self.ranges {
            Reading::Seen(ranges) => flat(ranges),
            Reading::Gap(gap) => gap.heap(),
        };
        self.place.heap() + ranges
    }
}
