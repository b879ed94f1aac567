//! The shapes of Services. Each shape changes the rules that a proxy programs.

use serde_json::{Value, json};

use super::{Bind, Listener};
use crate::parts::{Api, PRIMARY, Wired, objects};

pub struct Shape {
    pub name: &'static str,
    families: &'static [&'static str],
    /// The value of externalTrafficPolicy.
    policy: &'static str,
    endpoint: Endpoint,
    /// The second argument is the listener's port.
    change: fn(&mut Value, u16),
}

#[derive(Clone, Copy)]
enum Endpoint {
    None,
    /// The addresses and the node of the endpoints, and the conditions ready, serving and terminating.
    At([&'static str; 2], &'static str, [bool; 3]),
    /// The listener itself is the endpoint, like a server of a pod in the host's network.
    Listener,
}

const BOTH: &[&str] = &["IPv4", "IPv6"];
const READY: Endpoint = Endpoint::At(Wired::HERE, "n1", [true, true, false]);

const PLAIN: Shape = Shape { name: "ready", families: BOTH, policy: "Cluster", endpoint: READY, change: |_, _| {} };

pub static SHAPES: [Shape; 14] = [
    PLAIN,
    Shape { name: "empty", endpoint: Endpoint::None, ..PLAIN },
    Shape {
        name: "elsewhere",
        policy: "Local",
        endpoint: Endpoint::At(Wired::ELSEWHERE, "n2", [true, true, false]),
        ..PLAIN
    },
    Shape { name: "here", policy: "Local", ..PLAIN },
    Shape { name: "not-ready", endpoint: Endpoint::At(Wired::HERE, "n1", [false, false, false]), ..PLAIN },
    Shape { name: "draining", endpoint: Endpoint::At(Wired::HERE, "n1", [false, true, true]), ..PLAIN },
    Shape { name: "four", families: &["IPv4"], ..PLAIN },
    Shape { name: "six-empty", families: &["IPv6"], endpoint: Endpoint::None, ..PLAIN },
    // A Service with a healthCheckNodePort. The test sets this port, because the API server could choose another
    // listener's port.
    Shape {
        name: "balancer",
        policy: "Local",
        change: |service, port| {
            service["spec"]["type"] = json!("LoadBalancer");
            service["spec"]["healthCheckNodePort"] = json!(port + 2000);
        },
        ..PLAIN
    },
    Shape {
        name: "balancer-without-node-ports",
        change: |service, port| {
            service["spec"]["type"] = json!("LoadBalancer");
            service["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
            service["spec"]["ports"][0]["port"] = json!(port);
            service["spec"]["ports"][0].as_object_mut().expect("a port").remove("nodePort");
        },
        ..PLAIN
    },
    Shape {
        name: "both-protocols",
        change: |service, port| {
            let ports = service["spec"]["ports"].as_array_mut().expect("ports");
            let other = if ports[0]["protocol"] == "UDP" { "TCP" } else { "UDP" };
            ports.push(json!({"name": "other", "port": 80, "targetPort": 8080, "nodePort": port, "protocol": other}));
        },
        ..PLAIN
    },
    Shape {
        name: "external-ip",
        change: |service, port| {
            service["spec"]["type"] = json!("ClusterIP");
            service["spec"]["externalIPs"] = json!(["192.0.2.2", "2001:db8::2"]);
            service["spec"]["ports"][0]["port"] = json!(port);
            service["spec"]["ports"][0].as_object_mut().expect("a port").remove("nodePort");
            service["spec"].as_object_mut().expect("a spec").remove("externalTrafficPolicy");
        },
        ..PLAIN
    },
    Shape { name: "itself", endpoint: Endpoint::Listener, ..PLAIN },
    Shape {
        name: "other-proxy",
        change: |service, _| {
            service["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
        },
        ..PLAIN
    },
];

impl Shape {
    /// Whether a listener can have this shape: an endpoint has no loopback or link-local address.
    pub fn suits(&self, bind: &Bind) -> bool {
        let ip = bind.ip();
        let link_local = matches!(ip, std::net::IpAddr::V6(ip) if ip.is_unicast_link_local());
        !matches!(self.endpoint, Endpoint::Listener) || !(ip.is_loopback() || link_local)
    }
}

#[track_caller]
pub fn create(api: &Api, listener: &Listener) {
    let Listener { bind, protocol, shape, port } = listener;
    let mut entry = objects::port(80, Some(*port));
    entry["protocol"] = json!(protocol.to_string().to_uppercase());
    let mut service = objects::service(&format!("{}-{port}", shape.name), &[entry]);
    service["spec"]["ipFamilyPolicy"] =
        json!(if shape.families.len() == 2 { "RequireDualStack" } else { "SingleStack" });
    service["spec"]["ipFamilies"] = json!(shape.families);
    service["spec"]["externalTrafficPolicy"] = json!(shape.policy);
    (shape.change)(&mut service, *port);
    let service = api.create(&service);
    for (index, family) in BOTH.iter().enumerate().filter(|(_, family)| shape.families.contains(family)) {
        let (address, node, conditions, target) = match shape.endpoint {
            Endpoint::None => (None, "n1", [false; 3], Wired::PORT),
            Endpoint::At(addresses, node, conditions) => (Some(addresses[index]), node, conditions, Wired::PORT),
            Endpoint::Listener => (own_address(bind, index), "n1", [true, true, false], *port),
        };
        let mut slice = objects::endpoint_slice(&service, address.map(|it| (it, node)), family);
        if address.is_some() {
            let [ready, serving, terminating] = conditions;
            slice["endpoints"][0]["conditions"] =
                json!({"ready": ready, "serving": serving, "terminating": terminating});
        }
        for port in slice["ports"].as_array_mut().expect("ports") {
            port["port"] = json!(target);
        }
        api.create(&slice);
    }
}

/// Returns the endpoint address of a listener that is a pod in the host's network. Returns `None` if the listener has
/// no endpoint address in the family.
fn own_address(bind: &Bind, family: usize) -> Option<&'static str> {
    let ip = bind.ip();
    match (ip.is_unspecified(), ip.is_ipv4(), family) {
        (true, true, 0) => Some(PRIMARY[0]),
        (true, false, 0) => (!bind.v6only).then_some(PRIMARY[0]),
        (true, false, _) => Some(PRIMARY[1]),
        (false, true, 0) | (false, false, 1) => Some(bind.address),
        _ => None,
    }
}
