//! The facts about the node's kernel and its proxy.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Clients, EphemeralUse, Extent, Family, Gap, PodNamespace, PortRange, PortSet, Protocol, ProxyFacts, Reading,
    Socket, Source, Unread,
};

/// All facts of the node. A fact that was not read contains the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// `/proc/sys/kernel/hostname`.
    pub hostname: String,
    /// `/proc/sys/kernel/osrelease`.
    pub release: String,
    /// The time at which the node booted, according to the node's present clock. `None` in recorded files.
    #[serde(default)]
    pub booted: Option<Timestamp>,
    /// The capabilities that Portreeve uses and this process has, for example `CAP_NET_ADMIN`.
    pub capabilities: Vec<String>,
    /// Listening sockets on all ports: TCP and SCTP sockets in LISTEN, and unconnected UDP sockets with a local port.
    pub listeners: Reading<Vec<Socket>>,
    /// The reason why UDP listeners were not read, although TCP listeners were read. Too many UDP sockets must not hide
    /// TCP sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_udp: Option<Gap>,
    /// The source of the sockets: sock_diag, or `/proc/net`, which shows less.
    pub socket_source: String,
    /// Connected sockets whose local port is in [`NodeQuery::client_ports`].
    pub clients: Reading<Clients>,
    /// The use of the host's ephemeral ports, for each destination.
    pub ephemeral: Reading<EphemeralUse>,
    /// The network namespaces that belong to pods.
    pub pod_namespaces: Reading<Vec<PodNamespace>>,
    /// Settings of the network stack.
    pub sysctls: Sysctls,
    /// `/proc/net/sockstat` and `sockstat6`.
    pub sockstat: Reading<SockStat>,
    /// Links and addresses.
    pub interfaces: Reading<Arc<Interfaces>>,
    /// Nameservers in the host's resolv.conf.
    pub nameservers: Reading<Vec<IpAddr>>,
    /// The IPVS virtual servers. Empty if the kernel has IPVS but no virtual server.
    pub ip_vs: Reading<Vec<VirtualServer>>,
    /// IPVS connections to the ports in the query. At most 4,096 are kept. Connections that explain a flow of
    /// [`Masquerade::unanswered`] are kept in any case.
    pub ip_vs_connections: Reading<Vec<IpVsConnection>>,
    /// Flows whose source address was translated to an address of this node. To read these flows, a process needs
    /// CAP_NET_ADMIN.
    #[serde(default = "Masquerade::not_requested")]
    pub masquerade: Reading<Masquerade>,
    /// The pools of masqueraded source ports with the most used ports, the busiest pool first. At most 16 pools are
    /// kept, each with at least 64 flows. The pools are read only if source ports may be nearly used up.
    #[serde(default = "Masquerade::pools_not_requested")]
    pub masquerade_pools: Reading<Vec<MasqueradePool>>,
    /// The tables of nftables and the chains of iptables.
    pub netfilter: Reading<Netfilter>,
    /// kube-proxy's answers on loopback.
    pub proxy: ProxyFacts,
    /// The answers to a GET request on each healthCheckNodePort of the query.
    pub health_checks: Reading<Vec<HealthCheckAnswer>>,
}

impl KernelFacts {
    /// The facts if no node was scanned, and only objects are judged. Every fact is unread.
    pub fn not_requested() -> Self {
        Self {
            hostname: String::new(),
            release: String::new(),
            booted: None,
            capabilities: Vec::new(),
            listeners: unread(Source::Listeners),
            no_udp: None,
            socket_source: String::new(),
            clients: unread(Source::Clients),
            ephemeral: unread(Source::EphemeralUse),
            pod_namespaces: unread(Source::PodNamespaces),
            sysctls: Sysctls {
                ip_local_port_range: unread(Source::Sysctls),
                ip_local_reserved_ports: unread(Source::Sysctls),
                ip_unprivileged_port_start: unread(Source::Sysctls),
                route_localnet: unread(Source::Sysctls),
                tcp_tw_reuse: unread(Source::Sysctls),
            },
            sockstat: unread(Source::Sockstat),
            interfaces: unread(Source::Addresses),
            nameservers: unread(Source::ResolvConf),
            ip_vs: unread(Source::IpVs),
            ip_vs_connections: unread(Source::IpVsConn),
            masquerade: unread(Source::Conntrack),
            masquerade_pools: unread(Source::Conntrack),
            netfilter: unread(Source::Netfilter),
            proxy: ProxyFacts {
                mode: unread(Source::ProxyMode),
                config: unread(Source::ProxyConfig),
                metrics: unread(Source::ProxyMetrics),
                cgroup: unread(Source::ProxyProcess),
                process: unread(Source::ProxyProcess),
                fds: unread(Source::ProxyProcess),
            },
            health_checks: unread(Source::HealthChecks),
        }
    }

    /// Adds the settings of this snapshot to its count of ephemeral ports, if an earlier version of Portreeve recorded
    /// the count without settings. Call this function before you change settings.
    pub fn record_extent(&mut self) {
        let Reading::Seen(EphemeralUse { extent: extent @ Extent::NotRecorded, .. }) = &mut self.ephemeral else {
            return;
        };
        *extent = Extent::Walked {
            ports: self.sysctls.ephemeral_ports().unwrap_or_default(),
            tcp_tw_reuse: self.sysctls.tcp_tw_reuse.known(Unread::Doubted).copied(),
            every: self.sockstat.known(Unread::Doubted).map(SockStat::of_one_protocol),
        };
    }

    /// The reason why listeners may be missing.
    pub fn unread_listeners(&self) -> Option<&Gap> {
        self.listeners.gap().or(self.no_udp.as_ref())
    }

    /// If `source` [walks connections](Source::walks_connections), replaces the facts of `source` with the facts of
    /// `other`.
    pub fn take(&mut self, source: Source, other: &Self) {
        match source {
            Source::Clients => self.clients = other.clients.clone(),
            Source::EphemeralUse => self.ephemeral = other.ephemeral.clone(),
            Source::PodNamespaces => self.pod_namespaces = other.pod_namespaces.clone(),
            Source::Conntrack => {
                self.masquerade = other.masquerade.clone();
                self.masquerade_pools = other.masquerade_pools.clone();
            }
            Source::IpVsConn => self.ip_vs_connections = other.ip_vs_connections.clone(),
            _ => {}
        }
    }
}

fn unread<T>(source: Source) -> Reading<T> {
    Reading::not_requested(source, "no node was scanned")
}

/// The facts that a scan reads in addition to the facts of every scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeQuery {
    /// The ports on which the scan reads the owners of listeners: the NodePort range, and all other ports that a rule
    /// needs.
    pub owner_ports: PortSet,
    /// The local ports for which the scan lists client sockets, and masqueraded flows without an answer.
    pub client_ports: PortSet,
    /// Local ports that a server needs, and that another socket may hold. The port of the command `owner` is also in
    /// this set. For a port without a listener, the scan also reads which peers of the port's clients are servers. The
    /// scan also lists the sockets that are bound to the port but do not listen.
    pub contested: PortSet,
    /// Whether the scan also searches for clients on ports outside the ephemeral port range. A port outside this range
    /// means that the client's program chose the port. On a host with many connections, this search costs more than all
    /// other facts.
    pub bound_on_purpose: bool,
    /// Ports for which masqueraded flows are counted. Empty if no rule needs the count. Counting takes about a
    /// microsecond for each masqueraded flow.
    pub masquerade_ports: PortSet,
    /// Whether the scan counts pools of masqueraded source ports, if source ports may be nearly used up.
    pub masquerade_pools: bool,
    /// healthCheckNodePorts to query. At most 64 are queried.
    pub health_check_ports: Vec<u16>,
    /// Whether command lines may be kept. A command line can contain secrets.
    pub command_lines: bool,
    /// For each pod in this map, the scan reads the pod's network namespace. The key is the uid in the pod's control
    /// groups. The map is empty on a healthy node.
    pub pods: BTreeMap<String, PodQuery>,
    /// Facts that the scan does not read, because no rule needs them.
    pub skipped: BTreeSet<Source>,
}

/// The facts to read in one pod's own network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodQuery {
    /// The ephemeral ports of the pod, if the pod's specification sets them. The scan counts how many of these ports
    /// are used.
    pub ephemeral: Option<PortSet>,
    /// The ports that the pod's servers need. The pod's sockets on these ports are listed.
    pub needed: PortSet,
}

/// Settings below `/proc/sys/net` in the reader's own network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sysctls {
    /// `net.ipv4.ip_local_port_range`, for both families.
    pub ip_local_port_range: Reading<PortRange>,
    /// `net.ipv4.ip_local_reserved_ports`, for both families.
    pub ip_local_reserved_ports: Reading<PortSet>,
    /// `net.ipv4.ip_unprivileged_port_start`.
    pub ip_unprivileged_port_start: Reading<u16>,
    /// `net.ipv4.conf.all.route_localnet`.
    pub route_localnet: Reading<bool>,
    /// `net.ipv4.tcp_tw_reuse`: 0 is off, 1 is on, 2 is on for loopback only.
    pub tcp_tw_reuse: Reading<u8>,
}

impl Sysctls {
    /// The ports that the kernel chooses for connections: the ephemeral port range without the reserved ports.
    ///
    /// # Errors
    /// Fails if the range or the reserved ports were not read.
    pub fn ephemeral_ports(&self) -> Result<PortSet, Gap> {
        Ok(PortSet::from(*self.ip_local_port_range.get()?).minus(self.ip_local_reserved_ports.get()?))
    }
}

/// Numbers of sockets, as the sums of `/proc/net/sockstat` and `sockstat6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SockStat {
    /// TCP sockets in use, of both families, without TIME_WAIT.
    pub tcp: u32,
    /// TCP sockets in TIME_WAIT.
    pub tcp_time_wait: u32,
    /// UDP sockets in use, of both families.
    pub udp: u32,
    /// TCP sockets of every network namespace of the host, without TIME_WAIT.
    #[serde(default)]
    pub tcp_everywhere: u32,
}

impl SockStat {
    /// An upper bound for the number of sockets to one destination. This bound is the larger of two numbers: the UDP
    /// sockets, and the TCP sockets including TIME_WAIT.
    pub fn of_one_protocol(&self) -> u32 {
        self.udp.max(self.tcp.saturating_add(self.tcp_time_wait))
    }
}

/// Links, their addresses and the default gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interfaces {
    /// Every link.
    pub links: Vec<Link>,
    /// Every address.
    pub addresses: Vec<Address>,
    /// Gateways of the default routes. If [`Self::gateways_gap`] is set, some gateways may be missing.
    pub gateways: Vec<IpAddr>,
    /// The reason why gateways may be missing. `None` if all gateways were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateways_gap: Option<Gap>,
    /// The links of the main table's default routes, by index. A route over several links is left out. `None` in older
    /// snapshots, and if the gateways were not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_links: Option<Vec<u32>>,
}

/// The link that Cilium makes on every node.
pub const CILIUM_HOST: &str = "cilium_host";

/// Links of data planes whose behaviour Portreeve has not measured. `true` means: the link proves that the data plane
/// serves NodePorts. `false` means: the link may also exist beside kube-proxy.
const UNMEASURED: [(&str, &str, bool); 5] = [
    ("bpfin.cali", "Calico's eBPF data plane", true),
    ("kube-dummy-if", "kube-router", true),
    ("ovn-k8s-mp0", "OVN-Kubernetes", true),
    ("kube-bridge", "kube-router", false),
    ("antrea-gw0", "Antrea", false),
];

impl Interfaces {
    /// A data plane whose behaviour Portreeve has not measured, and its link on this node.
    pub fn unmeasured(&self) -> Option<(&'static str, &'static str)> {
        UNMEASURED.into_iter().find(|(link, ..)| self.has_link(link)).map(|(link, name, _)| (name, link))
    }

    /// A data plane that replaces kube-proxy on this node, and its link. Portreeve has not measured the behaviour of
    /// this data plane.
    pub fn unmeasured_proxy(&self) -> Option<(&'static str, &'static str)> {
        self.unmeasured().filter(|(_, link)| UNMEASURED.iter().any(|(its, _, serves)| its == link && *serves))
    }

    /// Whether there is a link of this name.
    pub fn has_link(&self, name: &str) -> bool {
        self.links.iter().any(|link| link.name == name)
    }

    /// The tunnels that are down, each with its UDP port. For WireGuard, it is the [default port](Link::wireguard).
    pub fn tunnels_down(&self) -> impl Iterator<Item = (u16, &Link)> {
        let port = |link: &Link| link.udp_port.or_else(|| Some(link.wireguard()?.port));
        self.links.iter().filter(|link| !link.up).filter_map(move |link| Some((port(link)?, link)))
    }

    /// The addresses of the link with this name.
    pub fn of<'a>(&'a self, link: &'a str) -> impl Iterator<Item = &'a Address> {
        self.addresses.iter().filter(move |address| *address.link == *link)
    }
}

/// One link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The link's interface index.
    pub index: u32,
    /// The link's name.
    pub name: String,
    /// The kind of a virtual link, for example `dummy` or `vxlan`.
    pub kind: Option<String>,
    /// The UDP port that the kernel opens for a VXLAN, Geneve or bareudp link while the link is up. `None` if the link
    /// was made in another network namespace, because the kernel then opens the port in that namespace.
    ///
    /// `None` for WireGuard: the kernel reports this port only with CAP_NET_ADMIN, and then also the private key
    /// (drivers/net/wireguard/netlink.c `wg_get_device_dump`).
    pub udp_port: Option<u16>,
    /// How the kernel opens the UDP port. `None` if the kernel opens no UDP port in this network namespace, and in
    /// snapshots of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Tunnel>,
    /// The master link, for example a VRF or a bridge.
    pub master: Option<u32>,
    /// Whether the link is administratively up (`IFF_UP`). While a tunnel is up, the kernel has the tunnel's port. If
    /// another socket has the port, the tunnel cannot go up, and the kernel returns EADDRINUSE
    /// (drivers/net/vxlan/vxlan_core.c `vxlan_open`).
    pub up: bool,
}

/// How the kernel opens the UDP port of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// The VNI of the tunnel's packets. `None` if the tunnel accepts any VNI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// The option `external` of ip-link(8): the program that sends a packet sets the VNI of the packet
    /// (`IFLA_VXLAN_COLLECT_METADATA`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// Other receive options of VXLAN, such as `gbp`, by their names in ip-link(8), sorted. Two devices can share a
    /// port only if these options and `external` are equal (include/net/vxlan.h `VXLAN_F_RCV_FLAGS`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// The families for which the tunnel opens the port.
    pub families: Vec<Family>,
}

/// The default settings of a WireGuard device that a network plugin makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireGuard {
    /// The name of the device.
    pub device: &'static str,
    /// The UDP port.
    pub port: u16,
    /// The plugin.
    pub plugin: &'static str,
    /// The setting that changes the port. `None` if the port cannot be changed.
    pub setting: Option<&'static str>,
}

impl WireGuard {
    /// The devices and their defaults. The values are from these files: cilium/cilium pkg/wireguard/types/types.go (a
    /// constant), projectcalico/calico felix/config/config_params.go, flannel-io/flannel
    /// pkg/backend/wireguard/wireguard.go, squat/kilo pkg/mesh/backend.go, antrea-io/antrea pkg/apis/ports.go.
    const ALL: [Self; 7] = [
        Self::of("cilium_wg0", 51871, "Cilium", None),
        Self::of("wireguard.cali", 51820, "Calico", Some("`wireguardListeningPort` in Calico's FelixConfiguration")),
        Self::of("wg-v6.cali", 51821, "Calico", Some("`wireguardListeningPortV6` in Calico's FelixConfiguration")),
        Self::of("flannel-wg", 51820, "flannel", Some("`ListenPort` in flannel's net-conf.json")),
        Self::of("flannel-wg-v6", 51821, "flannel", Some("`ListenPortV6` in flannel's net-conf.json")),
        Self::of("antrea-wg0", 51820, "Antrea", Some("`wireGuard.port` in antrea-agent.conf")),
        Self::of("kilo0", 51820, "Kilo", Some("`--port` of Kilo")),
    ];

    const fn of(device: &'static str, port: u16, plugin: &'static str, setting: Option<&'static str>) -> Self {
        Self { device, port, plugin, setting }
    }
}

impl Link {
    /// The default settings of this link, if it is the WireGuard device of a network plugin. The kernel probably opens
    /// the default port for this link.
    pub fn wireguard(&self) -> Option<WireGuard> {
        WireGuard::ALL.into_iter().find(|it| self.is_wireguard() && it.device == self.name)
    }

    /// The ports that the kernel may open for this WireGuard device. If a network plugin made the device, the result is
    /// the plugin's default port. Otherwise the result is the default ports of all network plugins. Empty for other
    /// links.
    pub fn wireguard_ports(&self) -> PortSet {
        let known = self.wireguard();
        let all = WireGuard::ALL.into_iter().filter(|it| known.is_none_or(|known| known.port == it.port));
        all.filter(|_| self.is_wireguard()).map(|it| it.port).collect()
    }

    fn is_wireguard(&self) -> bool {
        self.kind.as_deref() == Some("wireguard")
    }

    /// Whether this tunnel and another tunnel cannot share one port. `None` if it is unknown how the kernel opens the
    /// ports of the two tunnels.
    ///
    /// Two Geneve devices can always share a port: the kernel does not make a Geneve device that conflicts with another
    /// (drivers/net/geneve.c `geneve_configure`).
    pub fn excludes(&self, other: &Self) -> Option<bool> {
        let (Some(one), Some(two)) = (&self.tunnel, &other.tunnel) else { return None };
        let alike = one.external == two.external && one.options == two.options;
        let shared = self.kind == other.kind && (alike || self.kind.as_deref() == Some("geneve"));
        Some(!shared && one.families.iter().any(|family| two.families.contains(family)))
    }
}

/// One address of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The prefix length in bits.
    pub prefix: u8,
    /// The name of the link of this address. The addresses of a link share this text in memory, because kube-ipvs0 may
    /// have ten thousand addresses.
    pub link: Arc<str>,
}

/// The links to which a proxy in ipvs mode adds Service addresses. The first is kube-proxy's link, the second is
/// kube-router's link.
pub const IPVS_LINKS: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

impl Address {
    /// Whether a proxy in ipvs mode added the address for a Service.
    pub fn is_ipvs(&self) -> bool {
        IPVS_LINKS.contains(&&*self.link)
    }

    /// Whether another address is in the network of this address.
    pub fn network_has(&self, ip: IpAddr) -> bool {
        IpNet::new(self.ip, self.prefix).is_ok_and(|network| network.contains(&ip))
    }

    /// Whether the address has the longest prefix, /32 or /128. Programs add addresses with this prefix to a node that
    /// already has other addresses.
    pub fn is_alone(&self) -> bool {
        self.prefix >= if self.ip.is_ipv4() { 32 } else { 128 }
    }
}

/// One line of `/proc/net/ip_vs`: a virtual server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualServer {
    /// The virtual server's protocol.
    pub protocol: Protocol,
    /// The virtual server's address.
    pub ip: IpAddr,
    /// The virtual server's port.
    pub port: u16,
    /// The number of the virtual server's real servers.
    pub real_servers: u32,
}

/// One line of `/proc/net/ip_vs_conn`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpVsConnection {
    /// The connection's protocol.
    pub protocol: Protocol,
    /// The address and port of the client, as IPVS sees them.
    pub from: (IpAddr, u16),
    /// The address and port of the virtual server.
    pub to: (IpAddr, u16),
    /// The address and port of the real server that got the connection.
    pub destination: (IpAddr, u16),
    /// The state in IPVS' own words, for example `SYN_RECV`.
    pub state: String,
}

/// Tables, chains and rules of netfilter, from an nfnetlink dump. The dump includes the chains of iptables-nft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netfilter {
    /// The tables of nftables as `family name`, for example `ip kube-proxy`.
    pub tables: Vec<String>,
    /// Chains whose name begins with `KUBE-`, as `family table chain`. Chains of single Services and endpoints
    /// (`KUBE-SVC-...`) are left out.
    pub chains: Vec<String>,
    /// Tables of legacy iptables. The dump does not list the chains of these tables.
    pub legacy_tables: Vec<String>,
    /// The rules with which the CNI plugin `portmap` redirects hostPorts. Within a table, the rules have the order in
    /// which the kernel evaluates them.
    #[serde(default = "Redirection::not_requested")]
    pub redirections: Reading<Vec<Redirection>>,
    /// Destination ports for which rules in tables `raw` turn conntrack off (`NOTRACK`, `CT --notrack`), each port
    /// once. Rules with other conditions and rules of legacy iptables are left out.
    #[serde(default = "untracked_not_requested")]
    pub untracked: Reading<Vec<(Protocol, u16)>>,
}

fn untracked_not_requested() -> Reading<Vec<(Protocol, u16)>> {
    Reading::not_requested(Source::Netfilter, "rules that hide packets from conntrack were not requested")
}

#[cfg(any(test, feature = "testing"))]
impl Default for Netfilter {
    /// Netfilter without any rule.
    fn default() -> Self {
        let (redirections, untracked) = (Reading::Seen(Vec::new()), Reading::Seen(Vec::new()));
        Self { tables: Vec::new(), chains: Vec::new(), legacy_tables: Vec::new(), redirections, untracked }
    }
}

/// A rule that redirects connections from a port of the node to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirection {
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The hostPort.
    pub port: u16,
    /// The `hostIP`. `None` means every address of the node.
    pub ip: Option<IpAddr>,
    /// The pod's address.
    pub to: IpAddr,
    /// The pod's port.
    pub to_port: u16,
    /// The chain of the rule, as `family table chain`.
    pub chain: String,
    /// The handle with which `nft` deletes the rule.
    pub handle: u64,
}

impl Redirection {
    /// The value in snapshots that are older than [`Netfilter::redirections`].
    fn not_requested() -> Reading<Vec<Self>> {
        Reading::not_requested(Source::Netfilter, "redirections of hostPorts were not requested")
    }
}

/// The answer to `GET /` on a healthCheckNodePort, at `127.0.0.1` or at the node's address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheckAnswer {
    /// The healthCheckNodePort to which the request was sent.
    pub port: u16,
    /// `namespace/name` of the Service in the answer, if a proxy answered (`{"service":{"namespace":...,"name":...}}`,
    /// kubernetes pkg/proxy/healthcheck). `None` if another program answered.
    pub service: Reading<Option<String>>,
}

impl HealthCheckAnswer {
    /// The largest number of healthCheckNodePorts that are queried.
    pub const MOST: usize = 64;
}

/// The conntrack flows whose source address was translated to an address of this node, for the protocols that Services
/// can have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Masquerade {
    /// The number of flows whose source port was translated to a port of [`NodeQuery::masquerade_ports`], by protocol.
    /// A protocol without flows is left out.
    pub flows: Reading<BTreeMap<Protocol, u64>>,
    /// At most 64 flows that have no answer yet, and whose source port was translated to a port of
    /// [`NodeQuery::client_ports`]. For TCP, such a flow is in SYN_SENT. For UDP and SCTP, conntrack has seen no reply.
    pub unanswered: Vec<MasqueradedFlow>,
    /// The number of flows without an answer that [`Self::unanswered`] does not contain.
    pub beyond: u64,
}

impl Masquerade {
    /// The value in older snapshots, and if no rule needs the flows.
    pub fn not_requested() -> Reading<Self> {
        Reading::not_requested(Source::Conntrack, "IPVS has no virtual servers on this node")
    }

    /// The value for the pools in older snapshots, and if no rule needs the pools.
    pub fn pools_not_requested() -> Reading<Vec<MasqueradePool>> {
        Reading::not_requested(Source::Conntrack, "the kernel dropped no connection, and tracks few connections")
    }
}

/// The source ports of one address of this node, for one destination. All masqueraded flows to this destination have
/// different source ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasqueradePool {
    /// The protocol.
    pub protocol: Protocol,
    /// The address of the node that replaces the source address of the flows.
    pub translated: IpAddr,
    /// The address and port of the server that answers. For a connection to a Service, this is the endpoint.
    pub server: (IpAddr, u16),
    /// The number of ports in use.
    pub used: u32,
    /// The lowest and the highest port in use.
    pub ports: PortRange,
    /// The number of flows whose source port differs from the port that the client chose.
    pub moved: u32,
    /// At most eight clients with the most flows. Each client has the number of its flows.
    pub senders: Vec<(IpAddr, u32)>,
}

/// One flow whose source was translated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasqueradedFlow {
    /// The masqueraded flow's protocol.
    pub protocol: Protocol,
    /// The client's own address and port.
    pub source: (IpAddr, u16),
    /// The address and port of this node that replace the client's address and port. The server answers there.
    pub translated: (IpAddr, u16),
    /// The address and port of the server that answers. For a connection to a Service, this is the endpoint.
    pub server: (IpAddr, u16),
}
