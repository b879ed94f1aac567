//! A Service takes the address of a node.

use portreeve_facts::Mode;

use super::{
    objects::{annotated, balanced, served},
    served::Served,
    world::{World, daemon},
};

/// Thread: kubernetes/kubernetes#104679
/// Symptom: a Service gets the addresses of two workers as externalIPs, and both workers become NotReady (ipvs)
/// Says: `external-ip-conflict/node-address` names the Service, the Nodes and the command that removes the address
#[test]
fn kubernetes_104679() -> Served {
    let manifests = [served("default/nginx", "NodePort", "80:31811/TCP", "externalIPs: [192.0.2.1, 192.0.2.9]")];
    let world = World::of(&manifests).mode(Mode::Ipvs).address("kube-ipvs0", "192.0.2.9");
    let reported = world
        .reports("external-ip-conflict/node-address", "critical", "Service default/nginx", "Node n2")
        .types("kubectl -n default patch service nginx");
    let mended = World::of(&[served("default/nginx", "NodePort", "80:31811/TCP", "")]).mode(Mode::Ipvs);
    mended.is_silent("external-ip-conflict/node-address");
    reported
}

/// Thread: kubernetes/kubernetes#93175
/// Symptom: one worker cannot reach the control plane (*no route to host*), but other workers can (ipvs)
/// Says: `external-ip-conflict/node-address` reports that this node has the address of the other Node
#[test]
fn kubernetes_93175() -> Served {
    let manifests = [served("default/app", "ClusterIP", "8080/TCP", "externalIPs: [192.0.2.9]")];
    let world = World::of(&manifests).mode(Mode::Ipvs).address("kube-ipvs0", "192.0.2.9");
    world
        .reports("external-ip-conflict/node-address", "critical", "Service default/app", "Node n2")
        .shows("held on this node", "yes")
        .types("kubectl -n default patch service app");
    World::of(&manifests)
        .reports("external-ip-conflict/node-address", "info", "Service default/app", "Node n2")
        .types("kubectl -n default patch service app")
}

/// Thread: k0sproject/k0s#4661
/// Symptom: a chart exposes port 22 on the node's address, and `ssh` ends in a pod (iptables)
/// Says: `external-ip-conflict/takes-listener` names sshd and the Service
#[test]
fn k0s_4661() -> Served {
    let manifests = [served("gitlab/ingress", "ClusterIP", "80/TCP,22/TCP", "externalIPs: [192.0.2.1]")];
    let world = World::of(&manifests).listens("0.0.0.0:22", daemon("sshd"));
    world
        .reports("external-ip-conflict/takes-listener", "critical", "Service gitlab/ingress", "sshd")
        .types("kubectl -n gitlab patch service ingress")
}

fn announced(address: &str, annotation: &str) -> String {
    annotated(&balanced(&served("edge/front", "LoadBalancer", "443:30443/TCP", ""), address), annotation)
}

/// Thread: kube-vip/kube-vip#996
/// Symptom: after a loss of the network, two nodes have the address of a load balancer, and connections to the address
/// sometimes fail
/// Says: `address-held-twice/announced-elsewhere` names the link, the Node that announces the address, and the command
/// that deletes the address
#[test]
fn kube_vip_996() -> Served {
    const RULE: &str = "address-held-twice/announced-elsewhere";
    let on = |link: &str, address: &str, annotation: &str| {
        World::of(&[announced(address, annotation)]).address(link, address)
    };
    let left = on("eth0", "192.0.2.77", "kube-vip.io/vipHost: n2");
    let reported = left.reports(RULE, "warning", "Node n1", "Node n2").types("ip addr del 192.0.2.77/32 dev eth0");
    // The rule reports no finding if this node announces the address. With BGP, every node has the address, and the
    // annotation names only the node that wrote the annotation last.
    on("eth0", "192.0.2.77", "kube-vip.io/vipHost: n1").is_silent(RULE);
    on("lo", "192.0.2.77", "kube-vip.io/vipHost: n2").is_silent(RULE);
    on("eth0", "198.51.100.77", "kube-vip.io/vipHost: n2").is_silent(RULE);
    // Only kube-vip's annotation names a node.
    on("eth0", "192.0.2.77", "metallb.io/ip-allocated-from-pool: lan").is_silent(RULE);
    reported
}

/// Thread: metallb/metallb#1397
/// Symptom: `ssh` cannot reach a node: the node's address is in MetalLB's pool, and another node answers ARP (iptables)
/// Says: `external-ip-conflict/node-address` names the Service, the Node and the pool
#[test]
fn metallb_1397() -> Served {
    const RULE: &str = "external-ip-conflict/node-address";
    let reported = World::of(&[announced("192.0.2.9", "metallb.io/ip-allocated-from-pool: lan")])
        .reports(RULE, "warning", "Service edge/front", "Node n2")
        .shows("announced by", "MetalLB, from pool lan")
        .advises("remove the addresses of Nodes from MetalLB's pool lan");
    // Addresses that MetalLB announces correctly, with layer 2 and with BGP.
    for address in ["192.0.2.77", "198.51.100.77"] {
        World::of(&[announced(address, "metallb.io/ip-allocated-from-pool: lan")]).is_silent(RULE);
    }
    // ServiceLB of k3s uses the addresses of its nodes.
    World::of(&[announced("192.0.2.9", "")]).is_silent(RULE);
    reported
}
