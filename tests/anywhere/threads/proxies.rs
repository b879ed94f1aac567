//! The proxy's mode, rules that another mode left behind, and settings that contradict each other.

use portreeve_facts::{Mode, Netfilter, Reading};

use super::{
    objects::{api_server, config_map, served},
    served::Served,
    world::World,
};

/// Netfilter facts with these chains, which kube-proxy makes in iptables mode or in ipvs mode.
fn chains(chains: &[&str]) -> Reading<Netfilter> {
    Reading::Seen(Netfilter {
        chains: chains.iter().map(|chain| (*chain).to_owned()).collect(),
        ..Netfilter::default()
    })
}

/// Thread: gardener/gardener#4599
/// Symptom: after a change from ipvs to iptables, kube-proxy's clean-up fails at a chain, and the proxy never starts
/// Says: `stale-redirection/proxy` lists the chains and addresses, and the commands that remove them
#[test]
fn gardener_4599() -> Served {
    let config = config_map("kube-proxy", &["config.conf: '{kind: KubeProxyConfiguration, mode: iptables}'"]);
    let world = World::of(&[config, served("default/web", "NodePort", "80:30080/TCP", "")])
        .without_kube_proxy()
        .address("kube-ipvs0", "10.96.0.10")
        .with(|it| it.kernel.netfilter = chains(&["ip filter KUBE-NODE-PORT"]));
    world
        .reports("stale-redirection/proxy", "warning", "Node n1", "ipvs")
        .shows("iptables chains", "KUBE-NODE-PORT")
        .types("kube-proxy --cleanup")
}

/// Thread: kubernetes/kubernetes#102314
/// Symptom: since a change to ipvs, a rule left from iptables mode refuses connections to a Service
/// Says: `stale-redirection/proxy` lists the chains that iptables mode left
#[test]
fn kubernetes_102314() -> Served {
    let both = ["ip filter KUBE-EXTERNAL-SERVICES", "ip nat KUBE-NODEPORTS", "ip nat KUBE-NODE-PORT"];
    let world = World::of(&[served("default/web", "NodePort", "80:30080/TCP", "")]).mode(Mode::Ipvs);
    let left = world.clone().with(|it| it.kernel.netfilter = chains(&both));
    let reported = left
        .reports("stale-redirection/proxy", "warning", "Node n1", "iptables")
        .shows("iptables chains", "KUBE-EXTERNAL-SERVICES")
        .types("kube-proxy --cleanup");
    world.with(|it| it.kernel.netfilter = chains(&both[2..])).is_silent("stale-redirection/proxy");
    reported
}

/// Thread: kubermatic/kubermatic#11963
/// Symptom: the API server allocates from 12000-14767, but Cilium serves only 30000-32767
/// Says: `node-port-range-mismatch/component` names Cilium's range, the API server's range, and the setting to change
#[test]
fn kubermatic_11963() -> Served {
    let cilium = |range: &str| {
        let range = format!("node-port-range: '{range}'");
        let config = config_map("cilium-config", &["kube-proxy-replacement: 'true'", &range]);
        let service = served("default/web", "NodePort", "80:12080/TCP", "");
        World::of(&[api_server("12000-14767"), config, service]).without_kube_proxy()
    };
    let reported = cilium("30000,32767")
        .reports("node-port-range-mismatch/component", "warning", "Cluster cluster", "Cilium")
        .advises("12000");
    cilium("12000,14767").is_silent("node-port-range-mismatch/component");
    reported
}

/// Thread: cilium/cilium#37691
/// Symptom: a NodePort does not answer at the virtual address of keepalived, because Cilium serves one address of a
/// device
/// Says: `portreeve owner 30080` reports that a pod answers at the node's address, and no process at the virtual
/// address. The output names the setting to change
#[test]
fn cilium_37691() -> Served {
    let cilium = |addresses: &str| {
        let config = config_map("cilium-config", &["kube-proxy-replacement: 'true'", addresses]);
        let world = World::of(&[config, served("default/nginx", "NodePort", "80:30080/TCP", "")]);
        world.without_kube_proxy().address("eth0", "192.0.2.50").owner("30080")
    };
    cilium("nodeport-addresses: 192.0.2.0/24").says("remote clients to 192.0.2.1, 192.0.2.2, 192.0.2.50: a pod of ");
    cilium("devices: eth0")
        .says("remote clients to 192.0.2.1: a pod of ")
        .says("192.0.2.50, 2001:db8::1, 2001:db8::2: connections are refused")
        .says("unless nodeport-addresses has other addresses")
        .names("node-port", "Service default/nginx")
        .advises("connect to port 30080 of 192.0.2.1, not of 192.0.2.2, 192.0.2.50")
        .advises("set nodeport-addresses of Cilium to the networks 192.0.2.0/24, 192.0.2.50/32")
}

/// The NodePort 31999 of a registry, from which the nodes pull their images.
fn registry(mode: Mode) -> World {
    World::of(&[served("zarf/registry", "NodePort", "5000:31999/TCP", "")]).mode(mode)
}

/// Thread: k0sproject/k0s#5760
/// Symptom: the NodePort answers at the node's address, and not at 127.0.0.1 (nftables)
/// Says: `portreeve owner 31999` reports that loopback refuses connections, because nftables mode serves no NodePort on
/// loopback. The output names the address to use
#[test]
fn k0s_5760() -> Served {
    registry(Mode::Nftables)
        .owner("31999")
        .says("its loopback to 127.0.0.1, ::1: connections are refused")
        .says("remote clients to 192.0.2.1: a pod of ")
        .names("node-port", "Service zarf/registry")
        .advises("connect to port 31999 of 192.0.2.1, not of 127.0.0.1")
}

/// Thread: zarf-dev/zarf#3684
/// Symptom: nodes cannot pull images from a registry at a NodePort of localhost (nftables)
/// Says: `portreeve owner 31999` reports that 127.0.0.1 leads to a pod in iptables mode, and to no pod in nftables
/// mode. In both modes, the node's address leads to a pod
#[test]
fn zarf_3684() -> Served {
    registry(Mode::Iptables).owner("31999").says("its loopback to 127.0.0.1: a pod of ");
    registry(Mode::Nftables)
        .owner("31999")
        .says("proxy mode nftables")
        .says("127.0.0.1, ::1: connections are refused")
        .names("node-port", "Service zarf/registry")
        .advises("connect to port 31999 of 192.0.2.1, not of 127.0.0.1")
}
