//! The NodePort range is full, or a nodePort is outside the range.

use super::{
    objects::{api_server, service},
    served::Served,
    world::World,
};

/// LoadBalancer Services with `ports` ports each. Each port has its own NodePort.
fn load_balancers(services: u16, ports: u16) -> World {
    let manifests = (0..services).map(|number| {
        let first = 30000 + number * ports;
        let entries: Vec<String> = (0..ports).map(|it| format!("{}:{}/TCP", 7000 + it, first + it)).collect();
        service(&format!("games/server-{number}"), "LoadBalancer", &entries.join(","), "")
    });
    World::of(&manifests.collect::<Vec<_>>())
}

/// Thread: openkruise/kruise-game#142
/// Symptom: every port of a LoadBalancer takes a NodePort too, until no NodePort is left
/// Says: `node-port-range-crowded` counts the NodePorts, and names the setting for LoadBalancers without NodePorts
#[test]
fn kruise_game_142() -> Served {
    let reported = load_balancers(173, 16)
        .reports("node-port-range-crowded", "critical", "Cluster cluster", "games/server-0")
        .advises("allocateLoadBalancerNodePorts");
    load_balancers(20, 16).is_silent("node-port-range-crowded");
    reported
}

/// Thread: kubernetes/kubernetes#69845
/// Symptom: each connection of a notebook takes two NodePorts, and the range does not grow with the cluster
/// Says: `node-port-range-crowded` warns before the last NodePort is taken
#[test]
fn kubernetes_69845() -> Served {
    load_balancers(1200, 2)
        .reports("node-port-range-crowded", "warning", "Cluster cluster", "games/server-0")
        .advises("allocateLoadBalancerNodePorts")
}

/// Thread: metallb/metallb#328
/// Symptom: each load balancer gets a NodePort that it may not need, so the range limits the load balancers
/// Says: `node-port-range-crowded` counts the free ports of both bands, and names the setting that extends the range
#[test]
fn metallb_328() -> Served {
    load_balancers(2700, 1)
        .reports("node-port-range-crowded", "warning", "Cluster cluster", "games/server-0")
        .shows("dynamic band", "2614 of 2682 ports allocated")
        .advises("--service-node-port-range")
}

/// Thread: k3s-io/k3s#9952
/// Symptom: the range was changed; an old Service with nodePort 1010 cannot be created again
/// Says: `node-port-range-mismatch/outside` names the Service and the range
#[test]
fn k3s_9952() -> Served {
    let manifests = |range| [api_server(range), service("default/example", "NodePort", "1010:1010/TCP", "")];
    let reported = World::of(&manifests("30000-40000"))
        .reports("node-port-range-mismatch/outside", "warning", "Service default/example", "default/example")
        .types("kubectl -n default patch service example");
    World::of(&manifests("1000-32767")).is_silent("node-port-range-mismatch/outside");
    reported
}

/// Thread: projectbluefin/lab#42
/// Symptom: GitOps refuses nodePort 32801: the port lies outside the range
/// Says: `node-port-range-mismatch/outside` names the Service of the manifest, and the command that sets a port of the
/// range
#[test]
fn projectbluefin_lab_42() -> Served {
    World::of(&[service("mcp/kubernetes-mcp-server", "NodePort", "8080:32801/TCP", "")])
        .reports(
            "node-port-range-mismatch/outside",
            "warning",
            "Service mcp/kubernetes-mcp-server",
            "mcp/kubernetes-mcp-server",
        )
        .types("kubectl -n mcp patch service kubernetes-mcp-server")
}
