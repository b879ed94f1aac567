//! The text form of an example node: the fields of a file in the folder `platforms`.

use serde::{Deserialize, Deserializer};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct World {
    pub(crate) about: String,
    /// The sources of the node's facts: `https://...`, or `owner/repository path/of/file`.
    pub(crate) sources: Vec<String>,
    #[serde(default)]
    pub(super) node: Node,
    #[serde(default)]
    pub(super) cluster: Cluster,
    /// All findings of severity info and all unknown results, in the form of [`super::reported`].
    #[serde(default)]
    pub(super) says: Lines,
    /// All findings above info. Each finding is a known false alarm.
    #[serde(default)]
    pub(super) wrong: Lines,
    /// The same node at later moments. The node is still healthy.
    #[serde(default)]
    pub(super) later: Vec<Change>,
    /// The same node with one fault, and the findings that the program must report.
    #[serde(default)]
    pub(super) sick: Vec<Change>,
}

/// The differences from the healthy node in the same file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    pub(super) what: String,
    #[serde(default)]
    pub(super) node: Node,
    #[serde(default)]
    pub(super) cluster: Cluster,
    #[serde(default)]
    pub(super) without: Lines,
    /// In `sick`: all findings above info. In `later`: all findings of severity info and all unknown results, if they
    /// differ from the healthy node's `says`.
    pub(super) says: Option<Lines>,
}

/// The facts of a node. Each list is a block of lines. `lines.rs` reads the lines.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Node {
    /// The address families of the node; the default is `[IPv4]`.
    pub(super) families: Vec<String>,
    pub(super) proxy: Option<Proxy>,
    /// The sockets: `tcp LISTEN *:10250 kubelet`, `tcp ESTAB 192.0.2.1:443 192.0.2.77:51234
    /// ingress-nginx/controller:nginx`.
    pub(super) sockets: Lines,
    /// The links, `flannel.1 vxlan 8472`: name, kind, UDP port. Further words are optional: `external`, `id=1`, and
    /// `down` if the device is not up.
    pub(super) links: Lines,
    /// The addresses: `cni0 10.244.0.1/24`. If the link has no line in `links`, it is a plain link.
    pub(super) addresses: Lines,
    /// The settings of the kernel: `tcp_tw_reuse 1`.
    pub(super) sysctls: Lines,
    /// The nameservers, if they differ from the default.
    pub(super) nameservers: Lines,
    /// The ports that connections to a destination use: `tcp 192.0.2.1 -> 198.51.100.7:443 used 27500 waiting 27400
    /// haproxy`, then `in namespace/pod` for a pod's own network.
    pub(super) busy: Lines,
    /// IPVS servers that the proxy does not make: `udp 192.0.2.53:53 2`.
    pub(super) virtual_servers: Lines,
    /// Netfilter objects that the proxy does not make: `table ip calico`, `chain ip nat KUBE-NODEPORTS`, `legacy ip
    /// nat`.
    pub(super) netfilter: Lines,
    /// The source ports that masquerade uses: `tcp 192.0.2.1 -> 198.51.100.7:443 used 32000 moved 20 ports 1024-65535
    /// from 10.244.1.7`.
    pub(super) pools: Lines,
    /// `tcp 80 10.244.1.5:8080`: a hostPort, and the address to which portmap redirects the hostPort. The kernel
    /// evaluates the rules in the order of the lines.
    pub(super) redirections: Lines,
    /// `shop/cart tcp ESTAB 10.244.1.5:38080 10.96.0.9:443 shop/cart:envoy`: a pod, and a socket in the pod's own
    /// network. The socket has a port that the pod's servers need.
    pub(super) in_pods: Lines,
    /// The port of a health check, and the Service in the answer: `31000 ingress/nginx`.
    pub(super) health_checks: Lines,
}

/// A proxy. The mode determines the sockets and the kernel rules of the proxy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Proxy {
    /// `iptables`, `ipvs`, `nftables`, `cilium`, or `none` if the mode is not known.
    pub(super) mode: String,
    /// `answers`: the proxy answers on port 10249. `configuration`: a ConfigMap names the proxy's mode.
    #[serde(default)]
    pub(super) known_by: KnownBy,
    /// The proxy's process, in the form of an owner in `sockets`.
    pub(super) owner: Option<String>,
    #[serde(default)]
    pub(super) node_port_addresses: Vec<String>,
    /// Whether Cilium masquerades in eBPF.
    #[serde(default)]
    pub(super) masquerades: bool,
    /// Whether the proxy listens neither on its metrics port nor on its health port, for example while the proxy
    /// restarts.
    #[serde(default)]
    pub(super) without_sockets: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KnownBy {
    #[default]
    Answers,
    Configuration,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cluster {
    /// The version of all kubelets and of kube-proxy.
    pub(super) version: Option<String>,
    /// The container runtime of this node; the default is `containerd://2.1.4`.
    pub(super) runtime: Option<String>,
    /// The Nodes: `n1 InternalIP 192.0.2.1 ExternalIP 203.0.113.1 excluded`. `n1` is this node.
    pub(super) nodes: Lines,
    /// The Services: `default/web NodePort 10.96.0.20 80:30080>8080/tcp to 10.244.0.5@n1`. The address of a load
    /// balancer: `lb 192.0.2.50`. If kube-vip announces the address on `n1`: `vip-host n1`. If MetalLB took the address
    /// from a pool: `pool lan`.
    pub(super) services: Lines,
    /// The pods: `default/edge 80>8080/tcp`, `ingress/nginx hostNetwork not-ready 443>443/tcp`, `default/app x250`.
    /// `failing wants 8080/tcp`: the pod's container ends with an error, and needs this port in the pod's network.
    pub(super) pods: Lines,
    /// The NodePort range, if it differs from the default.
    pub(super) node_port_range: Option<String>,
}

/// A block of lines. Empty lines and lines that begin with `#` do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Columns may be aligned with spaces.
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        Ok(Self(lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()))
    }
}

impl Lines {
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    fn change(&mut self, more: &Self, without: &mut Vec<String>) {
        self.0.retain(|line| match without.iter().position(|gone| gone == line) {
            Some(place) => {
                without.remove(place);
                false
            }
            None => true,
        });
        self.0.extend(more.0.iter().cloned());
    }
}

impl World {
    pub(crate) fn sick(&self) -> impl Iterator<Item = &str> {
        self.sick.iter().map(|sick| sick.what.as_str())
    }

    /// The node after a change. Fails if the node lacks a line that the change removes.
    #[track_caller]
    pub(super) fn after(&self, change: &Change) -> (Node, Cluster) {
        let (mut node, mut cluster) = (self.node.clone(), self.cluster.clone());
        let mut without = change.without.0.clone();
        node.change(&change.node, &mut without);
        cluster.change(&change.cluster, &mut without);
        assert!(without.is_empty(), "{}: no such lines: {without:?}", change.what);
        (node, cluster)
    }
}

impl Node {
    fn change(&mut self, other: &Self, without: &mut Vec<String>) {
        let pairs = [
            (&mut self.sockets, &other.sockets),
            (&mut self.links, &other.links),
            (&mut self.addresses, &other.addresses),
            (&mut self.sysctls, &other.sysctls),
            (&mut self.nameservers, &other.nameservers),
            (&mut self.busy, &other.busy),
            (&mut self.virtual_servers, &other.virtual_servers),
            (&mut self.netfilter, &other.netfilter),
            (&mut self.pools, &other.pools),
            (&mut self.redirections, &other.redirections),
            (&mut self.in_pods, &other.in_pods),
            (&mut self.health_checks, &other.health_checks),
        ];
        for (mine, more) in pairs {
            mine.change(more, without);
        }
        self.proxy = other.proxy.clone().or_else(|| self.proxy.clone());
    }
}

impl Cluster {
    fn change(&mut self, other: &Self, without: &mut Vec<String>) {
        let pairs =
            [(&mut self.nodes, &other.nodes), (&mut self.services, &other.services), (&mut self.pods, &other.pods)];
        for (mine, more) in pairs {
            mine.change(more, without);
        }
        self.version = other.version.clone().or_else(|| self.version.clone());
        self.runtime = other.runtime.clone().or_else(|| self.runtime.clone());
        self.node_port_range = other.node_port_range.clone().or_else(|| self.node_port_range.clone());
    }
}
