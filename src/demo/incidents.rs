//! The five incidents: the setup and the expected findings of each.

use std::net::SocketAddrV4;

use super::{
    incident::{Expected, Incident, NODE, NODE_IP, PEER_IP, Scene, Steps},
    manifest::{self, Port},
    part::{CURRENT, Part},
};
use portreeve_facts::Mode;
use portreeve_rules::findings::Severity::{self, Critical, Info, Warning};

pub(super) static INCIDENTS: [Incident; 5] = [
    Incident {
        name: "starved-proxy",
        title: "One Service too many: the proxy runs out of file descriptors",
        steps: &[
            ("old-proxy", "kube-proxy has version 1.23.6, which opens a socket for every NodePort"),
            ("descriptor-limit", "its soft RLIMIT_NOFILE is 512"),
            ("many-ports", "Service default/many has 490 NodePorts"),
        ],
        expected: &[expected("proxy-near-fd-limit/near", Critical, "Node node-a", None)],
        scene: starved_proxy,
    },
    Incident {
        name: "crowded-range",
        title: "A fixed NodePort among the dynamic ones, and a range that is full",
        steps: &[
            ("small-range", "kube-apiserver runs with --service-node-port-range=30000-30127"),
            ("full-dynamic-band", "seven Services have automatic NodePorts, all of 30016-30127 but 30100"),
            ("spilled-static-band", "Service default/latecomer then took all 16 ports of the static band, 30000-30015"),
            ("fixed-port", "the YAML of Service default/payments has nodePort: 30100"),
        ],
        expected: &[
            expected("node-port-range-crowded/full", Critical, "Cluster cluster", None),
            expected("node-port-range-mismatch/band", Info, "Service default/payments", Some(FIXED)),
        ],
        scene: crowded_range,
    },
    Incident {
        name: "squatting-listener",
        title: "The listener that still listens but gets no connections",
        steps: &[
            ("services", "Services own 30080 (web), 30081 (batch, without endpoints) and 30082 (metrics)"),
            ("iptables-proxy", "kube-proxy 1.36.3 runs in iptables mode"),
            ("web-listener", "a process listens on 0.0.0.0:30080"),
            ("batch-listener", "the process listens on 0.0.0.0:30081"),
            ("loopback-listener", "the process listens on 127.0.0.1:30082"),
        ],
        expected: &[
            expected("listener-on-node-port/loses", Critical, "Service default/web", Some(WEB)),
            expected("listener-on-node-port/loses", Critical, "Service default/batch", Some(BATCH)),
            expected("listener-on-node-port/loses", Warning, "Service default/metrics", Some(METRICS)),
        ],
        scene: squatting_listener,
    },
    Incident {
        name: "widened-ephemeral-range",
        title: "The ephemeral port range was widened over the NodePorts",
        steps: &[
            ("default-range", "kube-apiserver runs with --service-node-port-range=30000-32767"),
            ("shop-service", "Service default/shop owns NodePort 30090"),
            ("ipvs-proxy", "kube-proxy 1.36.3 runs in ipvs mode"),
            ("port-range", "net.ipv4.ip_local_port_range is 1024 65535, and no port is reserved"),
            (
                "client-socket",
                "a connection from 192.0.2.11:30090 to 192.0.2.12:6443 waits for its SYN-ACK, which never comes",
            ),
        ],
        expected: &[
            expected("ephemeral-range-overlap/node-ports", Critical, "Node node-a", None),
            expected("connection-on-port/answers-taken", Critical, "Service default/shop", Some(SHOP)),
        ],
        scene: widened_ephemeral_range,
    },
    Incident {
        name: "lost-node",
        title: "The Service that took a node down",
        steps: &[
            ("peer-node", "Node node-b has the InternalIP 192.0.2.12"),
            ("external-ip", "Service default/gateway, type ClusterIP, has externalIPs: [192.0.2.12]"),
            ("ipvs-mode", "kube-proxy 1.36.3 runs in ipvs mode"),
            ("kube-ipvs0", "ipvs mode has added 192.0.2.12 to kube-ipvs0 on node-a"),
        ],
        expected: &[Expected {
            evidence: &[("held on this node", "yes"), ("proxy mode", "ipvs")],
            ..expected("external-ip-conflict/node-address", Critical, "Service default/gateway", None)
        }],
        scene: lost_node,
    },
];

/// The soft limit of open files for the proxy in `starved-proxy`. `PORTS` sockets are more than 95 % of the limit.
const LIMIT: u64 = 512;
const PORTS: u16 = 490;
const FIRST: u16 = 30100;
const FIXED: u16 = 30100;
const PORTS_A_SERVICE: usize = 16;
const WEB: u16 = 30080;
const BATCH: u16 = 30081;
const METRICS: u16 = 30082;
const SHOP: u16 = 30090;

const fn expected(rule: &'static str, severity: Severity, subject: &'static str, port: Option<u16>) -> Expected {
    Expected { rule, severity, subject, port, evidence: &[] }
}

pub(super) fn step_names() -> impl Iterator<Item = &'static str> {
    INCIDENTS.iter().flat_map(|incident| incident.steps).map(|(name, _)| *name)
}

fn starved_proxy(steps: &Steps) -> Scene {
    let count = if steps.has("many-ports") { PORTS } else { 1 };
    let ports: Vec<_> = (0..count).map(|n| Port::automatic(format!("p{}", n + 1), 8000 + n, FIRST + n)).collect();
    let (version, holds) = if steps.has("old-proxy") { ("v1.23.6", true) } else { (CURRENT, false) };
    Scene {
        objects: vec![
            manifest::node(NODE, NODE_IP),
            manifest::service("many", "NodePort", &ports),
            manifest::endpoint_slice("many", &ports, &["10.244.0.5"]),
        ],
        parts: vec![Part {
            descriptor_limit: steps.has("descriptor-limit").then_some(LIMIT),
            listens: match holds {
                true => ports.iter().map(|port| ([0, 0, 0, 0], port.node_port).into()).collect(),
                false => Vec::new(),
            },
            ..Part::proxy(Mode::Iptables, version)
        }],
        ..Scene::default()
    }
}

fn crowded_range(steps: &Steps) -> Scene {
    let automatic = |(number, node_port): (u16, u16)| Port::automatic(format!("p{number}"), 8000 + number, node_port);
    let payments = Port { fixed: steps.has("fixed-port"), ..automatic((1, FIXED)) };
    let mut objects = vec![manifest::node(NODE, NODE_IP), manifest::service("payments", "NodePort", &[payments])];
    if steps.has("full-dynamic-band") {
        let ports: Vec<_> = (1..).zip((30016..=30127).filter(|port| *port != FIXED)).map(automatic).collect();
        objects.extend(
            ports
                .chunks(PORTS_A_SERVICE)
                .enumerate()
                .map(|(index, ports)| manifest::service(&format!("team-{}", index + 1), "NodePort", ports)),
        );
    }
    if steps.has("spilled-static-band") {
        let ports: Vec<_> = (1..).zip(30000..=30015).map(automatic).collect();
        objects.push(manifest::service("latecomer", "NodePort", &ports));
    }
    if steps.has("small-range") {
        objects.push(manifest::api_server("30000-30127"));
    }
    Scene { objects, parts: vec![Part::proxy(Mode::Nftables, CURRENT)], ..Scene::default() }
}

fn squatting_listener(steps: &Steps) -> Scene {
    let mut scene = Scene { objects: vec![manifest::node(NODE, NODE_IP)], ..Scene::default() };
    if steps.has("services") {
        for (name, node_port, pods) in
            [("web", WEB, &["10.244.0.5"][..]), ("batch", BATCH, &[]), ("metrics", METRICS, &["10.244.0.6"])]
        {
            let ports = [Port { fixed: true, ..Port::automatic("http", 80, node_port) }];
            scene.objects.push(manifest::service(name, "NodePort", &ports));
            scene.objects.push(manifest::endpoint_slice(name, &ports, pods));
        }
    }
    if steps.has("iptables-proxy") {
        // kube-proxy in iptables mode sets `route_localnet`, so a NodePort answers on 127.0.0.1.
        scene.sysctls.push(("conf/all/route_localnet", "1"));
        scene.parts.push(Part::proxy(Mode::Iptables, CURRENT));
    }
    let everywhere = [0, 0, 0, 0];
    let listens = [
        ("web-listener", (everywhere, WEB)),
        ("batch-listener", (everywhere, BATCH)),
        ("loopback-listener", ([127, 0, 0, 1], METRICS)),
    ];
    scene.parts.push(Part {
        listens: listens.into_iter().filter(|(step, _)| steps.has(step)).map(|(_, address)| address.into()).collect(),
        ..Part::named("web-server")
    });
    scene
}

fn widened_ephemeral_range(steps: &Steps) -> Scene {
    let mut scene =
        Scene { objects: vec![manifest::node(NODE, NODE_IP), manifest::node("node-b", PEER_IP)], ..Scene::default() };
    if steps.has("default-range") {
        scene.objects.push(manifest::api_server("30000-32767"));
    }
    if steps.has("shop-service") {
        let ports = [Port::automatic("http", 80, SHOP)];
        scene.objects.push(manifest::service("shop", "NodePort", &ports));
        scene.objects.push(manifest::endpoint_slice("shop", &ports, &["10.244.0.5"]));
    }
    if steps.has("ipvs-proxy") {
        scene.parts.push(Part::proxy(Mode::Ipvs, CURRENT));
    }
    if steps.has("port-range") {
        scene.sysctls.push(("ip_local_port_range", "1024 65535"));
    }
    if steps.has("client-socket") {
        let connects = Some((SocketAddrV4::new(NODE_IP, SHOP), SocketAddrV4::new(PEER_IP, 6443)));
        scene.parts.push(Part { connects, ..Part::named("kubelet-probe") });
    }
    scene
}

fn lost_node(steps: &Steps) -> Scene {
    let mut scene = Scene { objects: vec![manifest::node(NODE, NODE_IP)], ..Scene::default() };
    if steps.has("peer-node") {
        scene.objects.push(manifest::node("node-b", PEER_IP));
    }
    if steps.has("external-ip") {
        let ports = [Port::cluster("gateway", 6666)];
        let mut service = manifest::service("gateway", "ClusterIP", &ports);
        service["spec"]["externalIPs"] = [PEER_IP.to_string()].as_slice().into();
        scene.objects.push(service);
        scene.objects.push(manifest::endpoint_slice("gateway", &ports, &["10.244.0.5"]));
    }
    if steps.has("ipvs-mode") {
        scene.parts.push(Part::proxy(Mode::Ipvs, CURRENT));
    }
    if steps.has("kube-ipvs0") {
        scene.ipvs_addresses.push(PEER_IP.into());
    }
    scene
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use portreeve_rules::ids::Named;

    #[test]
    fn every_step_has_a_name_of_its_own_and_changes_the_scene() {
        let names: BTreeSet<_> = step_names().collect();
        assert_eq!(names.len(), step_names().count());
        for incident in &INCIDENTS {
            let whole = (incident.scene)(&Steps { without: None });
            for (step, _) in incident.steps {
                let less = (incident.scene)(&Steps { without: Some((*step).to_owned()) });
                assert_ne!(whole, less, "{} / {step}", incident.name);
            }
        }
    }

    #[test]
    fn every_expected_rule_is_in_the_catalogue_and_can_be_that_severe() {
        for expected in INCIDENTS.iter().flat_map(|incident| incident.expected) {
            let named = Named::parse(expected.rule).unwrap_or_else(|| panic!("no rule {}", expected.rule));
            let variant = named.variant.and_then(|name| named.id.variant(name)).expect("a variant");
            assert!(variant.severities.contains(&expected.severity), "{}", expected.rule);
        }
    }
}
