//! The use of each port of the NodePort range: the Service, the listener, and whether the kernel may choose the port.

use std::collections::BTreeMap;

use super::{
    FreePorts, Limits,
    ephemeral::EphemeralPorts,
    node_ports::{bands_here, disproved_range},
};
use portreeve_dataplane::{ByPort, Own, Port, owner_name};
use portreeve_facts::{Gap, NodePortRange, PortRange, PortSet, Service, ServicePort, Snapshot, Source, Unread, Why};

/// The use of the NodePort range. A port that is not listed is free, unless unread input contains the port's user.
#[derive(Clone, Debug)]
pub struct PortUsage {
    /// The range.
    pub range: NodePortRange,
    /// The static band, from which the API server chooses last. `None` if the range is too small.
    pub static_band: Option<PortRange>,
    /// Ports that a Service, a listener or another object uses.
    pub used: BTreeMap<u16, PortUse>,
    /// NodePorts of Services outside the range.
    pub outside: PortSet,
    /// Ports of the range that the kernel may give to an outgoing connection.
    pub ephemeral: PortSet,
    /// Ports of the range in `ip_local_reserved_ports`.
    pub reserved: PortSet,
    /// Unread input, which may contain more users of ports.
    pub unread: Vec<Gap>,
}

/// The use of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortUse {
    /// The Service that has the number, and who chose the number.
    pub allocated: Option<(String, Choice)>,
    /// The user of the port, besides the Service with the number and the proxy: `nginx listens`, `pod shop/web has it
    /// as hostPort`. A leftover redirection of a deleted pod, and a Service at an external address of this node, are
    /// also users. If no Service has the number, the user may be the proxy, or an object that may need the port.
    pub taken: Option<String>,
}

/// Who chose the number of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A user chose the number.
    Fixed,
    /// The API server chose the number.
    Automatic,
    /// The object does not show who chose the number.
    Unknown,
}

/// The words for a port that `suggest` leaves out, although nothing on this node has or needs the port. Examples are a
/// hostPort on another node, and a port that a daemon usually has.
const OF_CLUSTER: &str = "a server, a pod or a Service of the cluster may need it";

/// Lists the used ports of the range, and the unread input.
///
/// # Errors
/// Fails if the range is not known.
pub fn port_usage(snapshot: &Snapshot) -> Result<PortUsage, Gap> {
    let round = Limits::default().round(snapshot, None);
    let range = snapshot.cluster.node_port_range.get()?.clone();
    let within = PortSet::from(range.range);
    let mut unread = Vec::new();
    let mut used: BTreeMap<u16, PortUse> = BTreeMap::new();

    unread.extend(snapshot.cluster.services.gap().or(snapshot.cluster.unread_service()).cloned());
    let named = Unread::Reported("PortUsage::unread");
    let allocated = round.allocated().known(named).into_iter().flat_map(ByPort::ports);
    let (inside, outside): (Vec<_>, Vec<_>) = allocated.partition(|(number, _)| range.range.contains(*number));
    for (number, holders) in inside {
        let Some((service, port)) = holders.first() else { continue };
        let owner = format!("{}/{}", service.namespace, service.name);
        used.entry(number).or_default().allocated =
            Some((owner, port.map_or(Choice::Automatic, |port| choice(port.fixed))));
    }

    unread.extend(disproved_range(&round));
    let ephemeral = EphemeralPorts::of(snapshot);
    unread.extend(ephemeral.gap().cloned());
    let reported = Unread::Reported("the ephemeral ports, which could not be read");
    let reserved = snapshot.kernel.sysctls.ip_local_reserved_ports.known(reported).cloned().unwrap_or_default();

    unread.extend(snapshot.kernel.unread_listeners().cloned());
    let proxy = round.proxy();
    let mut unclear: BTreeMap<(Source, Why), Vec<u16>> = BTreeMap::new();
    for socket in round.listeners().known(named).into_iter().flat_map(ByPort::iter) {
        let port = socket.local_port;
        if !range.range.contains(port) || ephemeral.may_be_client(socket) == Ok(true) {
            continue;
        }
        let owns = proxy.owns(socket);
        if owns == Own::Unknown {
            let gap = proxy.unknown(socket);
            unclear.entry((gap.source, gap.why)).or_default().push(port);
        }
        let is_allocated = used.get(&port).is_some_and(|it| it.allocated.is_some());
        if owns == Own::No || snapshot.cluster.services.gap().is_none() && !is_allocated {
            let taken = || format!("{} listens", owner_name(snapshot, &socket.owner));
            used.entry(port).or_default().taken.get_or_insert_with(taken);
        }
    }
    for ((source, why), ports) in unclear {
        let ports: PortSet = ports.into_iter().collect();
        let detail = format!("it is not known whether the process that listens on {ports} is the proxy itself");
        unread.push(Gap::new(source, why, detail));
    }

    unread.extend(snapshot.cluster.pods.gap().cloned());
    unread.extend(snapshot.cluster.rejected.iter().filter(|gap| gap.source == Source::Pods).cloned());
    unread.extend(snapshot.cluster.unplaced_pod().or_else(|| snapshot.cluster.doubted_node()).cloned());
    let host_ports = round.host_ports().known(named).into_iter().flat_map(ByPort::ports);
    for ((_, number), pods) in host_ports.filter(|((_, number), _)| range.range.contains(*number)) {
        let taken = pods.first().map(|(pod, _)| format!("pod {}/{} has it as hostPort", pod.namespace, pod.name));
        let used = used.entry(number).or_default();
        used.taken = used.taken.take().or(taken);
    }

    let mut take = |number, taken: String| {
        used.entry(number).or_default().taken.get_or_insert(taken);
    };
    unread.extend(round.missed_redirections());
    let redirections = round.redirections().known(named).into_iter();
    let redirections = redirections.flat_map(|all| all.ports().map(move |(port, _)| (all, port)));
    for (all, (protocol, number)) in redirections.filter(|(_, (_, number))| range.range.contains(*number)) {
        if let Some((left, _)) = all.left_behind((protocol, number)).first() {
            take(number, format!("a redirection of a hostPort leads to {}", left.to));
        }
    }

    unread.extend(round.needs().unread().cloned());
    let external = round.external_ports().known(named).into_iter().flat_map(ByPort::ports);
    let external: Vec<Port> = external.map(|(port, _)| port).filter(|(_, it)| range.range.contains(*it)).collect();
    if !external.is_empty() {
        match round.addressed().get() {
            Err(gap) if unread.contains(&gap) => {}
            Err(gap) => unread.push(gap),
            Ok(addressed) => {
                for port in external {
                    let is_own = |it: &ServicePort| it.node_port == Some(port.1);
                    let others = round.external_at(port).filter(|(at, _)| addressed.local(at.ip).is_some());
                    let mut others = others.filter(|(_, it)| !is_own(it));
                    if let Some((at, _)) = others.next() {
                        let Service { namespace, name, .. } = at.service;
                        take(port.1, format!("Service {namespace}/{name} has it at {}", at.ip));
                    }
                }
            }
        }
    }

    let needs = round.needs().known(named).ports();
    for ((_, number), needs) in needs.filter(|((_, number), _)| range.range.contains(*number)) {
        let claimed = needs.iter().filter(|need| need.is_claimed());
        let Some(whose) = claimed.map(|need| need.whose(snapshot)).min() else { continue };
        let used = used.entry(number).or_default();
        let whose = Some(whose).filter(|_| used.allocated.is_none());
        used.taken = used.taken.take().or(whose.map(|it| format!("{it} needs it")));
    }
    let free = FreePorts::of_round(&round);
    let may_be_free = free.free().collect::<PortSet>().union(&ephemeral.ports());
    for number in within.minus(&may_be_free).iter().filter(|it| free.is_known() && *it > 0) {
        used.entry(number).or_insert_with(|| PortUse { taken: Some(OF_CLUSTER.to_owned()), ..PortUse::default() });
    }

    Ok(PortUsage {
        static_band: bands_here(snapshot, range.range).fixed,
        ephemeral: ephemeral.ports().intersection(&within),
        reserved: reserved.intersection(&within),
        range,
        used,
        outside: outside.into_iter().map(|(number, _)| number).collect(),
        unread,
    })
}

fn choice(fixed: Option<bool>) -> Choice {
    match fixed {
        Some(true) => Choice::Fixed,
        Some(false) => Choice::Automatic,
        None => Choice::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::{
        ContainerPort, Netfilter, Protocol, Reading, Redirection, WaitingPod,
        healthy::{gap, objects, proxy_holder},
    };

    #[test]
    fn each_port_says_its_service_and_its_foreign_listener() {
        let world = Snapshot::healthy()
            .service("web", |it| it.node_port(30080).with(|service| service.ports[0].fixed = Some(true)))
            .service("held", |it| it.node_port(30081))
            .listens("0.0.0.0:30080")
            .listens_as("0.0.0.0:30081", proxy_holder())
            .listens("0.0.0.0:31000")
            .listens("0.0.0.0:80");
        let usage = port_usage(&world).expect("the range is known");
        let web = &usage.used[&30080];
        assert_eq!(web.allocated, Some(("default/web".to_owned(), Choice::Fixed)));
        assert!(web.taken.is_some());
        assert_eq!(usage.used[&30081].taken, None, "the proxy's own");
        assert_eq!(usage.used[&31000].allocated, None);
        assert_eq!(usage.used.len(), 3, "port 80 is not in the range");
    }

    #[test]
    fn a_host_port_of_a_pod_here_is_not_free_and_unread_pods_are_said() {
        let mut world = Snapshot::healthy().pod("cache", |it| it.host_port(80, 30002));
        let taken = port_usage(&world).expect("the range is known").used[&30002].taken.clone();
        assert_eq!(taken.as_deref(), Some("pod default/cache has it as hostPort"));
        world.cluster.pods = gap(Source::Pods, Why::TimedOut);
        let usage = port_usage(&world).expect("the range is known");
        assert_eq!((usage.used.len(), usage.unread[0].source), (0, Source::Pods));
        let mut of_name = Snapshot::healthy();
        of_name.cluster.rejected.push(Gap::new(Source::Nodes, Why::Ambiguous, "this host may be another node"));
        assert_eq!(port_usage(&of_name).expect("known").unread[0].source, Source::Nodes);
    }

    #[test]
    fn a_port_that_a_server_needs_is_not_free_and_the_server_is_named() {
        let port = |port| ContainerPort { port, host_port: None, host_ip: None, protocol: Protocol::Tcp };
        let mut world = Snapshot::healthy().service("web", |it| it.node_port(30080)).pod("edge", |pod| {
            pod.host_network = true;
            (pod.ports, pod.probed) = (vec![port(30001), port(30080)], vec![port(30002)]);
            pod.reported_in_use = vec![port(30005)];
        });
        let waits = WaitingPod {
            namespace: "default".to_owned(),
            name: "waits".to_owned(),
            ports: vec![ContainerPort { host_port: Some(30003), ..port(80) }],
            ..WaitingPod::default()
        };
        let elsewhere = WaitingPod {
            meant_for: Some("n2".to_owned()),
            ports: vec![ContainerPort { host_port: Some(30004), ..port(80) }],
            ..waits.clone()
        };
        world.cluster.waiting_pods = Reading::Seen(vec![waits.into(), elsewhere.into()]);
        let usage = port_usage(&world).expect("the range is known");
        let taken = |port: u16| usage.used.get(&port).and_then(|it| it.taken.as_deref());
        assert_eq!([30001, 30002].map(taken), [Some("hostNetwork pod default/edge needs it"); 2]);
        assert_eq!([30003, 30004].map(taken), [Some("waiting pod default/waits needs it"), Some(OF_CLUSTER)]);
        assert_eq!([30000, 30005, 30080].map(taken), [None; 3], "free, only reported as in use, and allocated");
        assert_eq!((usage.used.len(), usage.unread), (5, Vec::new()));
        world.cluster.waiting_pods = gap(Source::WaitingPods, Why::TimedOut);
        let unread = port_usage(&world).expect("the range is known").unread;
        assert_eq!(unread.iter().map(|gap| gap.source).collect::<Vec<_>>(), [Source::WaitingPods]);
        world.own_port = gap(Source::OwnPort, Why::Unreachable);
        let world = world.with_config(|config| config.healthz_bind_address = Some("nowhere".to_owned()));
        let unread = port_usage(&world).expect("the range is known").unread;
        let sources: Vec<_> = unread.iter().map(|gap| gap.source).collect();
        assert_eq!(sources, [Source::WaitingPods, Source::ProxyConfig, Source::OwnPort]);
    }

    #[test]
    fn the_port_of_a_tunnel_that_is_down_is_not_free_and_the_tunnel_is_named() {
        let world = Snapshot::healthy().tunnel("flannel.1", "vxlan", 30789, |link| link.up = false);
        let usage = port_usage(&world).expect("the range is known");
        assert_eq!(usage.used[&30789].taken.as_deref(), Some("tunnel flannel.1 needs it"));
    }

    #[test]
    fn what_takes_the_connections_of_a_port_is_its_user() {
        let mut world = Snapshot::healthy()
            .service("web", |it| it.node_port(30080))
            .service("ext", |it| it.external_ip("192.0.2.1").with(|service| service.ports[0].port = 30080))
            .service("vip", |it| it.external_ip("203.0.113.7").with(|service| service.ports[0].port = 30001));
        let to = "10.1.0.7".parse().expect("an address");
        let chain = "ip nat CNI-DN-1".to_owned();
        let left = Redirection { protocol: Protocol::Tcp, port: 30002, ip: None, to, to_port: 80, chain, handle: 7 };
        world.kernel.netfilter =
            Reading::Seen(Netfilter { redirections: Reading::Seen(vec![left]), ..Netfilter::default() });
        let taken =
            |world: &Snapshot, port| port_usage(world).expect("the range is known").used.get(&port)?.taken.clone();
        assert_eq!(taken(&world, 30080).as_deref(), Some("Service default/ext has it at 192.0.2.1"));
        assert_eq!(taken(&world, 30001).as_deref(), Some(OF_CLUSTER), "the address is of another node");
        assert_eq!(taken(&world, 30002).as_deref(), Some("a redirection of a hostPort leads to 10.1.0.7"));
        world.kernel.interfaces = gap(Source::Addresses, Why::TimedOut);
        let unread = port_usage(&world).expect("the range is known").unread;
        assert_eq!(unread.iter().map(|gap| gap.source).collect::<Vec<_>>(), [Source::Addresses]);
        let mut unread = Snapshot::healthy().pod("cache", |it| it.host_port(80, 8080));
        unread.kernel.netfilter = gap(Source::Netfilter, Why::TimedOut);
        assert_eq!(port_usage(&unread).expect("the range is known").unread[0].source, Source::Netfilter);
        let own = |it: portreeve_facts::healthy::World| {
            it.node_port(30080).external_ip("192.0.2.1").with(|service| service.ports[0].port = 30080)
        };
        assert_eq!(taken(&Snapshot::healthy().service("web", own), 30080), None, "one Service has both");
    }

    #[test]
    fn only_what_is_not_reserved_may_be_given_away() {
        let usage =
            port_usage(&Snapshot::healthy().ephemeral("30000 40000", "30100-32767")).expect("the range is known");
        assert_eq!(usage.ephemeral.to_string(), "30000-30099");
        assert_eq!(usage.reserved.to_string(), "30100-32767");
    }

    #[test]
    fn a_resolvers_udp_socket_is_no_listener() {
        let world = Snapshot::healthy().ephemeral("30000 40000", "").listens_udp("0.0.0.0:31000");
        assert!(port_usage(&world).expect("the range is known").used.is_empty());
    }

    #[test]
    fn a_listener_that_may_be_the_proxy_is_neither_drawn_nor_hidden() {
        let world = Snapshot::healthy().without_proxy().service("web", |it| it.node_port(30080));
        let usage = port_usage(&world.listens("0.0.0.0:30080")).expect("the range is known");
        assert_eq!(usage.used[&30080].taken, None);
        assert!(usage.unread.iter().any(|gap| gap.detail.contains("30080")), "{:?}", usage.unread);
    }

    #[test]
    fn what_listens_on_a_port_without_an_allocation_is_named_even_if_it_may_be_the_proxy() {
        let taken = |world: &Snapshot, port: u16| {
            port_usage(world).expect("the range is known").used.get(&port).and_then(|it| it.taken.clone())
        };
        let mut proxys = Snapshot::healthy().listens_as("0.0.0.0:31000", proxy_holder());
        assert_eq!(taken(&proxys, 31000).as_deref(), Some("process kube-proxy listens"));
        proxys.cluster.services = gap(Source::Services, Why::Unreachable);
        assert_eq!(taken(&proxys, 31000), None, "a Service that was not read may have the number");
        let world = Snapshot::healthy().without_proxy().service("web", |it| it.node_port(30080));
        let unknown = world.listens("0.0.0.0:30080").listens("0.0.0.0:31000");
        assert_eq!(taken(&unknown, 31000).as_deref(), Some("process nginx listens"));
        assert_eq!(taken(&unknown, 30080), None);
    }

    #[test]
    fn unread_services_are_said_and_not_free() {
        let mut world = Snapshot::healthy();
        world.cluster.services = gap(Source::Services, Why::Unreachable);
        assert_eq!(port_usage(&world).expect("the range is known").unread.len(), 1);
        let one_is_rejected = Snapshot::healthy().rejects(Source::EndpointSlices).rejects(Source::Services);
        let unread = port_usage(&one_is_rejected).expect("the range is known").unread;
        assert_eq!(unread, [one_is_rejected.cluster.rejected[1].clone()]);
        let outside = Snapshot::healthy().service("old", |it| it.node_port(40080)).assumed_range();
        let unread = port_usage(&outside).expect("the range is assumed").unread;
        assert_eq!(unread.into_iter().map(|gap| gap.source).collect::<Vec<_>>(), [Source::NodePortRange]);
        let unnamed = Snapshot::healthy().pod("cache", |_| ()).unnamed();
        let unread = port_usage(&unnamed).expect("the range is known").unread;
        assert_eq!(unread, unnamed.cluster.rejected, "the pod may be here");
        world.cluster.node_port_range = Reading::Gap(Gap::new(Source::NodePortRange, Why::NotRequested, ""));
        assert!(port_usage(&world).is_err());
    }

    #[test]
    fn an_old_cluster_has_no_static_band() {
        let mut world = Snapshot::healthy();
        let fixed = |world: &Snapshot| port_usage(world).expect("a picture").static_band;
        assert_eq!(fixed(&world), PortRange::new(30000, 30085));
        for node in objects(&mut world.cluster.nodes) {
            node.kubelet_version = Some("v1.24.17".to_owned());
        }
        assert_eq!(fixed(&world), None);
    }
}
