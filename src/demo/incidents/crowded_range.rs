//! A fixed NodePort collides with a dynamic one; the range fills up.

use crate::demo::{
    incident::{Expected, Incident, NODE, NODE_IP, Scene, Step, Steps},
    manifest::{self, Port},
    part::{CURRENT, Part},
};
use portreeve_facts::Mode;
use portreeve_rules::findings::Severity;

pub(super) static INCIDENT: Incident = Incident {
    name: "crowded-range",
    title: "A fixed NodePort among the dynamic ones, and a range that is full",
    steps: &[RANGE, DYNAMIC_BAND, STATIC_BAND, FIXED_PORT],
    expected: &[
        Expected {
            rule: "node-port-range-crowded/full",
            severity: Severity::Critical,
            subject: "Cluster cluster",
            port: None,
            evidence: &[],
        },
        Expected {
            rule: "node-port-range-mismatch/band",
            severity: Severity::Info,
            subject: "Service default/payments",
            port: Some(FIXED),
            evidence: &[],
        },
    ],
    scene,
};

const RANGE: Step =
    Step { name: "small-range", description: "kube-apiserver runs with --service-node-port-range=30000-30127" };
const DYNAMIC_BAND: Step = Step {
    name: "full-dynamic-band",
    description: "seven Services have automatic NodePorts, all of 30016-30127 but 30100",
};
const STATIC_BAND: Step = Step {
    name: "spilled-static-band",
    description: "Service default/latecomer then took all 16 ports of the static band, 30000-30015",
};
const FIXED_PORT: Step =
    Step { name: "fixed-port", description: "the YAML of Service default/payments has nodePort: 30100" };

const FIXED: u16 = 30100;
const PORTS_A_SERVICE: usize = 16;

fn scene(steps: &Steps) -> Scene {
    let automatic = |(number, node_port): (u16, u16)| Port::automatic(format!("p{number}"), 8000 + number, node_port);
    let payments = Port { fixed: steps.has(&FIXED_PORT), ..automatic((1, FIXED)) };
    let mut objects = vec![manifest::node(NODE, NODE_IP), manifest::service("payments", "NodePort", &[payments])];
    if steps.has(&DYNAMIC_BAND) {
        let ports: Vec<_> = (1..).zip((30016..=30127).filter(|port| *port != FIXED)).map(automatic).collect();
        objects.extend(
            ports
                .chunks(PORTS_A_SERVICE)
                .enumerate()
                .map(|(index, ports)| manifest::service(&format!("team-{}", index + 1), "NodePort", ports)),
        );
    }
    if steps.has(&STATIC_BAND) {
        let ports: Vec<_> = (1..).zip(30000..=30015).map(automatic).collect();
        objects.push(manifest::service("latecomer", "NodePort", &ports));
    }
    if steps.has(&RANGE) {
        objects.push(manifest::api_server("30000-30127"));
    }
    Scene { objects, parts: vec![Part::proxy(Mode::Nftables, CURRENT)], ..Scene::default() }
}
