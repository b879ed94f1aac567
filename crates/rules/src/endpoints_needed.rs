//! Chooses the Services of which rules need the endpoints. Portreeve does not read the endpoints of other Services.

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
};

use portreeve_dataplane::{ExternalAddress, Port, host_ports, served_node_ports};
use portreeve_facts::{API_SERVER, Service, Snapshot, Unread};

/// The names of the Services of which rules need the endpoints in this scan:
/// - Services with a NodePort that is also the port of a listener, a hostPort or a redirection.
/// - Services with a Node's address as external address, and with a port in use.
/// - The Service of the API server, if the device of an ipvs proxy may have the Service's address.
pub fn endpoints_needed(snapshot: &Snapshot) -> BTreeSet<String> {
    let Snapshot { kernel, cluster, .. } = snapshot;
    let services = cluster.services.known_part(Unread::Chooses);
    let links = || kernel.interfaces.known(Unread::Chooses).into_iter().flat_map(|it| &it.addresses);
    let of_nodes = cluster.nodes.known_part(Unread::Chooses).iter().flat_map(|node| &node.addresses);
    let addresses: HashSet<IpAddr> = links().map(|it| it.ip).chain(of_nodes.map(|it| it.ip)).collect();

    let node_ports: Vec<(&Service, Port)> = served_node_ports(snapshot, services)
        .map(|(service, port, number)| (service, (port.protocol, number)))
        .collect();
    let claiming =
        services.iter().filter(|it| ExternalAddress::of(snapshot, it).any(|claim| addresses.contains(&claim.ip)));
    let claims: Vec<(&Service, Port)> = claiming
        .flat_map(|service| service.ports.iter().map(|port| (service.as_ref(), (port.protocol, port.port))))
        .collect();
    let listeners =
        kernel.listeners.known_part(Unread::Chooses).iter().map(|socket| (socket.protocol, socket.local_port));
    let pods = cluster.pods.known_part(Unread::Chooses);
    let host_ports = host_ports(snapshot, pods).map(|(_, port, number)| (port.protocol, number));
    let netfilter = kernel.netfilter.known(Unread::Chooses).into_iter();
    let redirections = netfilter.flat_map(|it| it.redirections.known_part(Unread::Chooses));
    let redirected = redirections.map(|it| (it.protocol, it.port));
    let taken: HashSet<Port> = listeners.chain(host_ports).chain(redirected).collect();

    let mut names: BTreeSet<String> = BTreeSet::new();
    for (some, others) in [(&node_ports, &claims), (&claims, &node_ports)] {
        let others: HashSet<Port> = others.iter().map(|(_, port)| *port).collect();
        let met = some.iter().filter(|(_, port)| taken.contains(port) || others.contains(port));
        names.extend(met.map(|(service, _)| service.name.clone()));
    }

    let cluster_ips: HashSet<&IpAddr> = services.iter().flat_map(|service| &service.cluster_ips).collect();
    if links().any(|address| address.is_ipvs() && !cluster_ips.contains(&address.ip)) {
        names.insert(API_SERVER.1.to_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{Netfilter, Protocol, Reading, Redirection, healthy::PEER};

    fn world() -> Snapshot {
        Snapshot::healthy()
            .service("web", |it| it.node_port(30080))
            .service("trap", |it| it.external_ip(PEER))
            .service("inner", |it| it)
    }

    #[track_caller]
    fn expect(snapshot: &Snapshot, names: &[&str]) {
        assert_eq!(endpoints_needed(snapshot).iter().map(String::as_str).collect::<Vec<_>>(), names);
    }

    #[test]
    fn none_as_long_as_nothing_is_on_their_ports() {
        expect(&world(), &[]);
        expect(&world().listens("0.0.0.0:30081").listens_udp("0.0.0.0:30080"), &[]);
        expect(&world().service("far", |it| it.external_ip("203.0.113.99")).listens("0.0.0.0:6666"), &["trap"]);
    }

    #[test]
    fn a_listener_a_host_port_and_a_redirection_on_a_node_port_concern_its_service() {
        expect(&world().listens("127.0.0.1:30080"), &["web"]);
        expect(&world().pod("edge", |pod| pod.host_port(80, 30080)), &["web"]);
        let redirection = Redirection {
            protocol: Protocol::Tcp,
            port: 30080,
            ip: None,
            to: [10, 1, 0, 7].into(),
            to_port: 80,
            chain: "ip nat CNI-DN-gone".to_owned(),
            handle: 7,
        };
        let mut world = world();
        let redirections = Reading::Seen(vec![redirection]);
        world.kernel.netfilter = Reading::Seen(Netfilter { redirections, ..Netfilter::default() });
        expect(&world, &["web"]);
    }

    #[test]
    fn an_address_of_a_node_concerns_both_who_takes_it_and_who_has_the_port() {
        let world = world().service("taker", |it| it.external_ip(PEER).with(|service| service.ports[0].port = 30080));
        expect(&world, &["taker", "web"]);
    }

    #[test]
    fn what_an_ipvs_proxy_holds_may_be_the_api_servers_unless_it_is_a_cluster_ip() {
        let cluster_ip = |service: &mut Service| service.cluster_ips = vec![[10, 96, 0, 10].into()];
        let world = world().service("dns", |it| it.with(cluster_ip)).address("kube-ipvs0", "10.96.0.10");
        expect(&world, &[]);
        expect(&world.address("kube-ipvs0", "198.51.100.6"), &["kubernetes"]);
    }
}
