//! The text form of a world: what a file below `platforms` may say.

use serde::{Deserialize, Deserializer};

/// A file of `platforms`: a healthy node, the same node later, and the same node with one thing broken.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct World {
    /// What it is, in one sentence.
    pub(crate) about: String,
    /// Where its facts are from: `https://...`, or `owner/repository path/of/file`.
    pub(crate) sources: Vec<String>,
    /// What the node showed.
    #[serde(default)]
    pub(super) node: Node,
    /// What the cluster showed.
    #[serde(default)]
    pub(super) cluster: Cluster,
    /// Every information, and everything that stays unknown here, as [`super::told`] writes them.
    #[serde(default)]
    pub(super) says: Lines,
    /// Findings above info, each of them a known false alarm.
    #[serde(default)]
    pub(super) wrong: Lines,
    /// The same node at other moments, each of them healthy too.
    #[serde(default)]
    pub(super) later: Vec<Change>,
    /// The same node with one thing broken, and what has to be found then.
    #[serde(default)]
    pub(super) sick: Vec<Change>,
}

/// What differs from the healthy world of the same file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Change {
    /// What differs, in a few words.
    pub(super) what: String,
    /// What the node shows in addition.
    #[serde(default)]
    pub(super) node: Node,
    /// What the cluster shows in addition.
    #[serde(default)]
    pub(super) cluster: Cluster,
    /// The lines of the world that are gone.
    #[serde(default)]
    pub(super) without: Lines,
    /// `sick`: every finding above info. `later`: every information and everything unknown, where these differ.
    pub(super) says: Option<Lines>,
}

/// What the node shows. Each of the lists is a block of lines; `lines.rs` reads them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Node {
    /// The address families of the node: `[IPv4]` where none are named.
    pub(super) families: Vec<String>,
    /// Who programs Services here.
    pub(super) proxy: Option<Proxy>,
    /// `tcp LISTEN *:10250 kubelet`, `tcp ESTAB 192.0.2.1:443 192.0.2.77:51234 ingress-nginx/controller:nginx`.
    pub(super) sockets: Lines,
    /// `flannel.1 vxlan 8472`: name, kind, UDP port. Behind it `external`, `id=1`, and `down` where it is not up.
    pub(super) links: Lines,
    /// `cni0 10.244.0.1/24`; a link that was not named is a plain one.
    pub(super) addresses: Lines,
    /// `tcp_tw_reuse 1`.
    pub(super) sysctls: Lines,
    /// Nameservers, where they are not the network's own.
    pub(super) nameservers: Lines,
    /// `tcp 192.0.2.1 -> 198.51.100.7:443 used 27500 waiting 27400 haproxy`, at the end `in namespace/pod`.
    pub(super) busy: Lines,
    /// IPVS servers besides those that the proxy makes: `udp 192.0.2.53:53 2`.
    pub(super) virtual_servers: Lines,
    /// Besides what the proxy makes: `table ip calico`, `chain ip nat KUBE-NODEPORTS`, `legacy ip nat`.
    pub(super) netfilter: Lines,
    /// `tcp 192.0.2.1 -> 198.51.100.7:443 used 32000 moved 20 ports 1024-65535 from 10.244.1.7`: source ports of masquerade in use.
    pub(super) pools: Lines,
    /// `tcp 80 10.244.1.5:8080`: a hostPort, and where portmap redirects it, in the order of the rules.
    pub(super) redirections: Lines,
    /// `shop/cart tcp ESTAB 10.244.1.5:38080 10.96.0.9:443 shop/cart:envoy`: a pod, and a socket in its own network on a port that its
    /// servers want.
    pub(super) in_pods: Lines,
    /// Who answers on a healthCheckNodePort: `31000 ingress/nginx`.
    pub(super) health_checks: Lines,
}

/// The proxy. By its mode the world gets its sockets and what it programs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Proxy {
    /// `iptables`, `ipvs`, `nftables`, `cilium`, or `none` where nobody knows.
    pub(super) mode: String,
    /// `answers` on port 10249, or `configuration`: a ConfigMap names its mode.
    #[serde(default)]
    pub(super) known_by: KnownBy,
    /// Who it is, as in `sockets`.
    pub(super) owner: Option<String>,
    /// `nodePortAddresses`.
    #[serde(default)]
    pub(super) node_port_addresses: Vec<String>,
    /// Cilium masquerades in eBPF.
    #[serde(default)]
    pub(super) masquerades: bool,
    /// `metricsBindAddress` is another one, or it does not listen where the health of nodes is asked.
    #[serde(default)]
    pub(super) without_sockets: bool,
}

/// How the proxy's mode is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KnownBy {
    #[default]
    Answers,
    Configuration,
}

/// What the cluster shows, this node's part.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cluster {
    /// The version of the nodes and of kube-proxy.
    pub(super) version: Option<String>,
    /// The container runtime of this node, `containerd://2.1.4` without it.
    pub(super) runtime: Option<String>,
    /// `n1 InternalIP 192.0.2.1 ExternalIP 203.0.113.1 excluded`; `n1` is this node.
    pub(super) nodes: Lines,
    /// `default/web NodePort 10.96.0.20 80:30080>8080/tcp to 10.244.0.5@n1`. A load balancer's has `lb 192.0.2.50`, and `vip-host n1` where
    /// kube-vip announces the address on `n1`, `pool lan` where MetalLB gave it from a pool.
    pub(super) services: Lines,
    /// `default/edge 80>8080/tcp`, `ingress/nginx hostNetwork not-ready 443>443/tcp`, `default/app x250`; `failing wants 8080/tcp` of one
    /// whose container ends with an error, and needs this port of its own network.
    pub(super) pods: Lines,
    /// The NodePort range, where it is not the default.
    pub(super) node_port_range: Option<String>,
}

/// A block of lines; empty ones and those that begin with `#` do not count.
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
    /// What is broken in each of the sick twins.
    pub(crate) fn sick(&self) -> impl Iterator<Item = &str> {
        self.sick.iter().map(|sick| sick.what.as_str())
    }

    /// What the node and the cluster show after a change. Fails on a line that was to go and is not there.
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
