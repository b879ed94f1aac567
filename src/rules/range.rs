//! The NodePort range: its bands, what is allocated in it, and where it meets the ephemeral range.

use std::{cmp::Reverse, collections::BTreeMap};

use super::holders::kubernetes_version;
use crate::facts::{Gap, NodePortRange, PortRange, PortSet, RangeSource, Service, ServicePort, Snapshot, Source, Why};

/// The static and the dynamic band (ServiceNodePortStaticSubrange, KEP-3668: on by default since Kubernetes 1.28).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bands {
    /// Preferred for ports that people write; nothing where the range is too small.
    pub(super) fixed: Option<PortRange>,
    /// Preferred for automatic choice.
    pub(super) dynamic: PortRange,
}

/// `size <= 16: none, else clamp(size / 32, 16, 128)`
/// (kubernetes pkg/registry/core/service/portallocator/allocator.go).
pub(super) fn bands(range: PortRange) -> Bands {
    let size = range.size();
    let offset = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
    let offset = u16::try_from(offset).expect("at most 128");
    if offset == 0 {
        return Bands { fixed: None, dynamic: range };
    }
    let first = range.first + offset;
    Bands {
        fixed: Some(PortRange { first: range.first, last: first - 1 }),
        dynamic: PortRange { first, last: range.last },
    }
}

/// The bands that this cluster has: none where it is known to be older than Kubernetes 1.28, by the newest kubelet.
/// No API server is older than its kubelets.
pub(super) fn bands_here(snapshot: &Snapshot, range: PortRange) -> Bands {
    let nodes = snapshot.cluster.nodes.seen().into_iter().flatten();
    let newest = nodes.filter_map(|node| kubernetes_version(node.kubelet_version.as_deref()?)).max();
    match newest {
        Some(version) if version < (1, 28, 0) => Bands { fixed: None, dynamic: range },
        _ => bands(range),
    }
}

/// The range where somebody said it.
///
/// # Errors
/// When it was not read, or is only assumed to be the default.
pub(super) fn known_range(snapshot: &Snapshot) -> Result<&NodePortRange, Gap> {
    let range = snapshot.cluster.node_port_range.get()?;
    if range.source == RangeSource::Assumed {
        let detail = "nobody said what the API server's NodePort range is; name it with --node-port-range";
        return Err(Gap::new(Source::NodePortRange, Why::Ambiguous, detail));
    }
    Ok(range)
}

/// Every allocated number, healthCheckNodePorts included, with one Service that has it.
pub(super) fn allocated(services: &[Service]) -> BTreeMap<u16, &Service> {
    let mut allocated = BTreeMap::new();
    for service in services {
        let ports = service.ports.iter().filter_map(|port| port.node_port).chain(service.health_check_node_port);
        for port in ports {
            allocated.entry(port).or_insert(service);
        }
    }
    allocated
}

/// Every nodePort of a Service that this node's proxy serves, with its Service and port.
pub(super) fn served(services: &[Service]) -> impl Iterator<Item = (&Service, &ServicePort, u16)> {
    services
        .iter()
        .filter(|service| service.proxy_name.is_none())
        .flat_map(|service| service.ports.iter().filter_map(move |port| Some((service, port, port.node_port?))))
}

/// The Service with most nodePorts, `default/many with 1025`, for evidence.
pub(super) fn most_ports_in_words(services: &[Service]) -> String {
    let count = |service: &Service| service.ports.iter().filter(|port| port.node_port.is_some()).count();
    let most = services.iter().max_by_key(|service| (count(service), Reverse((&service.namespace, &service.name))));
    most.map_or_else(
        || "no Service has one".to_owned(),
        |service| format!("{}/{} with {}", service.namespace, service.name, count(service)),
    )
}

/// The ports the kernel may choose by itself: the ephemeral range minus the reserved ports.
///
/// # Errors
/// When either sysctl was not read.
pub(super) fn effective_ephemeral(snapshot: &Snapshot) -> Result<PortSet, Gap> {
    let range = *snapshot.kernel.sysctls.ip_local_port_range.get()?;
    let reserved = snapshot.kernel.sysctls.ip_local_reserved_ports.get()?;
    Ok(PortSet::from(range).minus(reserved))
}

/// `30000-32767 (kube-apiserver /flagz)`, for evidence.
pub(super) fn range_in_words(range: &NodePortRange) -> String {
    format!("{} ({})", range.range, range.place)
}

/// A port that a Service could have instead: free in the API, unbound here, not an ephemeral port, the static band
/// first.
pub(super) fn spare_port(snapshot: &Snapshot) -> Option<u16> {
    let range = snapshot.cluster.node_port_range.seen()?.range;
    let allocated = allocated(snapshot.cluster.services.seen()?);
    let bound: PortSet = snapshot.kernel.listeners.seen()?.iter().map(|socket| socket.local_port).collect();
    let ephemeral = effective_ephemeral(snapshot).unwrap_or_default();
    range.iter().find(|port| !allocated.contains_key(port) && !bound.contains(*port) && !ephemeral.contains(*port))
}

/// The command that moves a Service port to another nodePort.
pub(super) fn move_service(snapshot: &Snapshot, service: &Service, port: &ServicePort) -> String {
    move_service_to(spare_port(snapshot), service, port)
}

/// The same with a spare port that was looked for once: looking takes a walk over all Services.
pub(super) fn move_service_to(spare: Option<u16>, service: &Service, port: &ServicePort) -> String {
    let index = service.ports.iter().position(|it| std::ptr::eq(it, port)).unwrap_or(0);
    match spare {
        Some(spare) => format!(
            "kubectl -n {} patch service {} --type=json -p '[{{\"op\":\"replace\",\"path\":\"/spec/ports/{index}/nodePort\",\"value\":{spare}}}]'",
            service.namespace, service.name
        ),
        None => format!(
            "give Service {}/{} another nodePort: `kubectl -n {0} edit service {1}`",
            service.namespace, service.name
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::healthy::seen;

    #[test]
    fn the_bands_are_those_of_the_api_server() {
        for (range, fixed, dynamic) in [
            ("30000-30015", None, "30000-30015"),
            ("30000-30016", Some("30000-30015"), "30016"),
            ("30000-30127", Some("30000-30015"), "30016-30127"),
            ("30000-30511", Some("30000-30015"), "30016-30511"),
            ("30000-32767", Some("30000-30085"), "30086-32767"),
            ("30000-34095", Some("30000-30127"), "30128-34095"),
            ("0-65535", Some("0-127"), "128-65535"),
        ] {
            let told = bands(range.parse().expect("a range"));
            assert_eq!(told.fixed, fixed.map(|it: &str| it.parse().expect("a range")), "{range}");
            assert_eq!(told.dynamic, dynamic.parse().expect("a range"), "{range}");
        }
    }

    #[test]
    fn a_cluster_known_to_be_older_than_1_28_has_no_bands() {
        let mut world = Snapshot::healthy();
        let range = PortRange::DEFAULT_NODE_PORTS;
        assert_eq!(bands_here(&world, range), bands(range));
        for node in seen(&mut world.cluster.nodes) {
            node.kubelet_version = Some("v1.27.16".to_owned());
        }
        assert_eq!(bands_here(&world, range), Bands { fixed: None, dynamic: range });
        seen(&mut world.cluster.nodes)[1].kubelet_version = Some("v1.28.0-eks-1".to_owned());
        assert_eq!(bands_here(&world, range), bands(range));
    }
}
