//! What the cluster makes us want to know of the node.

use std::{collections::BTreeSet, sync::Arc};

use crate::facts::{ClusterFacts, ContainerPort, Pod, PortRange, PortSet, Service, Wanted};

/// Ports of kube-proxy itself: `metricsBindAddress` and `healthzBindAddress`.
const PROXY_PORTS: [u16; 2] = [10249, 10256];

/// The ports whose sockets, holders and answers rules will ask for. No rule asks how many flows are masqueraded.
pub fn wanted(cluster: &ClusterFacts, command_lines: bool) -> Wanted {
    let services: Vec<&Service> = cluster.services.seen().into_iter().flatten().map(Arc::as_ref).collect();
    let pods: Vec<&Pod> = cluster
        .pods
        .seen()
        .into_iter()
        .flatten()
        .map(Arc::as_ref)
        .filter(|pod| !pod.finished && is_here(cluster, pod))
        .collect();
    let range = node_ports_of(cluster);

    let node_ports: PortSet =
        services.iter().flat_map(|service| &service.ports).filter_map(|port| port.node_port).collect();
    let health_checks: PortSet = services.iter().filter_map(|service| service.health_check_node_port).collect();
    let addressed: PortSet = services
        .iter()
        .filter(|service| !service.external_ips.is_empty() || !service.load_balancer_ips.is_empty())
        .flat_map(|service| service.ports.iter().map(|port| port.port))
        .collect();
    let both = node_ports.union(&health_checks).union(&addressed).union(&PROXY_PORTS.into_iter().collect());

    let on_host = |pod: &&&Pod| pod.host_network;
    let host_ports: PortSet = ports(pods.iter().copied()).filter_map(|port| port.host_port).collect();
    let of_host_network: PortSet = ports(pods.iter().filter(on_host).copied()).map(|port| port.port).collect();
    let not_ready: PortSet =
        ports(pods.iter().filter(on_host).filter(|pod| !pod.ready).copied()).map(|port| port.port).collect();

    Wanted {
        owner_ports: both.union(&range.into()).union(&host_ports).union(&of_host_network),
        client_ports: both.union(&not_ready),
        bound_on_purpose: false,
        masquerade_ports: PortSet::default(),
        health_check_ports: health_checks.iter().collect(),
        command_lines,
        spared: BTreeSet::new(),
    }
}

/// The NodePort range, the default one where it is not known.
pub(super) fn node_ports_of(cluster: &ClusterFacts) -> PortRange {
    cluster.node_port_range.seen().map_or(PortRange::DEFAULT_NODE_PORTS, |range| range.range)
}

/// Pods of files may be anywhere; one whose node is not known counts.
fn is_here(cluster: &ClusterFacts, pod: &Pod) -> bool {
    match (&cluster.node_name, &pod.node) {
        (Some(here), Some(node)) => here == node,
        _ => true,
    }
}

fn ports<'a>(pods: impl Iterator<Item = &'a Pod>) -> impl Iterator<Item = &'a ContainerPort> {
    pods.flat_map(|pod| &pod.ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Protocol, Snapshot};

    fn container_port(port: u16) -> ContainerPort {
        ContainerPort { port, host_port: None, host_ip: None, protocol: Protocol::Tcp }
    }

    #[test]
    fn every_port_a_rule_asks_for_is_wanted() {
        let world = Snapshot::healthy()
            .service("web", |it| it.node_port(40080).with(|service| service.health_check_node_port = Some(40081)))
            .service("vip", |it| it.external_ip("192.0.2.9"))
            .pod("bound", |pod| pod.host_port(80, 8080))
            .pod("down", |pod| {
                pod.host_network = true;
                pod.ready = false;
                pod.ports.push(container_port(9000));
            });
        let wanted = wanted(&world.cluster, false);
        for port in [30000, 32767, 40080, 40081, 6666, 8080, 9000, 10249, 10256] {
            assert!(wanted.owner_ports.contains(port), "{port}");
        }
        for port in [40080, 40081, 6666, 9000, 10249, 10256] {
            assert!(wanted.client_ports.contains(port), "{port}");
        }
        assert!(!wanted.client_ports.contains(30000), "a free NodePort is no client's concern");
        assert_eq!(wanted.health_check_ports, [40081]);
    }

    #[test]
    fn pods_of_other_nodes_and_finished_ones_are_left_out() {
        let world = Snapshot::healthy()
            .pod("far", |pod| {
                pod.node = Some("n2".to_owned());
                pod.host_port(80, 8080);
            })
            .pod("done", |pod| {
                pod.finished = true;
                pod.host_port(80, 8081);
            });
        let wanted = wanted(&world.cluster, false);
        assert!(!wanted.owner_ports.contains(8080) && !wanted.owner_ports.contains(8081));
    }
}
