//! A Service takes the address of a node.

use portreeve_facts::Mode;

use super::{
    objects::served,
    served::Served,
    world::{World, daemon},
};

/// Thread: kubernetes/kubernetes#104679
/// Symptom: a Service gets the addresses of two workers as externalIPs, and both go NotReady (ipvs)
/// Says: `external-ip-conflict/node-address` names the Service, the Nodes and the command that removes the address
#[test]
fn kubernetes_104679() -> Served {
    let manifests = [served("default/nginx", "NodePort", "80:31811/TCP", "externalIPs: [192.0.2.1, 192.0.2.9]")];
    let world = World::of(&manifests).mode(Mode::Ipvs).address("kube-ipvs0", "192.0.2.9");
    let told = world
        .tells("external-ip-conflict/node-address", "critical", "Service default/nginx", "Node n2")
        .types("kubectl -n default patch service nginx");
    let mended = World::of(&[served("default/nginx", "NodePort", "80:31811/TCP", "")]).mode(Mode::Ipvs);
    mended.is_silent("external-ip-conflict/node-address");
    told
}

/// Thread: kubernetes/kubernetes#93175
/// Symptom: a worker loses its way to the control plane: *no route to host*, while all others answer (ipvs)
/// Says: `external-ip-conflict/node-address`, and that this node holds the address itself
#[test]
fn kubernetes_93175() -> Served {
    let manifests = [served("default/app", "ClusterIP", "8080/TCP", "externalIPs: [192.0.2.9]")];
    let world = World::of(&manifests).mode(Mode::Ipvs).address("kube-ipvs0", "192.0.2.9");
    world
        .tells("external-ip-conflict/node-address", "critical", "Service default/app", "Node n2")
        .shows("held on this node", "yes")
        .types("kubectl -n default patch service app");
    World::of(&manifests)
        .tells("external-ip-conflict/node-address", "info", "Service default/app", "Node n2")
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
        .tells("external-ip-conflict/takes-listener", "critical", "Service gitlab/ingress", "sshd")
        .types("kubectl -n gitlab patch service ingress")
}
