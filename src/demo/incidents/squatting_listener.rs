//! The listener that still listens but gets no connections.

use crate::demo::{
    incident::{Expected, Incident, NODE, NODE_IP, Scene, Step, Steps},
    manifest::{self, Port},
    part::{CURRENT, Part},
};
use portreeve_facts::Mode;
use portreeve_rules::findings::Severity;

pub(super) static INCIDENT: Incident = Incident {
    name: "squatting-listener",
    title: "The listener that still listens but gets no connections",
    steps: &[SERVICES, PROXY, WEB_LISTENER, BATCH_LISTENER, LOOPBACK_LISTENER],
    expected: &[
        listener(Severity::Critical, "Service default/web", WEB),
        listener(Severity::Critical, "Service default/batch", BATCH),
        listener(Severity::Warning, "Service default/metrics", METRICS),
    ],
    scene,
};

const SERVICES: Step = Step {
    name: "services",
    description: "Services own 30080 (web), 30081 (batch, without endpoints) and 30082 (metrics)",
};
const PROXY: Step = Step { name: "iptables-proxy", description: "kube-proxy 1.36.3 runs in iptables mode" };
const WEB_LISTENER: Step = Step { name: "web-listener", description: "a process listens on 0.0.0.0:30080" };
const BATCH_LISTENER: Step = Step { name: "batch-listener", description: "the process listens on 0.0.0.0:30081" };
const LOOPBACK_LISTENER: Step =
    Step { name: "loopback-listener", description: "the process listens on 127.0.0.1:30082" };

const WEB: u16 = 30080;
const BATCH: u16 = 30081;
const METRICS: u16 = 30082;

const fn listener(severity: Severity, subject: &'static str, port: u16) -> Expected {
    Expected { rule: "listener-on-node-port/loses", severity, subject, port: Some(port), evidence: &[] }
}

fn scene(steps: &Steps) -> Scene {
    let mut scene = Scene { objects: vec![manifest::node(NODE, NODE_IP)], ..Scene::default() };
    if steps.has(&SERVICES) {
        for (name, node_port, pods) in
            [("web", WEB, &["10.244.0.5"][..]), ("batch", BATCH, &[]), ("metrics", METRICS, &["10.244.0.6"])]
        {
            let ports = [Port { fixed: true, ..Port::automatic("http", 80, node_port) }];
            scene.objects.push(manifest::service(name, "NodePort", &ports));
            scene.objects.push(manifest::endpoint_slice(name, &ports, pods));
        }
    }
    if steps.has(&PROXY) {
        // kube-proxy sets `route_localnet` in iptables mode; then a NodePort answers on 127.0.0.1.
        scene.sysctls.push(("conf/all/route_localnet", "1"));
        scene.parts.push(Part::proxy(Mode::Iptables, CURRENT));
    }
    let everywhere = [0, 0, 0, 0];
    let listens = [
        (&WEB_LISTENER, (everywhere, WEB)),
        (&BATCH_LISTENER, (everywhere, BATCH)),
        (&LOOPBACK_LISTENER, ([127, 0, 0, 1], METRICS)),
    ];
    scene.parts.push(Part {
        listens: listens.into_iter().filter(|(step, _)| steps.has(step)).map(|(_, address)| address.into()).collect(),
        ..Part::named("web-server")
    });
    scene
}
