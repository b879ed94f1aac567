//! A healthy example node for tests, and functions that change the example node.
//!
//! The node `n1` has IPv4 and IPv6, with a primary and a second address of each family. It has a kubelet, kube-proxy in
//! iptables mode with its defaults, and a local detector. The cluster has a second node `n2`, and no Services.

mod service;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use jiff::Timestamp;

pub use service::World;

use super::{
    Address, Cgroup, Clients, ClusterFacts, ContainerPort, EphemeralUse, Family, Gap, Holder, Interfaces, KernelFacts,
    Learned, Link, Masquerade, Mode, Node, NodeAddress, NodeAddressKind, NodePortRange, Overrides, OwnPort, Owner, Pod,
    PodContainer, PortRange, PortSet, Process, Protocol, ProxyConfig, ProxyFacts, ProxyMetrics, RangeSource, Reading,
    SNAPSHOT_SCHEMA, Snapshot, SockStat, Socket, Source, State, Sysctls, Tunnel, Why,
};

/// The first address of each family on the node.
pub const PRIMARY: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
/// The second address of each family on the node.
pub const SECOND: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
/// The address on which the agent listens.
pub const OWN_PORT: &str = "192.0.2.1:29517";
/// The InternalIP of the second node.
pub const PEER: &str = "192.0.2.9";

/// An address, in tests.
#[track_caller]
pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A fact that was not read, in tests.
pub fn gap<T>(source: Source, why: Why) -> Reading<T> {
    Reading::Gap(Gap::new(source, why, "so the test says"))
}

impl Snapshot {
    /// The healthy example node.
    pub fn healthy() -> Self {
        let at = Timestamp::from_second(1_800_000_000).expect("a time");
        Self {
            schema: SNAPSHOT_SCHEMA.to_owned(),
            version: None,
            connections_at: None,
            pods_at: None,
            at,
            overrides: Overrides::default(),
            kernel: kernel(at),
            cluster: ClusterFacts {
                origin: "test".to_owned(),
                configured: true,
                node_name: Some("n1".to_owned()),
                services: Reading::Seen(Vec::new()),
                endpoint_slices: Reading::Seen(Vec::new()),
                endpoints_of: None,
                pods: Reading::Seen(Vec::new()),
                waiting_pods: Reading::Seen(Vec::new()),
                pending_ports: PortSet::default(),
                workloads: Vec::new(),
                nodes: Reading::Seen(vec![node("n1", &PRIMARY).into(), node("n2", &[PEER]).into()]),
                node_port_range: Reading::Seen(NodePortRange {
                    range: PortRange::DEFAULT_NODE_PORTS,
                    source: RangeSource::Flagz,
                    place: "kube-apiserver /flagz".to_owned(),
                }),
                service_cidrs: Vec::new(),
                range_claims: Vec::new(),
                cilium_replaces: None,
                proxy_config: gap(Source::ConfigMaps, Why::NotRequested),
                rejected: Vec::new(),
                unread_services: Vec::new(),
            },
            own_port: Reading::Seen(OwnPort { address: OWN_PORT.parse().expect("an address"), taken: false }),
        }
        .listens_as("127.0.0.1:10249", proxy_holder())
        .listens_as("[::]:10256", proxy_holder())
        .listens_as("[::]:10250", daemon("kubelet", 700))
    }

    /// The node with the proxy in this mode. The proxy has the default settings of the mode.
    pub fn with_mode(&self, mode: Mode) -> Self {
        let mut world = self.clone();
        world.kernel.proxy.mode = Reading::Seen(Learned { value: mode, place: "127.0.0.1:10249/proxyMode".to_owned() });
        if let Reading::Seen(config) = &mut world.kernel.proxy.config {
            config.mode = Some(mode.name().to_owned());
            if mode == Mode::Nftables && config.node_port_addresses.is_empty() {
                config.node_port_addresses = vec!["primary".to_owned()];
            }
        }
        world
    }

    /// The node if nothing about the proxy can be read.
    pub fn without_proxy(mut self) -> Self {
        let proxy = &mut self.kernel.proxy;
        proxy.mode = gap(Source::ProxyMode, Why::Unreachable);
        proxy.config = gap(Source::ProxyConfig, Why::Unreachable);
        proxy.metrics = gap(Source::ProxyMetrics, Why::Unreachable);
        proxy.cgroup = gap(Source::ProxyProcess, Why::Unreachable);
        proxy.process = gap(Source::ProxyProcess, Why::Unreachable);
        proxy.fds = gap(Source::ProxyProcess, Why::Unreachable);
        self
    }

    /// Adds an object that could not be used, from this source.
    pub fn rejects(mut self, source: Source) -> Self {
        self.cluster.rejected.push(Gap::new(source, Why::Malformed, "test"));
        self
    }

    /// The node without a configured name. No object has the hostname as its name.
    pub fn unnamed(mut self) -> Self {
        (self.cluster.node_name, self.kernel.hostname) = (None, "vm".to_owned());
        self.cluster.rejected.push(Gap::new(Source::Nodes, Why::Ambiguous, "test"));
        self
    }

    /// Changes the proxy's settings.
    #[track_caller]
    pub fn with_config(mut self, change: impl FnOnce(&mut ProxyConfig)) -> Self {
        match &mut self.kernel.proxy.config {
            Reading::Seen(config) => change(config),
            Reading::Gap(gap) => panic!("no settings to change: {gap:?}"),
        }
        self
    }

    /// Adds the Service `default/<name>` of type NodePort, with one TCP port, and with one ready endpoint of each
    /// family on this node.
    pub fn service(mut self, name: &str, change: impl FnOnce(World) -> World) -> Self {
        let world = change(World::new(name));
        seen(&mut self.cluster.services).push(world.service.into());
        seen(&mut self.cluster.endpoint_slices).extend(world.slices.into_iter().map(Arc::new));
        self
    }

    /// Adds a TCP listener of process `nginx` in pod `uid-squatter`.
    pub fn listens(self, local: &str) -> Self {
        self.listens_as(local, squatter())
    }

    /// Adds a TCP listener of this owner.
    pub fn listens_as(self, local: &str, owner: Owner) -> Self {
        self.socket(Protocol::Tcp, State::Listen, local, "0.0.0.0:0", |socket| socket.owner = owner)
    }

    /// Adds an unconnected UDP socket of pod `uid-squatter`.
    pub fn listens_udp(self, local: &str) -> Self {
        self.socket(Protocol::Udp, State::Close, local, "0.0.0.0:0", |_| ())
    }

    /// Adds a client socket of pod `uid-squatter`.
    pub fn connects(self, state: State, local: &str, remote: &str) -> Self {
        self.socket(Protocol::Tcp, state, local, remote, |_| ())
    }

    /// Adds a socket. It is a listener if `state` is the state of a listener.
    #[track_caller]
    pub fn socket(
        mut self,
        protocol: Protocol,
        state: State,
        local: &str,
        remote: &str,
        change: impl FnOnce(&mut Socket),
    ) -> Self {
        let (local, remote): (SocketAddr, SocketAddr) =
            (local.parse().expect("an address and port"), remote.parse().expect("an address and port"));
        let listening = matches!((protocol, state), (_, State::Listen) | (Protocol::Udp, State::Close));
        let family = Family::of(local.ip());
        let mut socket = Socket {
            protocol,
            state,
            family,
            local: local.ip(),
            local_port: local.port(),
            remote: remote.ip(),
            remote_port: remote.port(),
            v6only: (listening && family == Family::V6).then_some(false),
            uid: 0,
            inode: 4000 + u64::from(local.port()),
            cgroup: Some(77),
            device: 0,
            retransmits: 0,
            owner: squatter(),
        };
        change(&mut socket);
        if listening {
            seen(&mut self.kernel.listeners).push(socket);
        } else {
            seen(&mut self.kernel.clients).sockets.push(socket);
        }
        self
    }

    /// Adds an address to a link. If the node has no link with this name, the link is added too.
    pub fn address(mut self, link: &str, address: &str) -> Self {
        let interfaces = Arc::make_mut(seen(&mut self.kernel.interfaces));
        if interfaces.links.iter().all(|other| other.name != link) {
            let index = interfaces.links.len() as u32 + 1;
            let (name, kind) = (link.to_owned(), Some("dummy".to_owned()));
            interfaces.links.push(Link { index, name, kind, up: true, ..Link::default() });
        }
        let ip = ip(address);
        interfaces.addresses.push(Address { ip, prefix: if ip.is_ipv4() { 32 } else { 128 }, link: link.into() });
        self
    }

    /// Adds a tunnel. The tunnel is up, and its port is open for IPv4.
    pub fn tunnel(mut self, name: &str, kind: &str, port: u16, change: impl FnOnce(&mut Link)) -> Self {
        let links = &mut interfaces_of(&mut self).links;
        let mut link = Link {
            index: links.len() as u32 + 1,
            name: name.to_owned(),
            kind: Some(kind.to_owned()),
            udp_port: Some(port),
            tunnel: Some(Tunnel { families: vec![Family::V4], ..Tunnel::default() }),
            master: None,
            up: true,
        };
        change(&mut link);
        links.push(link);
        self
    }

    /// Sets the ephemeral port range and the reserved ports.
    #[track_caller]
    pub fn ephemeral(mut self, range: &str, reserved: &str) -> Self {
        self.kernel.sysctls.ip_local_port_range = Reading::Seen(range.parse().expect("a range"));
        self.kernel.sysctls.ip_local_reserved_ports = Reading::Seen(reserved.parse().expect("a list"));
        self
    }

    /// The node with supposed ephemeral and reserved ports, as with `--set`.
    #[track_caller]
    pub fn supposing(mut self, range: &str, reserved: &str) -> Self {
        self.overrides.sysctls_before = Some(self.kernel.sysctls.clone());
        self.ephemeral(range, reserved)
    }

    /// The node if a user stated the proxy's mode, and the proxy itself could not be read.
    pub fn with_user_mode(self, mode: Mode) -> Self {
        let mut world = self.without_proxy();
        world.overrides.proxy_mode = Some(Learned { value: mode, place: "--proxy-mode".to_owned() });
        world
    }

    /// Sets the NodePort range. The source of the range is `/flagz`.
    #[track_caller]
    pub fn node_port_range(mut self, range: &str) -> Self {
        seen(&mut self.cluster.node_port_range).range = range.parse().expect("a range");
        self
    }

    /// The node if no source has a NodePort range, so that the default is assumed.
    pub fn assumed_range(mut self) -> Self {
        self.cluster.node_port_range = Reading::Seen(NodePortRange::assumed());
        self
    }

    /// Adds the ready pod `default/<name>` with uid `uid-<name>` on this node.
    pub fn pod(mut self, name: &str, change: impl FnOnce(&mut Pod)) -> Self {
        let mut pod = Pod {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: Some(format!("uid-{name}")),
            node: Some("n1".to_owned()),
            ready: true,
            running: Some(true),
            ips: vec![ip("10.244.0.9"), ip("fd00:244::9")],
            ..Pod::default()
        };
        change(&mut pod);
        seen(&mut self.cluster.pods).push(pod.into());
        self
    }
}

impl Pod {
    /// Adds a TCP container port that has a hostPort.
    pub fn host_port(&mut self, port: u16, host_port: u16) {
        self.ports.push(ContainerPort { port, host_port: Some(host_port), host_ip: None, protocol: Protocol::Tcp });
    }
}

/// The process of pod `uid-squatter`.
pub fn squatter() -> Owner {
    held("/kubepods/besteffort/poduid-squatter/c1", Some("uid-squatter"), "nginx", 4242)
}

/// A daemon of the node, outside every pod.
pub fn daemon(command: &str, pid: u32) -> Owner {
    held(&format!("/system.slice/{command}.service"), None, command, pid)
}

/// The process of kube-proxy, which runs in a pod.
pub fn proxy_holder() -> Owner {
    held("/kubepods/burstable/poduid-kube-proxy/p1", Some("uid-kube-proxy"), "kube-proxy", 900)
}

/// A process and its control group.
pub fn held(path: &str, pod_uid: Option<&str>, command: &str, pid: u32) -> Owner {
    let pod = pod_uid.map(|uid| PodContainer { pod_uid: uid.to_owned(), container: None });
    Owner::Held(Holder {
        cgroup: Reading::Seen(Cgroup { path: path.to_owned(), pod }),
        process: Reading::Seen(Process { pid, command: command.to_owned(), command_line: None, started: 1 }),
    })
}

/// The value of a fact, so that a test can change it. Panics if the fact was not read.
#[track_caller]
pub fn seen<T: std::fmt::Debug>(reading: &mut Reading<T>) -> &mut T {
    match reading {
        Reading::Seen(fact) => fact,
        Reading::Gap(gap) => panic!("the test's world has a gap here: {gap:?}"),
    }
}

/// The links and addresses, so that a test can change them. Panics if they were not read.
#[track_caller]
pub fn interfaces_of(world: &mut Snapshot) -> &mut Interfaces {
    Arc::make_mut(seen(&mut world.kernel.interfaces))
}

/// The objects of one kind, so that a test can change them. Panics if they were not read.
#[track_caller]
pub fn objects<T: Clone + std::fmt::Debug>(reading: &mut Reading<Vec<Arc<T>>>) -> Vec<&mut T> {
    seen(reading).iter_mut().map(Arc::make_mut).collect()
}

fn node(name: &str, addresses: &[&str]) -> Node {
    Node {
        name: name.to_owned(),
        uid: Some(format!("uid-{name}")),
        addresses: addresses
            .iter()
            .map(|address| NodeAddress { kind: NodeAddressKind::InternalIp, ip: ip(address) })
            .collect(),
        excluded_from_load_balancers: false,
        kubelet_version: Some("v1.36.3".to_owned()),
        container_runtime: Some("containerd://2.1.4".to_owned()),
        pod_families: Vec::new(),
    }
}

fn every_port() -> PortSet {
    PortRange { first: 1, last: u16::MAX }.into()
}

fn kernel(at: Timestamp) -> KernelFacts {
    let Owner::Held(proxy) = proxy_holder() else { unreachable!("the proxy is a process") };
    KernelFacts {
        hostname: "n1".to_owned(),
        release: "6.18.0".to_owned(),
        booted: None,
        capabilities: Vec::new(),
        listeners: Reading::Seen(Vec::new()),
        no_udp: None,
        socket_source: "sock_diag".to_owned(),
        clients: Reading::Seen(Clients { searched: every_port(), bound_searched: every_port(), ..Clients::default() }),
        ephemeral: Reading::Seen(EphemeralUse::of_every_socket(40)),
        pod_namespaces: Reading::Seen(Vec::new()),
        sysctls: Sysctls {
            ip_local_port_range: Reading::Seen(PortRange::DEFAULT_EPHEMERAL),
            ip_local_reserved_ports: Reading::Seen(PortSet::default()),
            ip_unprivileged_port_start: Reading::Seen(1024),
            route_localnet: Reading::Seen(true),
            tcp_tw_reuse: Reading::Seen(2),
        },
        sockstat: Reading::Seen(SockStat { tcp: 30, tcp_time_wait: 5, udp: 5, tcp_everywhere: 30 }),
        interfaces: Reading::Seen(interfaces().into()),
        nameservers: Reading::Seen(vec![ip("198.51.100.53")]),
        ip_vs: gap(Source::IpVs, Why::NotSupported),
        ip_vs_connections: gap(Source::IpVsConn, Why::NotSupported),
        masquerade: Masquerade::not_requested(),
        masquerade_pools: Masquerade::pools_not_requested(),
        netfilter: gap(Source::Netfilter, Why::NotPermitted),
        proxy: ProxyFacts {
            mode: Reading::Seen(Learned { value: Mode::Iptables, place: "127.0.0.1:10249/proxyMode".to_owned() }),
            config: Reading::Seen(ProxyConfig {
                place: "127.0.0.1:10249/configz".to_owned(),
                mode: Some("iptables".to_owned()),
                localhost_node_ports: Some(true),
                detect_local_mode: Some("ClusterCIDR".to_owned()),
                cluster_cidr: Some("10.244.0.0/16,fd00:244::/48".to_owned()),
                ..ProxyConfig::default()
            }),
            metrics: Reading::Seen(ProxyMetrics {
                max_fds: Some(1_048_576),
                open_fds: Some(14),
                version: Some("v1.36.3".to_owned()),
                last_sync: Some(at),
                last_queued: Some(at),
            }),
            cgroup: proxy.cgroup,
            process: proxy.process,
            fds: gap(Source::ProxyProcess, Why::NotPermitted),
        },
        health_checks: Reading::Seen(Vec::new()),
    }
}

fn interfaces() -> Interfaces {
    let link = |index, name: &str| Link { index, name: name.to_owned(), up: true, ..Link::default() };
    let address = |link: &str, address: &str, prefix| Address { ip: ip(address), prefix, link: link.into() };
    Interfaces {
        links: vec![link(1, "lo"), link(2, "eth0")],
        addresses: vec![
            address("lo", "127.0.0.1", 8),
            address("lo", "::1", 128),
            address("eth0", PRIMARY[0], 24),
            address("eth0", PRIMARY[1], 64),
            address("eth0", SECOND[0], 24),
            address("eth0", SECOND[1], 64),
        ],
        gateways: vec![ip("192.0.2.254")],
        gateways_gap: None,
        default_links: Some(vec![2]),
    }
}
