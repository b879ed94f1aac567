//! The facts from the node's kernel and its proxy.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Clients, EphemeralUse, Extent, Family, Gap, PodNamespace, PortRange, PortSet, Protocol, ProxyFacts, Reading,
    Socket, Source, Unread, Why,
};

/// All facts of the node. Each fact that was not read has its own reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// `/proc/sys/kernel/hostname`.
    pub hostname: String,
    /// `/proc/sys/kernel/osrelease`.
    pub release: String,
    /// The boot time of the node, by its current clock; absent in recorded files.
    #[serde(default)]
    pub booted: Option<Timestamp>,
    /// The capabilities of this process that a reader would use, e.g. `CAP_NET_ADMIN`.
    pub capabilities: Vec<String>,
    /// Listening sockets: TCP and SCTP in LISTEN, UDP unconnected with a local port. All ports.
    pub listeners: Reading<Vec<Socket>>,
    /// Why UDP listeners are missing, if so. Too many UDP sockets must not hide TCP sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_udp: Option<Gap>,
    /// The source of sockets: sock_diag, or `/proc/net` with its limits.
    pub socket_source: String,
    /// Connected sockets whose local port is in [`NodeQuery::client_ports`].
    pub clients: Reading<Clients>,
    /// Use of the host's ephemeral range by destination.
    pub ephemeral: Reading<EphemeralUse>,
    /// Pods' own network namespaces.
    pub pod_namespaces: Reading<Vec<PodNamespace>>,
    /// Settings of the network stack.
    pub sysctls: Sysctls,
    /// `/proc/net/sockstat` and `sockstat6`.
    pub sockstat: Reading<SockStat>,
    /// Links and addresses.
    pub interfaces: Reading<Arc<Interfaces>>,
    /// Nameservers in the host's resolv.conf.
    pub nameservers: Reading<Vec<IpAddr>>,
    /// The IPVS virtual servers; an empty list if the kernel has IPVS without virtual servers.
    pub ip_vs: Reading<Vec<VirtualServer>>,
    /// IPVS connections to wanted ports, at most 4,096, and the connections that an answer to one of [`Masquerade::unanswered`] made.
    pub ip_vs_connections: Reading<Vec<IpVsConnection>>,
    /// Flows whose source was translated to an address of this node; needs CAP_NET_ADMIN.
    #[serde(default = "Masquerade::not_requested")]
    pub masquerade: Reading<Masquerade>,
    /// The pools of source ports with the most used ports, busiest first: at most 16, none with fewer than 64 flows. Not
    /// read while no sign shows that ports may run out.
    #[serde(default = "Masquerade::pools_not_requested")]
    pub masquerade_pools: Reading<Vec<MasqueradePool>>,
    /// nft tables and iptables chains.
    pub netfilter: Reading<Netfilter>,
    /// kube-proxy as it answers on loopback.
    pub proxy: ProxyFacts,
    /// The answers to a GET on each wanted healthCheckNodePort.
    pub health_checks: Reading<Vec<HealthCheckAnswer>>,
}

impl KernelFacts {
    /// The facts to judge only objects: no node was scanned, and every fact is unread.
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

    /// Gives the count of ephemeral ports the settings of this snapshot, if an earlier version recorded the count. Call
    /// this function before a change of settings.
    pub fn record_extent(&mut self) {
        let Reading::Seen(EphemeralUse { extent: extent @ Extent::NotRecorded, .. }) = &mut self.ephemeral else {
            return;
        };
        let Sysctls { ip_local_port_range, ip_local_reserved_ports, tcp_tw_reuse, .. } = &self.sysctls;
        let range = ip_local_port_range.known(Unread::Doubted).copied().map(PortSet::from);
        let reserved = ip_local_reserved_ports.known(Unread::Doubted);
        *extent = Extent::Walked {
            ports: range.zip(reserved).map(|(range, reserved)| range.minus(reserved)).unwrap_or_default(),
            tcp_tw_reuse: tcp_tw_reuse.known(Unread::Doubted).copied(),
            every: self.sockstat.known(Unread::Doubted).map(SockStat::of_one_protocol),
        };
    }

    /// Why listeners may be missing.
    pub fn unread_listeners(&self) -> Option<&Gap> {
        self.listeners.gap().or(self.no_udp.as_ref())
    }

    /// Replaces the facts of one source with the facts of `other`. Only a source that [walks
    /// connections](Source::walks_connections) can come from another snapshot.
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
    Reading::Gap(Gap::new(source, Why::NotRequested, "no node was scanned"))
}

/// The facts that a scan reads besides the constant facts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeQuery {
    /// Ports whose listeners' owners are read: the NodePort range and every other port that a rule needs.
    pub owner_ports: PortSet,
    /// Local ports whose client sockets are listed, and unanswered masqueraded flows.
    pub client_ports: PortSet,
    /// Local ports that a server needs and may lack. If no process listens on such a port, the scan reads more of its
    /// clients: whether their peers are servers, and which sockets are bound to the port without listening.
    pub contested: PortSet,
    /// Whether the scan also searches for clients on ports outside the ephemeral range, which a program must have bound
    /// by number. On a host with many connections this costs more than all other facts.
    pub bound_on_purpose: bool,
    /// Ports on which masqueraded flows are counted. Empty if no rule needs the count: counting takes about a microsecond
    /// for each such flow of the node.
    pub masquerade_ports: PortSet,
    /// Whether pools of masqueraded source ports are counted, if a sign shows that ports may run out.
    pub masquerade_pools: bool,
    /// healthCheckNodePorts to query; at most 64 are queried.
    pub health_check_ports: Vec<u16>,
    /// Whether command lines may be kept; they can hold secrets.
    pub command_lines: bool,
    /// The queries of single pods' own network namespaces, by the uid in the pod's control groups. A healthy node has none.
    pub pods: BTreeMap<String, PodQuery>,
    /// Facts that no rule needs: they are not read.
    pub skipped: BTreeSet<Source>,
}

/// The query of one pod's own network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodQuery {
    /// The ports from which the kernel chooses in the pod, if the pod's specification sets them: their use is counted.
    pub ephemeral: Option<PortSet>,
    /// The ports that its servers need: its sockets on these are listed.
    pub needed: PortSet,
}

/// Settings below `/proc/sys/net`, of the reader's own network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sysctls {
    /// `net.ipv4.ip_local_port_range`, both families.
    pub ip_local_port_range: Reading<PortRange>,
    /// `net.ipv4.ip_local_reserved_ports`, both families.
    pub ip_local_reserved_ports: Reading<PortSet>,
    /// `net.ipv4.ip_unprivileged_port_start`.
    pub ip_unprivileged_port_start: Reading<u16>,
    /// `net.ipv4.conf.all.route_localnet`.
    pub route_localnet: Reading<bool>,
    /// `net.ipv4.tcp_tw_reuse`: 0 off, 1 on, 2 loopback only.
    pub tcp_tw_reuse: Reading<u8>,
}

/// Sums of `/proc/net/sockstat` and `sockstat6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SockStat {
    /// TCP sockets in use, both families, without TIME_WAIT.
    pub tcp: u32,
    /// TCP sockets in TIME_WAIT.
    pub tcp_time_wait: u32,
    /// UDP sockets in use, both families.
    pub udp: u32,
    /// TCP sockets of every network namespace of the host, without TIME_WAIT.
    #[serde(default)]
    pub tcp_everywhere: u32,
}

impl SockStat {
    /// The number of TCP sockets, in TIME_WAIT too, or of UDP sockets if these are more. One destination has no more.
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
    /// Gateways of the default routes. With [`Self::gateways_gap`], there may be more.
    pub gateways: Vec<IpAddr>,
    /// Why the gateways were not read, if they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateways_gap: Option<Gap>,
    /// The links of a default route of the main table, by index, without routes over several links. Absent if the gateways
    /// are absent, and in older snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_links: Option<Vec<u32>>,
}

/// Cilium's own link.
pub const CILIUM_HOST: &str = "cilium_host";

/// Links of unmeasured data planes, and whether each proves that the data plane serves NodePorts. The other links also exist beside
/// kube-proxy.
const UNMEASURED: [(&str, &str, bool); 5] = [
    ("bpfin.cali", "Calico's eBPF data plane", true),
    ("kube-dummy-if", "kube-router", true),
    ("ovn-k8s-mp0", "OVN-Kubernetes", true),
    ("kube-bridge", "kube-router", false),
    ("antrea-gw0", "Antrea", false),
];

impl Interfaces {
    /// An unmeasured data plane, and its link.
    pub fn unmeasured(&self) -> Option<(&'static str, &'static str)> {
        UNMEASURED.into_iter().find(|(link, ..)| self.has_link(link)).map(|(link, name, _)| (name, link))
    }

    /// An unmeasured data plane that replaces kube-proxy, and its link.
    pub fn unmeasured_proxy(&self) -> Option<(&'static str, &'static str)> {
        self.unmeasured().filter(|(_, link)| UNMEASURED.iter().any(|(its, _, serves)| its == link && *serves))
    }

    /// Whether there is a link of this name.
    pub fn has_link(&self, name: &str) -> bool {
        self.links.iter().any(|link| link.name == name)
    }

    /// The tunnels that are down although they have a UDP port, with the port. For WireGuard, it is the [default](Link::wireguard) port.
    pub fn tunnels_down(&self) -> impl Iterator<Item = (u16, &Link)> {
        let port = |link: &Link| link.udp_port.or_else(|| Some(link.wireguard()?.port));
        self.links.iter().filter(|link| !link.up).filter_map(move |link| Some((port(link)?, link)))
    }

    /// The addresses of a link by its name.
    pub fn of<'a>(&'a self, link: &'a str) -> impl Iterator<Item = &'a Address> {
        self.addresses.iter().filter(move |address| *address.link == *link)
    }
}

/// One link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The link's interface index.
    pub index: u32,
    /// The link's name.
    pub name: String,
    /// The kind of a virtual link, e.g. `dummy`, `vxlan`.
    pub kind: Option<String>,
    /// The UDP port that the kernel opens for the link while it is up: VXLAN, Geneve and bareudp. None if the kernel
    /// opens the port in another network namespace, in which the link was made. The port of WireGuard is never read:
    /// the kernel reports the port only with CAP_NET_ADMIN, and together with the private key
    /// (drivers/net/wireguard/netlink.c `wg_get_device_dump`).
    pub udp_port: Option<u16>,
    /// How the kernel opens this port. Earlier versions did not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Tunnel>,
    /// The master link, e.g. a VRF or a bridge.
    pub master: Option<u32>,
    /// Whether the link is administratively up (`IFF_UP`). A tunnel is up only while the kernel has its port. When a
    /// tunnel is set up, the kernel opens the port, and fails with EADDRINUSE if another socket has it
    /// (drivers/net/vxlan/vxlan_core.c `vxlan_open`).
    pub up: bool,
}

/// How the kernel opens the UDP port of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// The VNI of its packets; none if it accepts any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// `external` of ip-link(8): the sender sets the VNI of each packet (`IFLA_VXLAN_COLLECT_METADATA`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// VXLAN's other options of receiving, by their names in ip-link(8), sorted: `gbp`. Devices share a port if these options and
    /// `external` are the same (include/net/vxlan.h `VXLAN_F_RCV_FLAGS`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// The families for which the tunnel opens the port.
    pub families: Vec<Family>,
}

/// A WireGuard device of a network plugin, with the plugin's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireGuard {
    /// The name of the device.
    pub device: &'static str,
    /// The UDP port.
    pub port: u16,
    /// The plugin.
    pub plugin: &'static str,
    /// The setting of the port, if there is one.
    pub setting: Option<&'static str>,
}

impl WireGuard {
    /// The defaults are from these files: cilium/cilium pkg/wireguard/types/types.go (a constant), projectcalico/calico
    /// felix/config/config_params.go, flannel-io/flannel pkg/backend/wireguard/wireguard.go, squat/kilo pkg/mesh/backend.go,
    /// antrea-io/antrea pkg/apis/ports.go.
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
    /// The defaults of a WireGuard device of a network plugin: the port that the kernel probably opens for it.
    pub fn wireguard(&self) -> Option<WireGuard> {
        let is_wireguard = self.kind.as_deref() == Some("wireguard");
        WireGuard::ALL.into_iter().find(|it| is_wireguard && it.device == self.name)
    }

    /// Whether two tunnels cannot share one port. None if it is unknown how they open the port.
    ///
    /// Geneve devices always share: the kernel refuses to make a device that cannot share (drivers/net/geneve.c
    /// `geneve_configure`).
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
    /// The name of its link, shared by all its addresses: kube-ipvs0 may have ten thousand.
    pub link: Arc<str>,
}

/// The links to which an ipvs proxy adds Service addresses: kube-proxy's and kube-router's.
pub const IPVS_LINKS: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

impl Address {
    /// Whether an ipvs proxy added the address for a Service.
    pub fn is_ipvs(&self) -> bool {
        IPVS_LINKS.contains(&&*self.link)
    }

    /// Whether no other address is in its network, as for addresses that were added beside a node's own addresses.
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
    /// The number of its real servers.
    pub real_servers: u32,
}

/// One line of `/proc/net/ip_vs_conn`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpVsConnection {
    /// The connection's protocol.
    pub protocol: Protocol,
    /// The client, as IPVS sees it.
    pub from: (IpAddr, u16),
    /// The virtual server.
    pub to: (IpAddr, u16),
    /// The real server that got the connection.
    pub destination: (IpAddr, u16),
    /// IPVS' own name of the state, e.g. `SYN_RECV`.
    pub state: String,
}

/// Traces of proxies in netfilter, from an nfnetlink dump. nft lists iptables-nft chains too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Netfilter {
    /// nft tables as `family name`, e.g. `ip kube-proxy`.
    pub tables: Vec<String>,
    /// Chains whose name begins with `KUBE-`, as `family table chain`, without the chains of single Services and endpoints
    /// (`KUBE-SVC-...`).
    pub chains: Vec<String>,
    /// Tables of legacy iptables, whose chains cannot be listed in this way.
    pub legacy_tables: Vec<String>,
    /// The redirections of hostPorts by the CNI plugin `portmap`, in the order in which the kernel evaluates them within a
    /// table.
    #[serde(default = "Redirection::not_requested")]
    pub redirections: Reading<Vec<Redirection>>,
    /// The destination ports whose packets rules in tables `raw` keep from conntrack (`NOTRACK`, `CT --notrack`), each
    /// once. Rules with other conditions, and rules of legacy iptables, are not included.
    #[serde(default = "untracked_not_requested")]
    pub untracked: Reading<Vec<(Protocol, u16)>>,
}

fn untracked_not_requested() -> Reading<Vec<(Protocol, u16)>> {
    Reading::Gap(Gap::new(
        Source::Netfilter,
        Why::NotRequested,
        "rules that hide packets from conntrack were not requested",
    ))
}

#[cfg(any(test, feature = "testing"))]
impl Default for Netfilter {
    /// A read result without rules.
    fn default() -> Self {
        let (redirections, untracked) = (Reading::Seen(Vec::new()), Reading::Seen(Vec::new()));
        Self { tables: Vec::new(), chains: Vec::new(), legacy_tables: Vec::new(), redirections, untracked }
    }
}

/// A rule that redirects the connections to a port of the node to an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirection {
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The hostPort.
    pub port: u16,
    /// The `hostIP`; every address of the node without one.
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
    /// The reading for snapshots that are older than this fact.
    fn not_requested() -> Reading<Vec<Self>> {
        Reading::Gap(Gap::new(Source::Netfilter, Why::NotRequested, "redirections of hostPorts were not requested"))
    }
}

/// The answer to `GET /` on a healthCheckNodePort, at `127.0.0.1` or the node's address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheckAnswer {
    /// The port of the request.
    pub port: u16,
    /// `namespace/name` of the Service in the answer of a proxy
    /// (`{"service":{"namespace":...,"name":...}}`, kubernetes pkg/proxy/healthcheck); none if another program answered.
    pub service: Reading<Option<String>>,
}

impl HealthCheckAnswer {
    /// The largest number of ports.
    pub const MOST: usize = 64;
}

/// The conntrack flows whose source was translated to an address of this node, over the protocols that Services can have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Masquerade {
    /// The number of flows that got a port of [`NodeQuery::masquerade_ports`], by protocol; an absent protocol has none.
    pub flows: Reading<BTreeMap<Protocol, u64>>,
    /// Flows without an answer that got a port of [`NodeQuery::client_ports`]: over TCP in SYN_SENT, over other protocols without a reply.
    /// At most 64.
    pub unanswered: Vec<MasqueradedFlow>,
    /// The number of further flows without an answer.
    pub beyond: u64,
}

impl Masquerade {
    /// The reading if no rule needs it, and in older snapshots.
    pub fn not_requested() -> Reading<Self> {
        Reading::Gap(Gap::new(Source::Conntrack, Why::NotRequested, "IPVS has no virtual servers on this node"))
    }

    /// The reading of pools while no rule needs it, and in older snapshots.
    pub fn pools_not_requested() -> Reading<Vec<MasqueradePool>> {
        Reading::Gap(Gap::new(
            Source::Conntrack,
            Why::NotRequested,
            "the kernel dropped no connection, and tracks few connections",
        ))
    }
}

/// The source ports of one address of this node towards one destination: two masqueraded flows to this destination never have the same
/// port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasqueradePool {
    /// The protocol.
    pub protocol: Protocol,
    /// The node's address with which the flows leave.
    pub translated: IpAddr,
    /// The source of answers: the destination, translated if it is a Service's address.
    pub server: (IpAddr, u16),
    /// The number of ports in use.
    pub used: u32,
    /// The lowest and the highest port in use.
    pub ports: PortRange,
    /// The number of flows whose port differs from the sender's port.
    pub moved: u32,
    /// The senders with most flows, each with its count; at most eight.
    pub senders: Vec<(IpAddr, u32)>,
}

/// One flow whose source was translated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasqueradedFlow {
    /// The masqueraded flow's protocol.
    pub protocol: Protocol,
    /// The sender's own address and port.
    pub source: (IpAddr, u16),
    /// This node's address and the chosen port: the destination of answers.
    pub translated: (IpAddr, u16),
    /// The source of an answer: the destination, translated if it is a Service's address.
    pub server: (IpAddr, u16),
}
