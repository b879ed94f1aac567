//! What no look could have written into a snapshot. It comes from somebody else, and what is printed of it is typed.

use crate::facts::{ClusterFacts, Service, Snapshot, names, text};

/// The first thing in a snapshot that cannot be, in words: where it is, what it is, what was wanted.
pub(super) fn impossible(snapshot: &Snapshot) -> Option<String> {
    let ClusterFacts { services, endpoint_slices, pods, nodes, node_name, .. } = &snapshot.cluster;
    let service = services.seen().into_iter().flatten().find_map(|service| {
        label("the name of a Service", &service.name)
            .or_else(|| label("the namespace of a Service", &service.namespace))
            .or_else(|| port_zero(service))
    });
    let slice =
        || endpoint_slices.seen()?.iter().find_map(|it| label("the namespace of an EndpointSlice", &it.namespace));
    let pod = || {
        let named = |pod| subdomain("the name of a Pod", pod);
        pods.seen()?.iter().find_map(|it| named(&it.name).or_else(|| label("the namespace of a Pod", &it.namespace)))
    };
    let node = || nodes.seen()?.iter().find_map(|it| subdomain("the name of a Node", &it.name));
    let own = || subdomain("the name of this node", node_name.as_deref()?);
    service.or_else(slice).or_else(pod).or_else(node).or_else(own)
}

fn label(what: &str, name: &str) -> Option<String> {
    (!names::is_label(name)).then(|| format!("{what} is {:?}, wanted {}", shown(name), names::LABEL_WORDS))
}

fn subdomain(what: &str, name: &str) -> Option<String> {
    (!names::is_subdomain(name)).then(|| format!("{what} is {:?}, wanted {}", shown(name), names::SUBDOMAIN))
}

fn port_zero(service: &Service) -> Option<String> {
    let mut ports = service.ports.iter();
    let zero =
        ports.any(|port| port.port == 0 || port.node_port == Some(0)) || service.health_check_node_port == Some(0);
    zero.then(|| format!("Service {}/{} has the port 0, wanted 1 to 65535", service.namespace, service.name))
}

fn shown(name: &str) -> String {
    text::clean(name, text::NAME)
}
