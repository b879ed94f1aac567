//! Services that Cilium serves only in part. The reasons are annotations, load balancer addresses, addresses on devices
//! that Cilium does not serve, and endpoints without a node.

use portreeve_facts::Protocol;
use serde_json::{Value, json};

use super::{
    BOUND, Told, ask_apart,
    shapes::{Endpoint, HERE, Listener, PLAIN, PROXY_NAME, SECOND, Shape, balance, expose},
};

/// The name of this module's base configuration. The recordings of the module's other configurations contain only
/// differences from the recording of `apart`.
pub const APART: &str = "apart";

/// The addresses to which listeners are bound: all addresses of a family, a second address of Cilium's device, and an
/// address of another device.
const BINDS: [&str; 6] = ["0.0.0.0", "::", "192.0.2.2", "2001:db8::2", "10.244.0.1", "fd00:244::1"];

const BEYOND: [&str; 2] = ["10.244.0.1", "fd00:244::1"];
/// The address of an endpoint without a node.
const NOWHERE: &str = "198.51.100.99";

static SHAPES: [Shape; 16] = [
    Shape { name: "type-cluster-ip", change: |it, _| annotate(it, "type", "ClusterIP"), ..PLAIN },
    Shape { name: "type-node-port", change: |it, _| annotate(it, "type", "NodePort"), ..PLAIN },
    Shape { name: "type-load-balancer", change: |it, _| annotate(it, "type", "LoadBalancer"), ..PLAIN },
    Shape { name: "balancer", change: |it, port| balance_at(it, port, &SECOND), ..PLAIN },
    Shape {
        name: "balancer-type-node-port",
        change: |it, port| {
            balance_at(it, port, &SECOND);
            annotate(it, "type", "NodePort");
        },
        ..PLAIN
    },
    Shape {
        name: "balancer-type-load-balancer",
        change: |it, port| {
            balance_at(it, port, &SECOND);
            annotate(it, "type", "LoadBalancer");
        },
        ..PLAIN
    },
    Shape { name: "balancer-beyond", change: |it, port| balance_at(it, port, &BEYOND), ..PLAIN },
    Shape { name: "external-ip-beyond", change: |it, port| expose(it, port, &BEYOND), ..PLAIN },
    Shape {
        name: "external-ip-type-cluster-ip",
        change: |it, port| {
            expose(it, port, &SECOND);
            annotate(it, "type", "ClusterIP");
        },
        ..PLAIN
    },
    Shape { name: "rivals", change: |it, _| it["spec"]["externalIPs"] = json!([NOWHERE]), ..PLAIN },
    Shape {
        name: "of-another-proxy",
        change: |it, _| it["metadata"]["labels"][PROXY_NAME] = json!("another"),
        ..PLAIN
    },
    Shape { name: "on-other-nodes", change: |it, _| annotate(it, "node", "others"), ..PLAIN },
    Shape { name: "global", change: |it, _| annotate(it, "global", "true"), ..PLAIN },
    Shape { name: "global-empty", change: |it, _| annotate(it, "global", "true"), endpoints: &[], ..PLAIN },
    Shape { name: "of-no-node", endpoints: &[OF_NO_NODE], ..PLAIN },
    Shape { name: "local-of-no-node", policy: "Local", endpoints: &[OF_NO_NODE], ..PLAIN },
];

const OF_NO_NODE: Endpoint = Endpoint { named: false, ..HERE };

fn annotate(service: &mut Value, name: &str, value: &str) {
    service["metadata"]["annotations"][format!("service.cilium.io/{name}")] = json!(value);
}

fn balance_at(service: &mut Value, port: u16, addresses: &[&str]) {
    balance(service, port);
    let addresses: Vec<Value> = addresses.iter().map(|it| json!({"ip": it})).collect();
    service["status"]["loadBalancer"]["ingress"] = json!(addresses);
}

pub fn listeners() -> Vec<Listener> {
    let cells = [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(|protocol| {
        let binds = BOUND.iter().filter(|bind| BINDS.contains(&bind.name));
        binds.flat_map(move |bind| SHAPES.iter().map(move |shape| (bind, protocol, shape)))
    });
    (30000..).zip(cells).map(|(port, (bind, protocol, shape))| Listener { bind, protocol, shape, port }).collect()
}

#[test]
fn by_default() {
    ask_apart(&Told::newest(APART, &[]));
}

#[test]
fn with_sockets_of_the_host_only() {
    ask_apart(&Told::newest("apart-host-sockets", &[("bpf-lb-sock-hostns-only", "true")]));
}

#[test]
fn with_external_ips_on_every_address_of_the_node() {
    ask_apart(&Told::newest("apart-anywhere", &[("disable-external-ip-mitigation", "true")]));
}

#[test]
fn of_one_proxy_name() {
    ask_apart(&Told::newest("apart-named", &[("k8s-service-proxy-name", "another")]));
}

#[test]
fn of_the_older_minor() {
    ask_apart(&Told::before(APART, &[]));
}
