//! The Service that took a node down.

use crate::demo::{
    incident::{Expected, Incident, NODE, NODE_IP, PEER_IP, Scene, Step, Steps},
    manifest::{self, Port},
    part::{CURRENT, Part},
};
use portreeve_facts::Mode;
use portreeve_rules::findings::Severity;

pub(super) static INCIDENT: Incident = Incident {
    name: "lost-node",
    title: "The Service that took a node down",
    steps: &[PEER, SERVICE, PROXY, IPVS_ADDRESS],
    expected: &[Expected {
        rule: "external-ip-conflict/node-address",
        severity: Severity::Critical,
        subject: "Service default/gateway",
        port: None,
        evidence: &[("held on this node", "yes"), ("proxy mode", "ipvs")],
    }],
    scene,
};

const PEER: Step = Step { name: "peer-node", description: "Node node-b has the InternalIP 192.0.2.12" };
const SERVICE: Step =
    Step { name: "external-ip", description: "Service default/gateway, type ClusterIP, has externalIPs: [192.0.2.12]" };
const PROXY: Step = Step { name: "ipvs-mode", description: "kube-proxy 1.36.3 runs in ipvs mode" };
const IPVS_ADDRESS: Step =
    Step { name: "kube-ipvs0", description: "ipvs mode has added 192.0.2.12 to kube-ipvs0 on node-a" };

fn scene(steps: &Steps) -> Scene {
    let mut scene = Scene { objects: vec![manifest::node(NODE, NODE_IP)], ..Scene::default() };
    if steps.has(&PEER) {
        scene.objects.push(manifest::node("node-b", PEER_IP));
    }
    if steps.has(&SERVICE) {
        let ports = [Port::cluster("gateway", 6666)];
        let mut service = manifest::service("gateway", "ClusterIP", &ports);
        service["spec"]["externalIPs"] = [PEER_IP.to_string()].as_slice().into();
        scene.objects.push(service);
        scene.objects.push(manifest::endpoint_slice("gateway", &ports, &["10.244.0.5"]));
    }
    if steps.has(&PROXY) {
        scene.parts.push(Part::proxy(Mode::Ipvs, CURRENT));
    }
    if steps.has(&IPVS_ADDRESS) {
        scene.ipvs_addresses.push(PEER_IP.into());
    }
    scene
}
