//! The ports that Services and Pods claim in the API server, on any node. No scan of a node is needed for these claims.

use std::sync::Arc;

use portreeve_facts::{Pod, Protocol, Service};

/// One object that claims a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Declaration {
    /// The protocol.
    pub protocol: Protocol,
    /// The field that has the port.
    pub field: DeclaredField,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The node of a pod. `None` for a pod without a node, and for a Service: a Service claims the port on each node.
    pub node: Option<String>,
}

/// The field by which an object claims a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeclaredField {
    /// `nodePort` of a Service.
    NodePort,
    /// `healthCheckNodePort` of a Service.
    HealthCheckNodePort,
    /// `hostPort` of a pod.
    HostPort,
    /// `containerPort` of a pod on the host's network.
    HostNetwork,
}

/// Every object that claims the port `number`: first Services, then pods.
pub fn declarations(services: &[Arc<Service>], pods: &[Arc<Pod>], number: u16) -> Vec<Declaration> {
    let of_services = services.iter().flat_map(|service| {
        service.numbers().filter(move |(its, _)| *its == number).map(move |(_, port)| Declaration {
            protocol: port.map_or(Protocol::Tcp, |port| port.protocol),
            field: port.map_or(DeclaredField::HealthCheckNodePort, |_| DeclaredField::NodePort),
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            node: None,
        })
    });
    let of_pods = pods.iter().filter(|pod| !pod.finished).flat_map(|pod| {
        let ports = pod.node_ports().filter(|(its, _)| *its == number);
        ports.map(|(_, port)| Declaration {
            protocol: port.protocol,
            field: if pod.host_network { DeclaredField::HostNetwork } else { DeclaredField::HostPort },
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            node: pod.node.clone(),
        })
    });
    let mut all: Vec<Declaration> = of_services.chain(of_pods).collect();
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::Snapshot;

    #[test]
    fn a_port_is_claimed_by_each_field_that_has_it() {
        let world = Snapshot::healthy()
            .service("web", |it| it.node_port(30080))
            .service("other", |it| it.node_port(30081))
            .pod("edge", |pod| pod.host_port(80, 30080))
            .pod("metal", |pod| {
                pod.host_network = true;
                pod.host_port(30080, 30080);
            })
            .pod("done", |pod| {
                pod.host_port(80, 30080);
                pod.finished = true;
            });
        let mut services = world.cluster.services.seen().expect("Services").clone();
        let health = Arc::make_mut(&mut services[1]);
        health.health_check_node_port = Some(30080);
        let pods = world.cluster.pods.seen().expect("pods");
        let found = declarations(&services, pods, 30080);
        let found: Vec<_> = found.iter().map(|it| (it.field, it.name.as_str(), it.node.is_some())).collect();
        let wanted = [
            (DeclaredField::NodePort, "web", false),
            (DeclaredField::HealthCheckNodePort, "other", false),
            (DeclaredField::HostPort, "edge", true),
            (DeclaredField::HostNetwork, "metal", true),
        ];
        assert_eq!(found, wanted);
        assert_eq!(declarations(&services, pods, 80), [], "a containerPort alone is none of a node");
    }
}
