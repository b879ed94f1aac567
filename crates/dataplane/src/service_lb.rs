//! The destinations of ServiceLB, the load balancer of k3s and RKE2. ServiceLB makes pods with a Service's ports as
//! hostPorts. These pods forward the connections (k3s `pkg/cloudprovider/servicelb.go`, klipper-lb).

use std::sync::Arc;

use super::served::{host_ports, service_port};
use portreeve_facts::{ContainerPort, Pod, Service, ServicePort, Snapshot, Unread};

/// The destination of connections to a hostPort of a ServiceLB pod, in words. `None` for other pods.
pub(super) fn sent_on(snapshot: &Snapshot, pod: &Pod, host: &ContainerPort) -> Option<String> {
    let name = pod.service_lb_of.as_ref()?;
    let mut services = snapshot.cluster.services.known_part(Unread::Adds).iter().map(Arc::as_ref);
    let service = services.find(|it| (&it.namespace, &it.name) == (&name.namespace, &name.name))?;
    let port = service.ports.iter().find(|it| it.protocol == host.protocol && Some(it.port) == host.host_port)?;
    let name = service_port(service, &port.name);
    Some(match port.node_port.filter(|_| service.external_local) {
        Some(node_port) => format!(
            "ServiceLB forwards connections to nodePort {node_port} of this node, for Service {name}: `owner {node_port}` prints who answers on that nodePort"
        ),
        None => format!("ServiceLB forwards connections to the cluster IP of Service {name}"),
    })
}

/// The hostPort on this node whose connections ServiceLB sends to a Service's NodePort. ServiceLB uses the NodePort
/// only if externalTrafficPolicy is Local.
pub fn sent_to_node_port(snapshot: &Snapshot, service: &Service, port: &ServicePort) -> Option<u16> {
    let pods = snapshot.cluster.pods.known_part(Unread::Adds);
    let is_its = |pod: &Pod| {
        pod.service_lb_of.as_ref().is_some_and(|it| (&it.namespace, &it.name) == (&service.namespace, &service.name))
    };
    let mut numbers = host_ports(snapshot, pods)
        .filter(|(pod, host, number)| is_its(pod) && (host.protocol, *number) == (port.protocol, port.port));
    numbers.next().map(|(.., number)| number).filter(|_| service.external_local && port.node_port.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{ServiceName, healthy::World};

    /// The results of `sent_on` for hostPort 80, and of `sent_to_node_port` for the Service's port.
    fn told(change: impl FnOnce(World) -> World) -> (Option<String>, Option<u16>) {
        let world = Snapshot::healthy().service("web", |it| change(it.node_port(30080))).pod("svclb", |pod| {
            pod.host_port(80, 80);
            pod.service_lb_of = Some(ServiceName { namespace: "default".to_owned(), name: "web".to_owned() });
        });
        let (pod, service) =
            (&world.cluster.pods.seen().expect("pods")[0], &world.cluster.services.seen().expect("Services"));
        let service = service.iter().find(|it| it.name == "web").expect("it is there");
        (sent_on(&world, pod, &pod.ports[0]), sent_to_node_port(&world, service, &service.ports[0]))
    }

    #[test]
    fn a_local_policy_leads_to_the_node_port_and_any_other_to_the_cluster_ip() {
        let (words, port) = told(|it| it);
        assert!(words.is_some_and(|it| it.contains("cluster IP of Service default/web")));
        assert_eq!(port, None);
        let (words, port) = told(World::local);
        assert!(words.is_some_and(|it| it.contains("to nodePort 30080 of this node")));
        assert_eq!(port, Some(80));
    }

    #[test]
    fn another_port_of_the_service_and_other_pods_lead_nowhere() {
        let other = |it: World| it.local().with(|service| service.ports[0].port = 8080);
        assert_eq!(told(other), (None, None));
        let world =
            Snapshot::healthy().service("web", |it| it.node_port(30080).local()).pod("edge", |it| it.host_port(80, 80));
        let pod = &world.cluster.pods.seen().expect("pods")[0];
        assert_eq!(sent_on(&world, pod, &pod.ports[0]), None);
    }
}
