//! The NodePorts and hostPorts that this node serves.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use portreeve_facts::{ContainerPort, Family, Gap, Pod, Service, ServicePort, Snapshot, Source, Why};

/// The nodePorts of all Services that this node's proxy serves, each with its Service and port.
pub fn served_node_ports<'a>(
    snapshot: &Snapshot,
    services: &'a [Arc<Service>],
) -> impl Iterator<Item = (&'a Service, &'a ServicePort, u16)> {
    let served = services.iter().map(Arc::as_ref).filter(|service| snapshot.proxy_serves(service));
    served.flat_map(|service| service.ports.iter().filter_map(move |port| Some((service, port, port.node_port?))))
}

/// Each Service once, because a file may contain a Service twice.
pub fn each_service<'a>(services: impl Iterator<Item = &'a Service>) -> impl Iterator<Item = &'a Service> {
    let mut known = HashSet::new();
    services.filter(move |service| known.insert((&*service.namespace, &*service.name)))
}

/// Every hostPort of pods that run, or may run, on this node, with the pod and its port. Pods on the host's network are
/// left out, because Kubernetes copies their container ports into `hostPort`.
pub fn host_ports<'a>(
    snapshot: &'a Snapshot,
    pods: &'a [Arc<Pod>],
) -> impl Iterator<Item = (&'a Pod, &'a ContainerPort, u16)> {
    let pods = own_network_pods(snapshot, pods).filter(|pod| !pod.finished);
    pods.flat_map(|pod| pod.ports.iter().filter_map(move |port| Some((pod, port, port.host_port?))))
}

/// The pods of this node that have addresses of their own.
pub fn own_network_pods<'a>(snapshot: &'a Snapshot, pods: &'a [Arc<Pod>]) -> impl Iterator<Item = &'a Pod> {
    pods.iter().map(Arc::as_ref).filter(|pod| pod.may_be_on(snapshot.node_name()) && !pod.host_network)
}

/// Whether a hostPort is for an address of the node. A hostPort without a `hostIP` is for every address.
pub fn covers(port: &ContainerPort, address: IpAddr) -> bool {
    port.host_ip.is_none_or(|ip| ip == address || ip.is_unspecified() && Family::of(ip) == Family::of(address))
}

/// Whether a pod has an address of a family, or has no address yet and may get one.
pub fn may_have(pod: &Pod, family: Family) -> bool {
    pod.ips.is_empty() || pod.ips.iter().any(|ip| Family::of(*ip) == family)
}

/// The reason why it is unknown whether this node already redirects connections to a pod's hostPorts. A kubelet reports
/// the pod's address later than the network plugin adds the redirections.
pub fn unsettled(snapshot: &Snapshot, pod: &Pod) -> Option<Gap> {
    let Pod { namespace, name, .. } = pod;
    if let Some(gap) = snapshot.cluster.unknown_node().filter(|_| pod.node.is_some()) {
        let detail = format!("pod {namespace}/{name} may be on this node: {}", gap.detail);
        return Some(Gap::new(gap.source, gap.why, detail));
    }
    let words = || format!("pod {namespace}/{name} has no address yet: its hostPort may redirect connections");
    (!pod.has_begun()).then(|| Gap::new(Source::Pods, Why::Ambiguous, words()))
}

/// `default/web port http`. If the port has no name, only `default/web`.
pub fn service_port(service: &Service, name: &str) -> String {
    let mut words = format!("{}/{}", service.namespace, service.name);
    if !name.is_empty() {
        words.push_str(&format!(" port {name}"));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::healthy::seen;

    #[test]
    fn a_copy_is_left_out_and_a_namesake_is_not() {
        let mut world = Snapshot::healthy()
            .service("web", |it| it.node_port(30080))
            .service("web", |it| it.node_port(30081))
            .service("web", |it| it.with(|service| service.namespace = "shop".to_owned()));
        let ports = each_service(seen(&mut world.cluster.services).iter().map(Arc::as_ref))
            .map(|service| service.ports[0].node_port);
        assert_eq!(ports.collect::<Vec<_>>(), [Some(30080), None]);
    }
}
