//! The text form of an example node: the fields of a file below `platforms`.

use serde::{Deserialize, Deserializer};

/// A file of `platforms`: a healthy node, the same node later, and the same node with one thing broken.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct World {
    /// A description in one sentence.
    pub(crate) about: String,
    /// The sources of its facts: `https://...`, or `owner/repository path/of/file`.
    pub(crate) sources: Vec<String>,
    /// The facts of the node.
    #[serde(default)]
    pub(super) node: Node,
    /// The facts of the cluster.
    #[serde(default)]
    pub(super) cluster: Cluster,
    /// Every finding of severity info, and every unknown result, in the form of [`super::reported`].
    #[serde(default)]
    pub(super) says: Lines,
    /// Findings above info, each of them a known false alarm.
    #[serde(default)]
    pub(super) wrong: Lines,
    /// The same node at other moments, healthy too.
    #[serde(default)]
    pub(super) later: Vec<Change>,
    /// The same node with one thing broken, and the expected findings.
    #[serde(default)]
    pub(super) sick: Vec<Change>,
}

/// The differences from the healthy node of the same file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    /// The difference, in a few words.
    pub(super) what: String,
    /// Additional facts of the node.
    #[serde(default)]
    pub(super) node: Node,
    /// Additional facts of the cluster.
    #[serde(default)]
    pub(super) cluster: Cluster,
    /// The removed lines.
    #[serde(default)]
    pub(super) without: Lines,
    /// `sick`: every finding above info. `later`: every finding of severity info and every unknown result, if these differ.
    pub(super) says: Option<Lines>,
}

/// The facts of the node. Each list is a block of lines; `lines.rs` reads them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Node {
    /// The address families of the node; the default is `[IPv4]`.
    pub(super) families: Vec<String>,
    /// The proxy of the node.
    pub(super) proxy: Option<Proxy>,
    /// `tcp LISTEN *:10250 kubelet`, `tcp ESTAB 192.0.2.1:443 192.0.2.77:51234 ingress-nginx/controller:nginx`.
    pub(super) sockets: Lines,
    /// `flannel.1 vxlan 8472`: name, kind, UDP port. After it `external`, `id=1`, and `down` if it is not up.
    pub(super) links: Lines,
    /// `cni0 10.244.0.1/24`; a link without a line in `tunnels` is a plain link.
    pub(super) addresses: Lines,
    /// `tcp_tw_reuse 1`.
    pub(super) sysctls: Lines,
    /// Nameservers, if they are not the default.
    pub(super) nameservers: Lines,
    /// `tcp 192.0.2.1 -> 198.51.100.7:443 used 27500 waiting 27400 haproxy`, at the end `in namespace/pod`.
    pub(super) busy: Lines,
    /// IPVS servers besides those that the proxy makes: `udp 192.0.2.53:53 2`.
    pub(super) virtual_servers: Lines,
    /// Netfilter objects that the proxy does not make: `table ip calico`, `chain ip nat KUBE-NODEPORTS`, `legacy ip
    /// nat`.
    pub(super) netfilter: Lines,
    /// `tcp 192.0.2.1 -> 198.51.100.7:443 used 32000 moved 20 ports 1024-65535 from 10.244.1.7`: source ports of masquerade in use.
    pub(super) pools: Lines,
    /// `tcp 80 10.244.1.5:8080`: a hostPort and the target of portmap's redirection, in the order of the rules.
    pub(super) redirections: Lines,
    /// `shop/cart tcp ESTAB 10.244.1.5:38080 10.96.0.9:443 shop/cart:envoy`: a pod, and a socket in its own network on a port that its
    /// servers want.
    pub(super) in_pods: Lines,
    /// The answer on a healthCheckNodePort: `31000 ingress/nginx`.
    pub(super) health_checks: Lines,
}

/// The proxy. Its mode decides its sockets and its rules in the kernel.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Proxy {
    /// `iptables`, `ipvs`, `nftables`, `cilium`, or `none` if the mode is not known.
    pub(super) mode: String,
    /// `answers` on port 10249, or `configuration`: a ConfigMap names its mode.
    #[serde(default)]
    pub(super) known_by: KnownBy,
    /// Its process, as in `sockets`.
    pub(super) owner: Option<String>,
    /// `nodePortAddresses`.
    #[serde(default)]
    pub(super) node_port_addresses: Vec<String>,
    /// Cilium masquerades in eBPF.
    #[serde(default)]
    pub(super) masquerades: bool,
    /// `metricsBindAddress` is another address, or the proxy does not listen on the health port.
    #[serde(default)]
    pub(super) without_sockets: bool,
}

/// The source of the proxy's mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KnownBy {
    #[default]
    Answers,
    Configuration,
}

/// The facts of the cluster about this node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cluster {
    /// The version of the nodes and of kube-proxy.
    pub(super) version: Option<String>,
    /// The container runtime of this node; the default is `containerd://2.1.4`.
    pub(super) runtime: Option<String>,
    /// `n1 InternalIP 192.0.2.1 ExternalIP 203.0.113.1 excluded`; `n1` is this node.
    pub(super) nodes: Lines,
    /// `default/web NodePort 10.96.0.20 80:30080>8080/tcp to 10.244.0.5@n1`. A load balancer has `lb 192.0.2.50`; `vip-host n1`
    /// if kube-vip announces the address on `n1`; `pool lan` if MetalLB took it from a pool.
    pub(super) services: Lines,
    /// `default/edge 80>8080/tcp`, `ingress/nginx hostNetwork not-ready 443>443/tcp`, `default/app x250`; `failing wants
    /// 8080/tcp`: its container ends with an error and needs this port of the pod's network.
    pub(super) pods: Lines,
    /// The NodePort range, if it is not the default.
    pub(super) node_port_range: Option<String>,
}

/// A block of lines; empty lines and lines that begin with `#` are skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Columns may be aligned.
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
    /// The broken part of each sick twin.
    pub(crate) fn sick(&self) -> impl Iterator<Item = &str> {
        self.sick.iter().map(|sick| sick.what.as_str())
    }

    /// The facts of the node and the cluster after a change. Fails if a line to remove does not exist.
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
