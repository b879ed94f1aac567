//! A proxy that opens a socket for every NodePort has no file descriptor for one more Service.

use crate::demo::{
    incident::{Expected, Incident, NODE, NODE_IP, Scene, Step, Steps},
    manifest::{self, Port},
    part::{CURRENT, Part},
};
use portreeve_facts::Mode;
use portreeve_rules::findings::Severity;

pub(super) static INCIDENT: Incident = Incident {
    name: "starved-proxy",
    title: "One Service too many: the proxy runs out of file descriptors",
    steps: &[OLD_PROXY, DESCRIPTOR_LIMIT, MANY_PORTS],
    expected: &[Expected {
        rule: "proxy-near-fd-limit/near",
        severity: Severity::Critical,
        subject: "Node node-a",
        port: None,
        evidence: &[],
    }],
    scene,
};

const OLD_PROXY: Step =
    Step { name: "old-proxy", description: "kube-proxy has version 1.23.6, which opens a socket for every NodePort" };
const DESCRIPTOR_LIMIT: Step = Step { name: "descriptor-limit", description: "its soft RLIMIT_NOFILE is 512" };
const MANY_PORTS: Step = Step { name: "many-ports", description: "Service default/many has 490 NodePorts" };

const LIMIT: u64 = 512;
/// 95 % of [`LIMIT`], without the other descriptors of the proxy.
const PORTS: u16 = 490;
const FIRST: u16 = 30100;

fn scene(steps: &Steps) -> Scene {
    let count = if steps.has(&MANY_PORTS) { PORTS } else { 1 };
    let ports: Vec<_> = (0..count).map(|n| Port::automatic(format!("p{}", n + 1), 8000 + n, FIRST + n)).collect();
    let (version, holds) = if steps.has(&OLD_PROXY) { ("v1.23.6", true) } else { (CURRENT, false) };
    Scene {
        objects: vec![
            manifest::node(NODE, NODE_IP),
            manifest::service("many", "NodePort", &ports),
            manifest::endpoint_slice("many", &ports, &["10.244.0.5"]),
        ],
        parts: vec![Part {
            descriptor_limit: steps.has(&DESCRIPTOR_LIMIT).then_some(LIMIT),
            listens: match holds {
                true => ports.iter().map(|port| ([0, 0, 0, 0], port.node_port).into()).collect(),
                false => Vec::new(),
            },
            ..Part::proxy(Mode::Iptables, version)
        }],
        ..Scene::default()
    }
}
