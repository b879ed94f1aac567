//! Makes the snapshot of an example node: the lines of the node's file change the recorded healthy node.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use portreeve_facts::{
    Address, EphemeralUse, Extent, Family, HealthCheckAnswer, Interfaces, Link, Owner, PodNamespace, PortRange,
    PortSet, Protocol, Reading, Snapshot, Socket, State, Tunnel, VirtualServer,
};
use portreeve_rules::node_query;

use super::{
    form::{Cluster, Lines, Node},
    lines::{self, Words},
    proxies,
};

/// Fails if the input is unread.
#[track_caller]
pub(super) fn seen<T>(reading: &mut Reading<T>) -> &mut T {
    match reading {
        Reading::Seen(fact) => fact,
        Reading::Gap(gap) => panic!("the healthy world has a gap: {gap:?}"),
    }
}

#[track_caller]
pub(super) fn snapshot(node: &Node, cluster: &Cluster) -> Snapshot {
    let mut world = crate::cli::healthy();
    let families: Vec<Family> = match &node.families[..] {
        [] => vec![Family::V4],
        named => named.iter().map(|word| family(word)).collect(),
    };
    base(&mut world, &families);
    objects(&mut world, cluster, &families);
    network(&mut world, node);
    let sysctls = &mut world.kernel.sysctls;
    for line in node.sysctls.iter() {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        let value = value.replacen(' ', "-", 1);
        match name {
            "ip_local_port_range" => sysctls.ip_local_port_range = Reading::Seen(value.parse().expect("a range")),
            "ip_local_reserved_ports" => sysctls.ip_local_reserved_ports = Reading::Seen(value.parse().expect("ports")),
            "tcp_tw_reuse" => sysctls.tcp_tw_reuse = Reading::Seen(value.parse().expect("a number")),
            "route_localnet" => sysctls.route_localnet = Reading::Seen(value == "1"),
            _ => panic!("no setting: {line}"),
        }
    }
    for line in node.sockets.iter() {
        add(&mut world, lines::socket(line));
    }
    if !node.nameservers.0.is_empty() {
        let nameservers = node.nameservers.iter().map(|line| line.parse().expect("an address"));
        world.kernel.nameservers = Reading::Seen(nameservers.collect());
    }
    busy(&mut world, &node.busy);
    in_pods(&mut world, &node.in_pods);
    if !node.pools.0.is_empty() {
        world.kernel.masquerade_pools = Reading::Seen(node.pools.iter().map(lines::pool).collect());
    }
    let answer = |line: &str| {
        let mut words = Words::of(line);
        let port = words.parsed();
        let service = Reading::Seen(Some(words.word().to_owned()));
        words.end();
        HealthCheckAnswer { port, service }
    };
    world.kernel.health_checks = Reading::Seen(node.health_checks.iter().map(answer).collect());
    proxies::program(&mut world, node, cluster);
    only_what_is_asked(&mut world);
    world
}

#[track_caller]
fn family(word: &str) -> Family {
    let found = Family::BOTH.into_iter().find(|family| family.to_string() == word);
    found.unwrap_or_else(|| panic!("no family: {word}"))
}

/// Changes the recorded node: removes its Services, listeners and second addresses, keeps only these families, and adds
/// the kubelet's listeners.
fn base(world: &mut Snapshot, families: &[Family]) {
    let has = |ip: IpAddr| families.contains(&Family::of(ip));
    seen(&mut world.cluster.services).clear();
    seen(&mut world.cluster.endpoint_slices).clear();
    let interfaces = Arc::make_mut(seen(&mut world.kernel.interfaces));
    interfaces.addresses.retain(|it| it.ip.is_loopback() || has(it.ip) && it.ip.to_string().ends_with('1'));
    interfaces.gateways = match has(IpAddr::from([0, 0, 0, 0])) {
        true => vec![IpAddr::from([192, 0, 2, 254])],
        false => vec!["fe80::1".parse().expect("an address")],
    };
    for node in seen(&mut world.cluster.nodes) {
        let node = Arc::make_mut(node);
        node.addresses.retain(|address| has(address.ip));
        node.pod_families = families.to_vec();
    }
    seen(&mut world.kernel.listeners).clear();
    for line in ["tcp LISTEN 127.0.0.1:10248 kubelet", "tcp LISTEN *:10250 kubelet"] {
        add(world, lines::socket(line));
    }
}

fn add(world: &mut Snapshot, socket: Socket) {
    if matches!((socket.protocol, socket.state), (_, State::Listen) | (Protocol::Udp, State::Close)) {
        seen(&mut world.kernel.listeners).push(socket);
    } else {
        seen(&mut world.kernel.clients).sockets.push(socket);
    }
}

fn objects(world: &mut Snapshot, cluster: &Cluster, families: &[Family]) {
    let version = cluster.version.as_deref().unwrap_or("v1.36.3");
    let nodes = seen(&mut world.cluster.nodes);
    for node in nodes.iter_mut() {
        Arc::make_mut(node).kubelet_version = Some(version.to_owned());
    }
    for line in cluster.nodes.iter() {
        let node = lines::node(line, version, families);
        nodes.retain(|other| other.name != node.name);
        nodes.push(node.into());
    }
    let runtime = cluster.runtime.as_deref().unwrap_or("containerd://2.1.4");
    for node in nodes.iter_mut() {
        Arc::make_mut(node).container_runtime = Some(runtime.to_owned());
    }
    for line in cluster.services.iter() {
        let (service, slices) = lines::service(line);
        seen(&mut world.cluster.services).push(service.into());
        seen(&mut world.cluster.endpoint_slices).extend(slices.into_iter().map(Arc::new));
    }
    for pod in cluster.pods.iter().flat_map(lines::pods) {
        let namespace = (!pod.host_network && pod.node.is_some()).then(|| {
            let uid = pod.uid.clone().expect("a pod has a uid");
            PodNamespace::with_use(uid, Ok(EphemeralUse::of_every_socket(12)))
        });
        seen(&mut world.kernel.pod_namespaces).extend(namespace);
        seen(&mut world.cluster.pods).push(pod.into());
    }
    if let Some(range) = &cluster.node_port_range {
        seen(&mut world.cluster.node_port_range).range = range.parse().expect("a range");
    }
}

fn network(world: &mut Snapshot, node: &Node) {
    let interfaces = Arc::make_mut(seen(&mut world.kernel.interfaces));
    for line in node.links.iter() {
        let mut words = Words::of(line);
        let (name, kind) = (words.word(), words.word());
        add_link(interfaces, name, Some(kind));
        let link = interfaces.links.last_mut().expect("it was added");
        link.udp_port = words.next().map(|port| port.parse().expect("a port"));
        let mut tunnel = Tunnel { families: vec![Family::V4], ..Tunnel::default() };
        while let Some(word) = words.next() {
            match word.split_once('=') {
                None if word == "down" => link.up = false,
                None if word == "external" => (tunnel.external, tunnel.families) = (true, Family::BOTH.to_vec()),
                Some(("id", id)) => tunnel.id = Some(id.parse().expect("a VNI")),
                _ => panic!("neither external, down nor id: {line}"),
            }
        }
        link.tunnel = link.udp_port.map(|_| tunnel);
    }
    for line in node.addresses.iter() {
        let mut words = Words::of(line);
        let (link, address) = (words.word(), words.word());
        words.end();
        let (ip, prefix) = address.split_once('/').unwrap_or_else(|| panic!("no prefix: {line}"));
        let (ip, prefix) = (ip.parse().expect("an address"), prefix.parse().expect("a prefix"));
        add_address(interfaces, link, ip, prefix);
    }
}

fn add_link(interfaces: &mut Interfaces, name: &str, kind: Option<&str>) {
    let index = interfaces.links.len() as u32 + 1;
    let (name, kind) = (name.to_owned(), kind.map(str::to_owned));
    interfaces.links.push(Link { index, name, kind, udp_port: None, tunnel: None, master: None, up: true });
}

/// Adds an address to a link. If the link does not exist, adds the link first.
pub(super) fn add_address(interfaces: &mut Interfaces, link: &str, ip: IpAddr, prefix: u8) {
    if interfaces.links.iter().all(|other| other.name != link) {
        add_link(interfaces, link, None);
    }
    interfaces.addresses.push(Address { ip, prefix, link: link.into() });
}

fn busy(world: &mut Snapshot, busy: &Lines) {
    for line in busy.iter() {
        let (pod, destination) = lines::busy(line);
        let used = match pod {
            None => seen(&mut world.kernel.ephemeral),
            Some(pod) => {
                let uid = format!("uid-{}", pod.split('/').next_back().unwrap_or(&pod));
                let namespaces = seen(&mut world.kernel.pod_namespaces);
                let namespace = namespaces.iter_mut().find(|it| it.pod_uid == uid);
                let namespace = namespace.unwrap_or_else(|| panic!("no such pod: {line}"));
                // The scan has read the namespace, and no process listens there.
                namespace.listening = Some(PortSet::default());
                seen(&mut namespace.ephemeral)
            }
        };
        let ports = PortRange { first: 1, last: u16::MAX }.into();
        used.extent = Extent::Walked { ports, tcp_tw_reuse: Some(0), every: None };
        used.at_most += destination.used;
        used.busiest.push(destination);
        used.busiest.sort_by_key(|it| std::cmp::Reverse(it.used));
    }
}

/// Adds the sockets that a scan lists in a failing pod: the sockets on the ports that the pod's servers need.
fn in_pods(world: &mut Snapshot, in_pods: &Lines) {
    let pods = seen(&mut world.cluster.pods);
    let wanting: Vec<_> = pods.iter().filter(|pod| !pod.own_ports.is_empty()).cloned().collect();
    for pod in &wanting {
        let name = format!("{}/{} ", pod.namespace, pod.name);
        let sockets = in_pods.iter().filter_map(|line| line.strip_prefix(&*name)).map(lines::socket);
        let wanted = |socket: &Socket| pod.own_ports.iter().any(|it| it.port == socket.local_port);
        let sockets = sockets.filter(wanted).collect();
        let mut namespaces = seen(&mut world.kernel.pod_namespaces).iter_mut();
        let own = namespaces.find(|it| Some(&it.pod_uid) == pod.uid.as_ref());
        own.expect("a pod with a network of its own").needed = Reading::Seen(sockets);
    }
    let is_of = |line: &str| wanting.iter().any(|it| line.starts_with(&format!("{}/{} ", it.namespace, it.name)));
    assert!(in_pods.iter().all(is_of), "a socket of no pod that wants a port");
}

/// Removes the facts that a scan of this node does not read: a scan reads owners and clients only for the ports of its
/// query. Sorts the clients: connections that no listener accepted come first.
fn only_what_is_asked(world: &mut Snapshot) {
    let query = node_query(&world.cluster, false);
    let listeners = seen(&mut world.kernel.listeners);
    let down = seen(&mut world.kernel.interfaces).tunnels_down().map(|(port, _)| port);
    let asked = query.owner_ports.union(&down.collect());
    for socket in listeners.iter_mut().filter(|socket| !asked.contains(socket.local_port)) {
        socket.owner = Owner::NotRead;
    }
    let accepted = |socket: &Socket| {
        listeners.iter().any(|it| {
            (it.protocol, it.local_port) == (socket.protocol, socket.local_port)
                && it.serves(socket.family) == Some(true)
                && (it.local.is_unspecified() || it.local == socket.local)
        })
    };
    let clients = seen(&mut world.kernel.clients);
    clients.sockets.retain(|socket| query.client_ports.contains(socket.local_port));
    (clients.searched, clients.bound_searched) = (query.client_ports, query.contested);
    clients.sockets.sort_by_key(accepted);
    clients.outgoing = clients.sockets.iter().filter(|socket| !accepted(socket)).count() as u64;
    let wanted: BTreeSet<u16> = query.health_check_ports.into_iter().collect();
    let mut answers = seen(&mut world.kernel.health_checks).iter();
    assert!(answers.all(|answer| wanted.contains(&answer.port)), "a health check of no Service");
}

/// Reads the line of a virtual server: `udp 192.0.2.53:53 2`.
#[track_caller]
pub(super) fn virtual_server(line: &str) -> VirtualServer {
    let mut words = Words::of(line);
    let protocol = lines::protocol(words.word());
    let place: std::net::SocketAddr = words.parsed();
    let real_servers = words.parsed();
    words.end();
    VirtualServer { protocol, ip: place.ip(), port: place.port(), real_servers }
}
