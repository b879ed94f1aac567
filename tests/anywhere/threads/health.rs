//! Two programs want to answer load balancers.

use super::{
    served::Served,
    world::{World, daemon},
};

/// kube-proxy serves this node, and calico-node was first on its port.
fn calico_first() -> World {
    World::of(&[]).listening(|socket| socket.local_port != 10256).listens("[::]:10256", daemon("calico-node"))
}

/// Thread: projectcalico/calico#10748
/// Symptom: calico-node and kube-proxy both answer load balancers on 10256; who comes second retries for ever
/// Says: `health-check-unserved/proxy` names who has the port, and silence where it is kube-proxy
#[test]
fn calico_10748() -> Served {
    let told = calico_first()
        .tells("health-check-unserved/proxy", "warning", "Node n1", "calico-node has port 10256/tcp")
        .advises("off port 10256/tcp");
    World::of(&[]).is_silent("health-check-unserved/proxy");
    told
}

/// Thread: gardener/gardener-extension-networking-calico#732
/// Symptom: Calico in eBPF mode runs beside kube-proxy, and its health server needs a port of its own
/// Says: `health-check-unserved/proxy` names Calico's setting for that
#[test]
fn gardener_extension_networking_calico_732() -> Served {
    calico_first()
        .tells("health-check-unserved/proxy", "warning", "Node n1", "calico-node")
        .advises("bpfKubeProxyHealthzPort")
}
