//! Two programs listen for the health checks of load balancers.

use super::{
    served::Served,
    world::{World, daemon},
};

/// kube-proxy serves Services on this node, but calico-node was the first program to listen on kube-proxy's health
/// port.
fn calico_first() -> World {
    World::of(&[]).listening(|socket| socket.local_port != 10256).listens("[::]:10256", daemon("calico-node"))
}

/// Thread: projectcalico/calico#10748
/// Symptom: calico-node and kube-proxy both answer load balancers on port 10256, and the second program retries forever
/// Says: `health-check-unserved/proxy` names the process that has the port; no finding if kube-proxy has the port
#[test]
fn calico_10748() -> Served {
    let reported = calico_first()
        .reports("health-check-unserved/proxy", "warning", "Node n1", "calico-node has port 10256/tcp")
        .advises("off port 10256/tcp");
    World::of(&[]).is_silent("health-check-unserved/proxy");
    reported
}

/// Thread: gardener/gardener-extension-networking-calico#732
/// Symptom: Calico in eBPF mode runs beside kube-proxy, and Calico's health server needs another port
/// Says: `health-check-unserved/proxy` names the setting of Calico that changes the port
#[test]
fn gardener_extension_networking_calico_732() -> Served {
    calico_first()
        .reports("health-check-unserved/proxy", "warning", "Node n1", "calico-node")
        .advises("bpfKubeProxyHealthzPort")
}
