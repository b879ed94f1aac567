//! The settings on which the answers of data planes depend.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::LazyLock,
};

use ipnet::IpNet;

use super::{devices::Devices, local_address::is_link_local};
use portreeve_facts::{Address, CILIUM_HOST, CiliumConfig, Family, Interfaces, PortSet, ProxyConfig, WithoutBackend};

/// The networks that the words `localhost` and `all` in `nodePortAddresses` mean (Kubernetes 1.37).
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];
pub(super) const EVERY: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// Networks that Cilium treats as private (cilium pkg/ip/ip.go). Link-local and loopback addresses are left out.
const PRIVATE: [&str; 15] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "100::/64",
    "2001:2::/48",
    "2001:db8::/48",
    "fc00::/7",
];

fn is_private(ip: IpAddr) -> bool {
    static NETWORKS: LazyLock<Vec<IpNet>> =
        LazyLock::new(|| PRIVATE.iter().filter_map(|cidr| cidr.parse().ok()).collect());
    NETWORKS.iter().any(|network| network.contains(&ip))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    /// `nodePortAddresses`, and the addresses that `primary` means on this node.
    NodePortAddresses,
    LocalhostNodePorts,
    /// `detectLocalMode` and its CIDRs: whether kube-proxy can distinguish this node's pods from clients outside.
    LocalDetector,
    /// The sysctl `route_localnet`. kube-proxy turns the sysctl on once, when kube-proxy starts.
    RouteLocalnet,
    /// The feature gate `KubeProxyNFTablesLocalhostNodePorts`, and whether `nodePortAddresses` names loopback.
    NftablesLocalhost,
    Version,
    /// Settings of Cilium: devices and their addresses, families, the NodePort range, SCTP, and external IPs on other
    /// devices.
    Devices,
    /// `service-no-backend-response` and `enable-no-service-endpoints-routable`.
    WithoutBackend,
    /// `bpf-lb-sock-hostns-only`, and `bpf-lb-enable-wildcard-entries`.
    HostNamespaceOnly,
}

#[cfg(test)]
impl Setting {
    pub(super) const ALL: [Self; 9] = [
        Self::NodePortAddresses,
        Self::LocalhostNodePorts,
        Self::LocalDetector,
        Self::RouteLocalnet,
        Self::NftablesLocalhost,
        Self::Version,
        Self::Devices,
        Self::WithoutBackend,
        Self::HostNamespaceOnly,
    ];
}

/// The outcome of a connection to a NodePort on a loopback address in nftables mode (KEP-6032).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Localhost {
    Untouched,
    Rejected,
    /// kube-proxy listens on TCP ports that are free, and refuses other protocols.
    Proxied,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The networks on whose addresses NodePorts are served: IPv4, then IPv6. `None` means every address of the family.
    /// If the list has no CIDR of a family, kube-proxy serves every address of this family (kubernetes
    /// pkg/proxy/util/nodeport_addresses.go).
    pub(super) networks: [Option<Vec<IpNet>>; 2],
    /// Whether `localhostNodePorts` is on and has an effect.
    pub(super) localhost_node_ports: bool,
    /// The outcome of NodePorts on loopback addresses in nftables mode: for IPv4, then for IPv6.
    pub(super) localhost: [Localhost; 2],
    /// Whether kube-proxy has a local detector: for IPv4, then for IPv6. Without a detector, kube-proxy treats this
    /// node's pods as clients outside.
    pub(super) local_detector: [bool; 2],
    /// `route_localnet`: whether packets from 127.0.0.1 can be sent to a pod.
    pub(super) route_localnet: bool,
    pub(super) before_1_26: bool,
    /// The addresses of the devices that Cilium serves, and of `lo`. `None` means every address.
    pub(super) of_devices: Option<Vec<IpAddr>>,
    pub(super) families_off: Vec<Family>,
    /// Cilium's NodePort range. `None` means every port. Cilium serves a NodePort outside of this range only on the
    /// addresses for remote clients, also for the node and its pods (cilium `bpf/bpf_sock.c`, `sock4_wildcard_lookup`;
    /// `bpf/lib/lb.h`, `lb4_lookup_wildcard_nodeport_service`).
    pub(super) node_port_range: Option<PortSet>,
    pub(super) sctp: bool,
    pub(super) without_backend: WithoutBackend,
    /// Whether Cilium serves an external IP on each address of the node, for connections of the node and its pods.
    pub(super) external_ips_anywhere: bool,
    /// Whether Cilium translates each packet of a pod, and not the pod's `connect`.
    pub(super) host_namespace_only: bool,
    /// With `host_namespace_only`: whether Cilium serves pods only on the addresses that clients outside can use
    /// (Cilium before 1.20).
    pub(super) pods_by_list: bool,
    /// Whether Cilium may drop packets from outside to a load balancer's address, at a port that no Service has. With
    /// `bpf-lb-enable-wildcard-entries: "false"`, Cilium does not drop these packets.
    pub(super) may_drop_other_ports: bool,
}

impl Settings {
    pub(super) const NOT_NEEDED: Self = Self {
        networks: [None, None],
        localhost_node_ports: false,
        localhost: [Localhost::Untouched; 2],
        local_detector: [true; 2],
        route_localnet: true,
        before_1_26: false,
        of_devices: None,
        families_off: Vec::new(),
        node_port_range: None,
        sctp: false,
        without_backend: WithoutBackend::Reject,
        external_ips_anywhere: false,
        host_namespace_only: false,
        pods_by_list: false,
        may_drop_other_ports: false,
    };

    pub(super) fn serve_on(&mut self, node_port_addresses: &[String], primary: [Option<IpAddr>; 2]) {
        let networks: Vec<IpNet> = node_port_addresses
            .iter()
            .flat_map(|text| match text.as_str() {
                "primary" => primary.into_iter().flatten().map(IpNet::from).collect(),
                "localhost" => LOOPBACK.iter().filter_map(|cidr| cidr.parse().ok()).collect(),
                "all" => EVERY.iter().filter_map(|cidr| cidr.parse().ok()).collect(),
                cidr => cidr.parse().into_iter().collect::<Vec<IpNet>>(),
            })
            .collect();
        self.networks = Family::BOTH.map(|family| {
            let of_family: Vec<IpNet> =
                networks.iter().copied().filter(|network| Family::of(network.addr()) == family).collect();
            (!of_family.is_empty()).then_some(of_family)
        });
    }

    /// Sets the outcome on loopback. With the feature gate, kube-proxy serves NodePorts on loopback if a network of
    /// `nodePortAddresses` begins with a loopback address. A larger network that contains loopback does not have this
    /// effect (kubernetes pkg/proxy/util/nodeport_addresses.go).
    pub(super) fn set_localhost(&mut self, config: &ProxyConfig) {
        let names =
            |networks: &Option<Vec<IpNet>>| networks.iter().flatten().any(|network| network.addr().is_loopback());
        if config.nftables_localhost == Some(true) {
            self.localhost = [0, 1]
                .map(|family| if names(&self.networks[family]) { Localhost::Proxied } else { Localhost::Rejected });
        }
    }

    /// Sets the addresses that Cilium serves. If `nodeport-addresses` is set, Cilium serves the addresses of its
    /// devices that this list contains. If the setting is empty, Cilium serves one address of each family on each
    /// device and on `lo`.
    ///
    /// If `otherwise` is true, the result includes uncertain addresses: addresses of possible devices, link-local
    /// addresses, and all addresses among which Cilium chooses.
    pub(super) fn serve_devices(
        &mut self,
        (listed, config): (&[String], &CiliumConfig),
        primary: [Option<IpAddr>; 2],
        interfaces: &Interfaces,
        otherwise: bool,
    ) {
        let all = &interfaces.addresses;
        let devices = Devices::of(config, primary, interfaces);
        let is_primary = |address: &Address| primary.contains(&Some(address.ip));
        // On each device and in each family, Cilium serves the Node's address. If the device has only one address of
        // the family, Cilium serves this address. If the Node's address is public and the device also has a private
        // address, the answer depends on Cilium's version. Cilium 1.18.0 takes the Node's address. Cilium 1.19.7 and
        // 1.20.2 take the private address (cilium pkg/datapath/tables/node_address.go).
        let is_chosen = |address: &Address| {
            let family = |it: &&Address| {
                let usable = !is_link_local(it.ip) && !it.ip.is_loopback();
                it.link == address.link && Family::of(it.ip) == Family::of(address.ip) && usable
            };
            let mut rivals = all.iter().filter(family).filter(|it| it.ip != address.ip);
            match all.iter().filter(family).find(|it| is_primary(it)) {
                Some(primary) if !is_private(primary.ip) && all.iter().filter(family).any(|it| is_private(it.ip)) => {
                    (primary.ip != address.ip && !is_private(address.ip)).then_some(false)
                }
                Some(primary) => Some(primary.ip == address.ip),
                None => rivals.next().is_none().then_some(true),
            }
        };
        let of_devices = all.iter().filter(|address| devices.have(address).unwrap_or(otherwise));
        self.of_devices = Some(of_devices.map(|address| address.ip).collect());
        let by_itself =
            all.iter().filter(|address| *address.link != *CILIUM_HOST).filter(|address| match devices.have(address) {
                Some(true) => is_chosen(address).unwrap_or(otherwise),
                Some(false) => false,
                None => otherwise,
            });
        let networks: Vec<IpNet> = match listed {
            [] => by_itself.map(|address| IpNet::from(address.ip)).collect(),
            listed => listed.iter().filter_map(|cidr| cidr.parse().ok()).collect(),
        };
        // If the list has no address of a family, Cilium serves no address of this family. kube-proxy would serve every
        // address.
        self.networks = Family::BOTH.map(|family| {
            Some(networks.iter().copied().filter(|network| Family::of(network.addr()) == family).collect())
        });
    }

    pub(super) fn is_of_devices(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.of_devices.as_ref().is_none_or(|addresses| addresses.contains(&ip))
    }

    /// If `nodePortAddresses` lists networks, but not 127.0.0.1, kube-proxy turns `localhostNodePorts` off.
    pub(super) fn set_localhost_node_ports(&mut self, config: &ProxyConfig) {
        let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
        let mut networks = self.networks.iter().flatten().flatten().peekable();
        let listed = networks.peek().is_none() || networks.any(|network| network.contains(&localhost));
        self.localhost_node_ports = config.localhost_node_ports.unwrap_or(true) && listed;
    }

    pub(super) fn lists(&self, ip: IpAddr) -> bool {
        let networks = &self.networks[Family::of(ip).index()];
        networks.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(&ip)))
    }

    pub(super) fn lists_every(&self, family: Family) -> bool {
        self.networks[family.index()].is_none()
    }

    pub(super) fn detects_pods(&self, family: Family) -> bool {
        self.local_detector[family.index()]
    }
}
