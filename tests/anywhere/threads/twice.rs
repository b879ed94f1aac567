//! Two objects claim one number, or one address and port.

use super::{
    objects::{balanced, service, written},
    world::World,
};

/// Thread: open-engineering-nl/coturn-chart#75
/// Symptom: one chart writes the same nodePort into its Services for TCP and for UDP, and the second is refused
/// Says: `node-port-claimed-twice` of the manifests: both Services, and the number
#[test]
fn coturn_chart_75() {
    let turn = |name: &str, ports: &str| written(&service(&format!("default/turn-{name}"), "NodePort", ports, ""));
    World::of(&[turn("tcp", "30030:30030/TCP"), turn("udp", "30030:30030/UDP")])
        .tells("node-port-claimed-twice", "warning", "Service default/turn-udp", "default/turn-tcp")
        .advises("write another nodePort into Service default/turn-udp");
    let apart = World::of(&[turn("tcp", "30030:30030/TCP"), turn("udp", "30031:30031/UDP")]);
    apart.is_silent("node-port-claimed-twice");
}

/// Thread: bitnami/charts#2564
/// Symptom: one value of a chart becomes the nodePort of the master's Service and of the replica's
/// Says: `node-port-claimed-twice` of the manifests: the API server will refuse one
#[test]
fn charts_2564() {
    let mysql = |name: &str| written(&service(&format!("default/mysql-{name}"), "NodePort", "3306:32001/TCP", ""));
    let world = World::of(&[mysql("master"), mysql("slave")]);
    world
        .tells("node-port-claimed-twice", "warning", "Service default/mysql-slave", "default/mysql-master")
        .advises("write another nodePort into Service default/mysql-slave");
    world.tells("node-port-claimed-twice", "warning", "Service default/mysql-master", "the API server refuses");
}

/// Thread: kubernetes/kubernetes#135439
/// Symptom: a number that is refused when a Service is made is accepted when it is changed: it cannot be made again
/// Says: `node-port-claimed-twice` names both ports of the Service
#[test]
fn kubernetes_135439() {
    World::of(&[service("default/dns", "NodePort", "53:30053/UDP,5353:30053/TCP", "")])
        .tells("node-port-claimed-twice", "warning", "Service default/dns", "anew")
        .types("30053");
    let one = World::of(&[service("default/dns", "NodePort", "53:30053/UDP,53:30053/TCP", "")]);
    one.is_silent("node-port-claimed-twice");
}

/// Thread: kube-vip/kube-vip#1288
/// Symptom: as soon as a program for virtual addresses starts, the network card of a node has the addresses of other Nodes
/// Says: `node-holds-peer-address` names the Node, the link, and the command that deletes the address
#[test]
fn kube_vip_1288() {
    let world = World::of(&[]);
    world
        .clone()
        .address("eth0", "192.0.2.9")
        .tells("node-holds-peer-address", "critical", "Node n1", "192.0.2.9, the InternalIP of Node n2")
        .types("192.0.2.9/32 dev eth0");
    world.address("eth0", "192.0.2.50").is_silent("node-holds-peer-address");
}

/// Thread: kube-vip/kube-vip#1006
/// Symptom: two LoadBalancer Services have one address and one port: which one answers depends on the node
/// Says: `external-address-claimed-twice` of both Services
#[test]
fn kube_vip_1006() {
    let balancer = |name: &str, ports: &str| {
        balanced(&service(&format!("default/{name}"), "LoadBalancer", ports, ""), "198.51.100.7")
    };
    World::of(&[balancer("first", "80:30081/TCP"), balancer("second", "80:30082/TCP")])
        .tells("external-address-claimed-twice", "warning", "Service default/second", "so has default/first")
        .advises("an address or a port that no other Service has");
    let shared = World::of(&[balancer("first", "80:30081/TCP"), balancer("second", "81:30082/TCP")]);
    shared.is_silent("external-address-claimed-twice");
}
