//! The facts about sockets that all rules together need. Portreeve reads no more facts about sockets from the kernel.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    RULES,
    socket_needs::{Ports, SocketNeed},
};
use portreeve_facts::{ClusterFacts, Mode, NodeQuery, Pod, PodQuery, PortSet, Unread};

/// The facts about the node that all rules together need. The number of masqueraded flows is not needed.
pub fn node_query(cluster: &ClusterFacts, command_lines: bool) -> NodeQuery {
    let (mut owner_ports, mut client_ports, mut health_check_ports) =
        (PortSet::default(), PortSet::default(), PortSet::default());
    for need in RULES.iter().flat_map(|rule| rule.socket_needs) {
        match need {
            SocketNeed::Owners(ports) => owner_ports = owner_ports.union(&ports.of(cluster)),
            SocketNeed::Clients(ports) => client_ports = client_ports.union(&ports.of(cluster)),
            SocketNeed::HealthCheckAnswers => health_check_ports = Ports::HealthCheckNodePorts.of(cluster),
        }
    }
    // Cilium has no server on kube-proxy's ports.
    let is_cilium =
        cluster.proxy_config.known(Unread::Chooses).is_some_and(|it| it.mode_if_known() == Some(Mode::Cilium));
    let contested = [Ports::UnreadyHostNetworkPods, Ports::HealthCheckNodePorts];
    let contested = contested.into_iter().chain((!is_cilium).then_some(Ports::Proxy));
    NodeQuery {
        owner_ports,
        client_ports,
        contested: contested.fold(PortSet::default(), |all, ports| all.union(&ports.of(cluster))),
        bound_on_purpose: false,
        masquerade_ports: PortSet::default(),
        masquerade_pools: true,
        health_check_ports: health_check_ports.iter().collect(),
        command_lines,
        pods: of_pods(cluster),
        skipped: BTreeSet::new(),
    }
}

/// Adds the sockets of the pod `namespace/name` on these ports of its own network. Sockets of other pods are not read,
/// because a scan reads only a few pods.
pub fn limit_to_pod(query: &mut NodeQuery, cluster: &ClusterFacts, pod: &str, ports: &PortSet) {
    query.pods.values_mut().for_each(|pod_query| pod_query.needed = PortSet::default());
    for pod in cluster.pods.known_part(Unread::Reported("owner --pod")).iter().filter(|it| it.is_named(pod)) {
        let needed = needed_in(pod).union(ports);
        for uid in pod.uids_of_cgroups() {
            query.pods.entry(uid.to_owned()).or_default().needed.clone_from(&needed);
        }
    }
}

/// The ports that a failing pod's servers need in the pod's own network. The set is empty for other pods.
fn needed_in(pod: &Pod) -> PortSet {
    pod.own_ports.iter().filter(|_| pod.ends.is_none()).map(|port| port.port).collect()
}

/// The pods whose own network namespace is read: pods whose specification sets the ephemeral port range, and failing
/// pods that need ports.
fn of_pods(cluster: &ClusterFacts) -> BTreeMap<String, PodQuery> {
    let pods = cluster.pods.known_part(Unread::Chooses).iter().filter(|pod| !pod.host_network && !pod.finished);
    let queries = pods.filter_map(|pod| {
        let is_set = pod.ip_local_port_range.is_some() || pod.ip_local_reserved_ports.is_some();
        let query = PodQuery { ephemeral: is_set.then(|| pod.ephemeral_ports()), needed: needed_in(pod) };
        (query != PodQuery::default()).then_some((pod, query))
    });
    queries.flat_map(|(pod, query)| pod.uids_of_cgroups().map(move |uid| (uid.to_owned(), query.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{ContainerPort, PortRange, Protocol, ProxyConfig, Reading, Snapshot};

    fn container_port(port: u16) -> ContainerPort {
        ContainerPort { port, host_port: None, host_ip: None, protocol: Protocol::Tcp }
    }

    #[test]
    fn every_port_that_a_rule_needs_is_in_the_query() {
        let world = Snapshot::healthy()
            .service("web", |it| it.node_port(40080).with(|service| service.health_check_node_port = Some(40081)))
            .service("vip", |it| it.external_ip("192.0.2.9"))
            .pod("bound", |pod| pod.host_port(80, 8080))
            .pod("up", |pod| {
                pod.host_network = true;
                pod.ready = true;
                pod.ports.push(container_port(9001));
            })
            .pod("down", |pod| {
                pod.host_network = true;
                pod.ready = false;
                pod.ports.push(container_port(9000));
            });
        let query = node_query(&world.cluster, false);
        for port in [30000, 32767, 40080, 40081, 6666, 8080, 9000, 9001, 10249, 10256] {
            assert!(query.owner_ports.contains(port), "{port}");
        }
        for port in [40080, 40081, 6666, 9000, 10249, 10256] {
            assert!(query.client_ports.contains(port), "{port}");
        }
        for port in [30000, 8080, 9001] {
            assert!(!query.client_ports.contains(port), "no rule asks for clients on {port}");
        }
        assert_eq!(query.health_check_ports, [40081]);
        assert_eq!(query.contested.to_string(), "9000,10249,10256,40081", "a NodePort is no server's");
        let mut cilium = world;
        let config = ProxyConfig { mode: Some("cilium".to_owned()), ..ProxyConfig::default() };
        cilium.cluster.proxy_config = Reading::Seen(config);
        assert_eq!(node_query(&cilium.cluster, false).contested.to_string(), "9000,40081");
    }

    #[test]
    fn the_port_on_which_kube_proxy_is_configured_to_tell_its_health_is_in_the_query() {
        let mut world = Snapshot::healthy();
        assert!(!node_query(&world.cluster, false).owner_ports.contains(10300));
        let config = ProxyConfig { healthz_bind_address: Some("[::]:10300".to_owned()), ..ProxyConfig::default() };
        world.cluster.proxy_config = Reading::Seen(config);
        assert!(node_query(&world.cluster, false).owner_ports.contains(10300));
    }

    #[test]
    fn a_pod_is_asked_about_where_its_specification_says_from_which_ports_the_kernel_chooses() {
        let world = Snapshot::healthy()
            .pod("usual", |_| ())
            .pod("narrow", |pod| pod.ip_local_port_range = PortRange::new(20000, 20999))
            .pod("careful", |pod| pod.ip_local_reserved_ports = "40000-40999".parse().ok())
            .pod("static", |pod| {
                pod.ip_local_port_range = PortRange::new(20000, 20999);
                pod.ip_local_reserved_ports = "20100,8000".parse().ok();
                pod.config_hash = Some("hash".to_owned());
            })
            .pod("host", |pod| {
                pod.host_network = true;
                pod.ip_local_port_range = PortRange::new(20000, 20999);
            });
        let asked = node_query(&world.cluster, false).pods;
        let asked: Vec<_> =
            asked.iter().map(|(uid, it)| (&**uid, it.ephemeral.as_ref().expect("ports").to_string())).collect();
        let (narrow, both) = ("20000-20999".to_owned(), "20000-20099,20101-20999".to_owned());
        let careful = "32768-39999,41000-60999".to_owned();
        assert_eq!(
            asked,
            [("hash", both.clone()), ("uid-careful", careful), ("uid-narrow", narrow), ("uid-static", both)]
        );
    }

    #[test]
    fn the_ports_that_a_failing_pod_needs_in_its_own_network_are_asked_for_unless_it_ends() {
        let failing = |pod: &mut portreeve_facts::Pod| pod.own_ports = vec![container_port(8000), container_port(9000)];
        let world = Snapshot::healthy().pod("well", |_| ()).pod("fails", failing).pod("ends", |pod| {
            failing(pod);
            pod.ends = Some(jiff::Timestamp::UNIX_EPOCH);
        });
        let asked = node_query(&world.cluster, false).pods;
        let asked: Vec<_> = asked.iter().map(|(uid, it)| (&**uid, it.needed.to_string(), &it.ephemeral)).collect();
        assert_eq!(asked, [("uid-fails", "8000,9000".to_owned(), &None)]);
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
        let query = node_query(&world.cluster, false);
        assert!(!query.owner_ports.contains(8080) && !query.owner_ports.contains(8081));
    }

    #[test]
    fn a_load_balancers_address_alone_makes_a_services_ports_wanted() {
        let address =
            |service: &mut portreeve_facts::Service| service.load_balancer_ips = vec![[198, 51, 100, 7].into()];
        let query = node_query(&Snapshot::healthy().service("vip", |it| it.with(address)).cluster, false);
        assert!(query.owner_ports.contains(80) && query.client_ports.contains(80));
    }

    #[test]
    fn a_pod_of_a_file_that_names_no_node_counts_as_here() {
        let world = Snapshot::healthy().pod("anywhere", |pod| {
            pod.node = None;
            pod.host_port(80, 8082);
        });
        assert!(node_query(&world.cluster, false).owner_ports.contains(8082));
    }

    #[test]
    fn who_asks_of_one_pod_asks_for_its_port_and_for_the_sockets_of_no_other() {
        let failing = |pod: &mut Pod| pod.own_ports = vec![container_port(8000)];
        let world = Snapshot::healthy().pod("cart", failing).pod("other", failing).pod("well", |_| ());
        let asked = |pod: &str| {
            let mut query = node_query(&world.cluster, false);
            limit_to_pod(&mut query, &world.cluster, pod, &[9000].into_iter().collect());
            let needed = query.pods.into_iter().filter(|(_, query)| !query.needed.is_empty());
            needed.map(|(uid, query)| (uid, query.needed.to_string())).collect::<Vec<_>>()
        };
        assert_eq!(asked("default/cart"), [("uid-cart".to_owned(), "8000,9000".to_owned())]);
        assert_eq!(asked("default/well"), [("uid-well".to_owned(), "9000".to_owned())]);
        assert_eq!(asked("default/none"), []);
    }
}
