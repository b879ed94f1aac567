//! Two tunnels use one UDP port.

use super::{
    objects::{crashing, host_pod, of_daemon_set},
    served::Served,
    world::World,
};

fn agent(name: &str) -> World {
    let (_, daemon_set) = name.split_once('/').expect("a namespace");
    World::of(&[of_daemon_set(daemon_set, &crashing(&host_pod(name, &[])))])
}

/// Thread: tigera/docs#2575
/// Symptom: Docker Swarm has 4789/udp, and Calico’s tunnel in eBPF mode stays down: address already in use
/// Says: `tunnel-port-conflict/devices` names both tunnels and the setting `vxlanPort`; `owner 4789/udp` names the
/// tunnel that is up
#[test]
fn docs_2575() -> Served {
    let rule = "tunnel-port-conflict/devices";
    let network = agent("calico-system/calico-node").vxlan("ov-4096", 4789, false, true);
    network.clone().vxlan("vxlan.calico", 4790, true, true).is_silent(rule);
    let world = network.vxlan("vxlan.calico", 4789, true, false);
    world.owner("4789/udp").says("ov-4096");
    world
        .reports(rule, "warning", "Node n1", "ov-4096")
        .shows("down", "vxlan.calico: vxlan, external")
        .shows("not ready", "calico-system/calico-node")
        .advises("`vxlanPort` in Calico's FelixConfiguration")
}

/// Thread: cilium/cilium#8990
/// Symptom: Cilium crash-loops after another network plugin left its tunnel on the node: address already in use
/// Says: `tunnel-port-conflict/devices` names both tunnels; no finding if the ports differ, or if both can use one port
#[test]
fn cilium_8990() -> Served {
    let rule = "tunnel-port-conflict/devices";
    let left = agent("kube-system/cilium").vxlan("flannel.1", 8472, false, true);
    left.clone().vxlan("cilium_vxlan", 8473, true, true).is_silent(rule);
    left.clone().vxlan("flannel.2", 8472, false, false).is_silent(rule);
    left.vxlan("cilium_vxlan", 8472, true, false)
        .reports(rule, "warning", "Node n1", "flannel.1")
        .shows("down", "cilium_vxlan: vxlan, external")
        .advises("if one of the links (cilium_vxlan, flannel.1) is a leftover of a deleted network, delete that link")
}
