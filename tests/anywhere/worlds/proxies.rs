//! The facts of a proxy, and the proxy's objects in the kernel, by the proxy's mode.
//!
//! The names of chains, tables and devices are from kubernetes/kubernetes: pkg/proxy/iptables, pkg/proxy/ipvs and
//! pkg/proxy/nftables.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use portreeve_facts::{
    CiliumConfig, Gap, Learned, Masquerade, Mode, Netfilter, Owner, ProxyConfig, ProxyMetrics, Reading, Snapshot,
    Source, State, VirtualServer, Why,
};

use super::{
    build::{add_address, seen, virtual_server},
    form::{Cluster, KnownBy, Node, Proxy},
    lines::{owner, redirection, socket},
};

const KUBE_PROXY: &str = "kube-system/kube-proxy-7xk2p:kube-proxy";

#[track_caller]
pub(super) fn program(world: &mut Snapshot, node: &Node, cluster: &Cluster) {
    let default = Proxy {
        mode: "iptables".to_owned(),
        known_by: KnownBy::Answers,
        owner: None,
        node_port_addresses: Vec::new(),
        masquerades: false,
        without_sockets: false,
    };
    let proxy = node.proxy.as_ref().unwrap_or(&default);
    let mode: Option<Mode> = match proxy.mode.as_str() {
        "none" => None,
        word => Some(word.parse().expect("a mode")),
    };
    let kube_proxy = mode.filter(|mode| Mode::KUBE_PROXY.contains(mode));
    silence(world);
    let config = |mode: Mode, place: &str| ProxyConfig {
        place: place.to_owned(),
        mode: Some(mode.name().to_owned()),
        node_port_addresses: match (&proxy.node_port_addresses[..], mode) {
            ([], Mode::Nftables) => vec!["primary".to_owned()],
            (addresses, _) => addresses.to_vec(),
        },
        localhost_node_ports: (mode != Mode::Cilium).then_some(true),
        detect_local_mode: Some("ClusterCIDR".to_owned()),
        cluster_cidr: Some("10.244.0.0/16,fd00:244::/48".to_owned()),
        cilium: (mode == Mode::Cilium && proxy.masquerades)
            .then(|| CiliumConfig { masquerades: true, ..CiliumConfig::default() }),
        ..ProxyConfig::default()
    };
    let holder = owner(proxy.owner.as_deref().unwrap_or(KUBE_PROXY), State::Listen);
    match (mode, kube_proxy, proxy.known_by) {
        (Some(mode), Some(_), KnownBy::Answers) => {
            let Owner::Held(holder) = &holder else { panic!("a proxy is a process") };
            let facts = &mut world.kernel.proxy;
            facts.mode = Reading::Seen(Learned { value: mode, place: "127.0.0.1:10249/proxyMode".to_owned() });
            facts.config = Reading::Seen(config(mode, "127.0.0.1:10249/configz"));
            facts.metrics = Reading::Seen(ProxyMetrics {
                max_fds: Some(1_048_576),
                open_fds: Some(14),
                version: Some(cluster.version.clone().unwrap_or_else(|| "v1.36.3".to_owned())),
                last_sync: Some(world.at),
                last_queued: Some(world.at),
            });
            (facts.cgroup, facts.process) = (holder.cgroup.clone(), holder.process.clone());
        }
        (Some(mode), _, _) => {
            let place = if mode == Mode::Cilium {
                "ConfigMap kube-system/cilium-config"
            } else {
                "ConfigMap kube-system/kube-proxy"
            };
            world.cluster.proxy_config = Reading::Seen(config(mode, place));
        }
        (None, ..) => {}
    }
    if kube_proxy.is_some() && !proxy.without_sockets {
        for line in ["tcp LISTEN 127.0.0.1:10249 -", "tcp LISTEN *:10256 -"] {
            let mut socket = socket(line);
            (socket.owner, socket.inode) = (holder.clone(), 14_000 + u64::from(socket.local_port));
            if socket.local_port != 10249 || proxy.known_by == KnownBy::Answers {
                seen(&mut world.kernel.listeners).push(socket);
            }
        }
    }
    world.kernel.netfilter = Reading::Seen(netfilter(kube_proxy, node));
    if !node.virtual_servers.0.is_empty() || kube_proxy == Some(Mode::Ipvs) {
        let mut servers: Vec<VirtualServer> = node.virtual_servers.iter().map(virtual_server).collect();
        if kube_proxy == Some(Mode::Ipvs) {
            servers.extend(ipvs(world));
        }
        world.kernel.ip_vs = Reading::Seen(servers);
        world.kernel.ip_vs_connections = Reading::Seen(Vec::new());
        let flows = Reading::Seen(BTreeMap::new());
        world.kernel.masquerade = Reading::Seen(Masquerade { flows, unanswered: Vec::new(), beyond: 0 });
    }
}

fn silence(world: &mut Snapshot) {
    let gap = |source| Gap::new(source, Why::Unreachable, "nothing listens on 127.0.0.1:10249");
    let proxy = &mut world.kernel.proxy;
    proxy.mode = Reading::Gap(gap(Source::ProxyMode));
    proxy.config = Reading::Gap(gap(Source::ProxyConfig));
    proxy.metrics = Reading::Gap(gap(Source::ProxyMetrics));
    proxy.cgroup = Reading::Gap(gap(Source::ProxyProcess));
    proxy.process = Reading::Gap(gap(Source::ProxyProcess));
    proxy.fds = Reading::Gap(gap(Source::ProxyProcess));
}

fn netfilter(mode: Option<Mode>, node: &Node) -> Netfilter {
    // The kubelet makes these three chains on every node.
    let mut chains = vec!["ip mangle KUBE-IPTABLES-HINT", "ip mangle KUBE-KUBELET-CANARY", "ip filter KUBE-FIREWALL"];
    let (of_mode, tables): (&[&str], &[&str]) = match mode {
        Some(Mode::Iptables) => {
            (&["ip nat KUBE-SERVICES", "ip nat KUBE-NODEPORTS", "ip filter KUBE-EXTERNAL-SERVICES"], &[])
        }
        Some(Mode::Ipvs) => (
            &[
                "ip nat KUBE-SERVICES",
                "ip nat KUBE-NODE-PORT",
                "ip nat KUBE-LOAD-BALANCER",
                "ip filter KUBE-IPVS-FILTER",
            ],
            &[],
        ),
        Some(Mode::Nftables) => (&[], &["ip kube-proxy", "ip6 kube-proxy"]),
        Some(Mode::Cilium) | None => (&[], &[]),
    };
    chains.extend(of_mode);
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let redirections = (0..).zip(node.redirections.iter()).map(|(place, line)| redirection(line, place)).collect();
    let redirections = Reading::Seen(redirections);
    let mut netfilter = Netfilter {
        tables: owned(tables),
        chains: owned(&chains),
        legacy_tables: Vec::new(),
        redirections,
        untracked: Reading::Seen(Vec::new()),
    };
    for line in node.netfilter.iter() {
        let (kind, name) = line.split_once(' ').unwrap_or((line, ""));
        match kind {
            "table" => netfilter.tables.push(name.to_owned()),
            "chain" => netfilter.chains.push(name.to_owned()),
            "legacy" => netfilter.legacy_tables.push(name.to_owned()),
            _ => panic!("neither table nor chain nor legacy: {line}"),
        }
    }
    netfilter
}

/// Adds kube-proxy's device in ipvs mode, with the addresses of Services. Returns kube-proxy's virtual servers. At each
/// address of a Service, each port of the Service has a virtual server. At each address of the node, each NodePort has
/// a virtual server.
fn ipvs(world: &mut Snapshot) -> Vec<VirtualServer> {
    let services = seen(&mut world.cluster.services).clone();
    let interfaces = Arc::make_mut(seen(&mut world.kernel.interfaces));
    let own: Vec<IpAddr> = interfaces.addresses.iter().map(|it| it.ip).filter(|ip| !ip.is_loopback()).collect();
    let mut servers = Vec::new();
    for service in services.iter().filter(|service| service.proxy_name.is_none()) {
        let outside = service.external_ips.iter().chain(&service.load_balancer_ips);
        // If the node has the address already, the address stays on its link.
        let addresses: Vec<IpAddr> = service.cluster_ips.iter().chain(outside).copied().collect();
        for ip in addresses.iter().filter(|ip| !own.contains(ip)) {
            add_address(interfaces, "kube-ipvs0", *ip, if ip.is_ipv4() { 32 } else { 128 });
        }
        for port in &service.ports {
            let mut server =
                |ip, port: u16, protocol| servers.push(VirtualServer { protocol, ip, port, real_servers: 1 });
            addresses.iter().for_each(|ip| server(*ip, port.port, port.protocol));
            if let Some(number) = port.node_port {
                own.iter().for_each(|ip| server(*ip, number, port.protocol));
            }
        }
    }
    servers
}
