//! If iptables masquerades connections for Cilium, a connection may get a NodePort as its source port.

use portreeve_facts::{Mode, Netfilter, Protocol, Reading};

use super::{
    objects::{config_map, pod_with_host_ports, served},
    served::Served,
    world::World,
};

/// A node without kube-proxy. If `masquerades`, Cilium masquerades in eBPF. Otherwise iptables masquerades.
fn cilium(masquerades: bool, more: &[&str]) -> World {
    let own = format!("enable-bpf-masquerade: '{masquerades}'");
    let mut settings = vec!["kube-proxy-replacement: 'true'", "enable-ipv4-masquerade: 'true'", &own];
    settings.extend(more);
    let config = config_map("cilium-config", &settings);
    World::of(&[config, served("default/web", "NodePort", "80:30080/TCP", "")]).without_kube_proxy()
}

/// Thread: cilium/cilium#16826
/// Symptom: a connection leaves with a source port that is a NodePort, and its answers go to the Service
/// Says: `masquerade-source-ports` needs only the configuration, and names the setting that ends the problem
#[test]
fn cilium_16826() -> Served {
    let reported = cilium(false, &[]).reports("masquerade-source-ports", "warning", "Cluster cluster", "Cilium");
    let reported = reported.advises("enable-bpf-masquerade").advises("--to-ports");
    cilium(true, &[]).is_silent("masquerade-source-ports");
    reported
}

/// Thread: cilium/cilium#34041
/// Symptom: answers to a pod's connections go to another pod, because that pod's hostPort is the source port
/// Says: `masquerade-source-ports` names the pod, the hostPort, and the source ports that Cilium chooses from
#[test]
fn cilium_34041() -> Served {
    let gateway = |number: u16| {
        let pod = pod_with_host_ports("edge/gateway-1", &[number]);
        let mut settings = vec!["kube-proxy-replacement: 'true'", "enable-ipv4-masquerade: 'true'"];
        settings.push("enable-bpf-masquerade: 'true'");
        World::of(&[config_map("cilium-config", &settings), pod]).without_kube_proxy()
    };
    gateway(32000).is_silent("masquerade-source-ports");
    gateway(45678)
        .reports("masquerade-source-ports", "warning", "Pod edge/gateway-1", "Cilium")
        .shows("masquerade", "by Cilium in eBPF, with source ports 32768-65535")
        .advises("a hostPort below 32768")
}

/// Thread: cilium/cilium#23539
/// Symptom: some connections of pods to servers outside the cluster time out at random
/// Says: `masquerade-source-ports` reports that iptables may have given these connections a NodePort
#[test]
fn cilium_23539() -> Served {
    cilium(false, &["enable-ipv6: 'false'"])
        .reports("masquerade-source-ports", "warning", "Cluster cluster", "Cilium")
        .advises("make Cilium masquerade")
}

/// Thread: cilium/cilium#23604
/// Symptom: iptables chooses source ports inside the NodePort range, and Cilium treats the answers as new connections
/// Says: `masquerade-source-ports` names the setting and the range
#[test]
fn cilium_23604() -> Served {
    cilium(false, &[])
        .reports("masquerade-source-ports", "warning", "Cluster cluster", "Cilium")
        .shows("enable-bpf-masquerade", "false (from ConfigMap kube-system/cilium-config)")
        .shows("NodePort range", "30000-32767")
        .advises("enable-bpf-masquerade")
}

/// Thread: cilium/cilium#33723
/// Symptom: with more NodePorts, more connections of pods hang
/// Says: `masquerade-source-ports` reports the problem if a Service has a NodePort; otherwise no finding
#[test]
fn cilium_33723() -> Served {
    let reported = cilium(false, &[])
        .reports("masquerade-source-ports", "warning", "Cluster cluster", "Cilium")
        .advises("restart");
    let config = config_map("cilium-config", &["kube-proxy-replacement: 'true'", "enable-bpf-masquerade: 'false'"]);
    World::of(&[config]).without_kube_proxy().is_silent("masquerade-source-ports");
    reported
}

/// Thread: cilium/cilium#45492
/// Symptom: some answers to masqueraded UDP connections are lost, because the source port is the port of the node's
/// tunnel
/// Says: `masquerade-source-ports/tunnel` names the tunnel, if netfilter masquerades and rules exclude the tunnel's
/// port from conntrack
#[test]
fn cilium_45492() -> Served {
    let rule = "masquerade-source-ports/tunnel";
    let world = |untracked: u16| {
        let untracked = Reading::Seen(vec![(Protocol::Udp, untracked)]);
        World::of(&[]).mode(Mode::Iptables).vxlan("overlay0", 8472, true, true).with(|it| {
            it.kernel.netfilter = Reading::Seen(Netfilter { untracked, ..Netfilter::default() });
        })
    };
    let reported = world(8472)
        .reports(rule, "info", "Node n1", "overlay0")
        .shows("not tracked", "packets to 8472/udp (NOTRACK)")
        .advises("with --to-ports that masquerades UDP to other ports than 8472");
    world(4789).is_silent(rule);
    reported
}
