//! The ephemeral range overlaps the NodePort range, and a connection has a NodePort as its source port.

use std::net::SocketAddrV4;

use crate::demo::{
    incident::{Expected, Incident, NODE, NODE_IP, PEER_IP, Scene, Step, Steps},
    manifest::{self, Port},
    part::{CURRENT, Part},
};
use portreeve_facts::Mode;
use portreeve_rules::findings::Severity;

pub(super) static INCIDENT: Incident = Incident {
    name: "widened-ephemeral-range",
    title: "The ephemeral port range was widened over the NodePorts",
    steps: &[API_SERVER, SERVICE, PROXY, PORT_RANGE, CLIENT],
    expected: &[
        Expected {
            rule: "ephemeral-range-overlap/node-ports",
            severity: Severity::Critical,
            subject: "Node node-a",
            port: None,
            evidence: &[],
        },
        Expected {
            rule: "connection-on-port/answers-taken",
            severity: Severity::Critical,
            subject: "Service default/shop",
            port: Some(NODE_PORT),
            evidence: &[],
        },
    ],
    scene,
};

const API_SERVER: Step =
    Step { name: "default-range", description: "kube-apiserver runs with --service-node-port-range=30000-32767" };
const SERVICE: Step = Step { name: "shop-service", description: "Service default/shop owns NodePort 30090" };
const PROXY: Step = Step { name: "ipvs-proxy", description: "kube-proxy 1.36.3 runs in ipvs mode" };
const PORT_RANGE: Step =
    Step { name: "port-range", description: "net.ipv4.ip_local_port_range is 1024 65535, and no port is reserved" };
const CLIENT: Step = Step {
    name: "client-socket",
    description: "a connection from 192.0.2.11:30090 to 192.0.2.12:6443 waits for its SYN-ACK, which never comes",
};

const NODE_PORT: u16 = 30090;

fn scene(steps: &Steps) -> Scene {
    let mut scene =
        Scene { objects: vec![manifest::node(NODE, NODE_IP), manifest::node("node-b", PEER_IP)], ..Scene::default() };
    if steps.has(&API_SERVER) {
        scene.objects.push(manifest::api_server("30000-32767"));
    }
    if steps.has(&SERVICE) {
        let ports = [Port::automatic("http", 80, NODE_PORT)];
        scene.objects.push(manifest::service("shop", "NodePort", &ports));
        scene.objects.push(manifest::endpoint_slice("shop", &ports, &["10.244.0.5"]));
    }
    if steps.has(&PROXY) {
        scene.parts.push(Part::proxy(Mode::Ipvs, CURRENT));
    }
    if steps.has(&PORT_RANGE) {
        scene.sysctls.push(("ip_local_port_range", "1024 65535"));
    }
    if steps.has(&CLIENT) {
        let connects = Some((SocketAddrV4::new(NODE_IP, NODE_PORT), SocketAddrV4::new(PEER_IP, 6443)));
        scene.parts.push(Part { connects, ..Part::named("kubelet-probe") });
    }
    scene
}
