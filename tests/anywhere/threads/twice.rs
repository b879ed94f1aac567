//! Two objects claim one nodePort, or one address and port.

use super::{
    objects::{balanced, service, written},
    served::Served,
    world::World,
};

/// Thread: open-engineering-nl/coturn-chart#75
/// Symptom: a chart gives its Services for TCP and for UDP the same nodePort, and the API server refuses the second
/// Service
/// Says: `node-port-claimed-twice` names both Services and the number
#[test]
fn coturn_chart_75() -> Served {
    let turn = |name: &str, ports: &str| written(&service(&format!("default/turn-{name}"), "NodePort", ports, ""));
    let reported = World::of(&[turn("tcp", "30030:30030/TCP"), turn("udp", "30030:30030/UDP")])
        .reports("node-port-claimed-twice", "warning", "Service default/turn-udp", "default/turn-tcp")
        .advises("give Service default/turn-udp another nodePort");
    let apart = World::of(&[turn("tcp", "30030:30030/TCP"), turn("udp", "30031:30031/UDP")]);
    apart.is_silent("node-port-claimed-twice");
    reported
}

/// Thread: bitnami/charts#2564
/// Symptom: one value of a chart becomes the nodePort of two Services, for the master and for the replica
/// Says: `node-port-claimed-twice` reports that the API server will refuse one of the two Services
#[test]
fn charts_2564() -> Served {
    let mysql = |name: &str| written(&service(&format!("default/mysql-{name}"), "NodePort", "3306:32001/TCP", ""));
    let world = World::of(&[mysql("master"), mysql("slave")]);
    let reported = world
        .reports("node-port-claimed-twice", "warning", "Service default/mysql-slave", "default/mysql-master")
        .advises("give Service default/mysql-slave another nodePort");
    world.reports("node-port-claimed-twice", "warning", "Service default/mysql-master", "default/mysql-slave");
    reported
}

/// Thread: redpanda-data/helm-charts#1124
/// Symptom: a chart adds its default listeners to a user's listeners, and two listeners have one nodePort. Only the
/// log of a Kubernetes operator shows the error
/// Says: `node-port-claimed-twice` finds the problem in the manifest, and names both ports
#[test]
fn helm_charts_1124() -> Served {
    let external = |ports: &str| World::of(&[written(&service("redpanda/external", "NodePort", ports, ""))]);
    external("8083:30083/TCP,9645:31644/TCP").is_silent("node-port-claimed-twice");
    external("8083:30082/TCP,9645:31644/TCP,8084:30082/TCP")
        .reports("node-port-claimed-twice", "warning", "Service redpanda/external", "redpanda/external")
        .advises("give Service redpanda/external another nodePort")
}

/// Thread: kubernetes/kubernetes#135439
/// Symptom: the API server refuses a nodePort when a Service is created, but accepts it in an update. Later the Service
/// cannot be created again
/// Says: `node-port-claimed-twice` names both ports of the Service
#[test]
fn kubernetes_135439() -> Served {
    let reported = World::of(&[service("default/dns", "NodePort", "53:30053/UDP,5353:30053/TCP", "")])
        .reports("node-port-claimed-twice", "warning", "Service default/dns", "default/dns")
        .types("30053");
    let one = World::of(&[service("default/dns", "NodePort", "53:30053/UDP,53:30053/TCP", "")]);
    one.is_silent("node-port-claimed-twice");
    reported
}

/// Thread: kube-vip/kube-vip#1288
/// Symptom: a program for virtual addresses starts, and then the network card of a node has the addresses of other
/// Nodes
/// Says: `address-held-twice/link` names the Node, the link, and the command that deletes the address
#[test]
fn kube_vip_1288() -> Served {
    let world = World::of(&[]);
    let reported = world
        .clone()
        .address("eth0", "192.0.2.9")
        .reports("address-held-twice/link", "critical", "Node n1", "192.0.2.9, the InternalIP of Node n2")
        .types("192.0.2.9/32 dev eth0");
    world.address("eth0", "192.0.2.50").is_silent("address-held-twice/link");
    reported
}

/// Thread: kube-vip/kube-vip#1006
/// Symptom: two LoadBalancer Services have one address and one port, so clients may reach the wrong Service
/// Says: `external-ip-conflict/claimed-twice` names both Services
#[test]
fn kube_vip_1006() -> Served {
    let balancer = |name: &str, ports: &str| {
        balanced(&service(&format!("default/{name}"), "LoadBalancer", ports, ""), "198.51.100.7")
    };
    let reported = World::of(&[balancer("first", "80:30081/TCP"), balancer("second", "80:30082/TCP")])
        .reports("external-ip-conflict/claimed-twice", "warning", "Service default/second", "so has default/first")
        .advises("an address or a port that no other Service has");
    let shared = World::of(&[balancer("first", "80:30081/TCP"), balancer("second", "81:30082/TCP")]);
    shared.is_silent("external-ip-conflict/claimed-twice");
    reported
}

/// Thread: argoproj/argo-helm#3587
/// Symptom: a chart has default nodePorts, so the API server refuses a second release in the cluster
/// Says: `node-port-claimed-twice` finds the problem in the manifests of both releases, and names the number and the
/// Service that has it
#[test]
fn argo_helm_3587() -> Served {
    let release = |name: &str, port: u16| {
        written(&service(&format!("{name}/deliver-server"), "NodePort", &format!("443:{port}/TCP"), ""))
    };
    World::of(&[release("first", 30843), release("second", 30844)]).is_silent("node-port-claimed-twice");
    World::of(&[release("first", 30843), release("second", 30843)])
        .reports("node-port-claimed-twice", "warning", "Service second/deliver-server", "first/deliver-server")
        .advises("give Service second/deliver-server another nodePort")
}
