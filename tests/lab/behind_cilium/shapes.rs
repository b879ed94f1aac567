//! Kinds of Services that Cilium handles differently.

use std::net::{IpAddr, SocketAddr};

use portreeve_facts::Protocol;
use serde_json::{Value, json};

use crate::{
    parts::{Cilium, ControlPlane, Namespace, is_pod, objects},
    verdicts::binds::Bind,
};

/// The addresses of an endpoint on another node. In the tests, the client has these addresses.
pub const FAR: [&str; 2] = ["10.244.20.5", "fd00:244:0:20::5"];

/// The second addresses of Cilium's device.
pub const SECOND: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

pub struct Listener {
    pub bind: &'static Bind,
    pub protocol: Protocol,
    pub shape: &'static Shape,
    pub port: u16,
}

pub struct Shape {
    /// The name of this kind of Service, also in recordings of other data planes.
    pub name: &'static str,
    pub families: &'static [&'static str],
    /// The value of externalTrafficPolicy.
    pub policy: &'static str,
    pub endpoints: &'static [Endpoint],
    /// Changes further fields in which the Service differs from [`PLAIN`]. The second argument is the port.
    pub change: fn(&mut Value, u16),
}

pub struct Endpoint {
    /// Whether the endpoint is the node's own pod. Otherwise the endpoint is a pod of another node.
    pub here: bool,
    /// Whether the EndpointSlice names the endpoint's node.
    pub named: bool,
    /// The conditions ready, serving and terminating.
    pub conditions: [bool; 3],
}

/// The label that assigns a Service and its EndpointSlices to the proxy with a given name. Cilium serves the Service if
/// Cilium's configuration has this name.
pub const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
pub const HERE: Endpoint = Endpoint { here: true, named: true, conditions: [true, true, false] };
const ELSEWHERE: Endpoint = Endpoint { here: false, ..HERE };
const DRAINING: [bool; 3] = [false, true, true];

pub const PLAIN: Shape =
    Shape { name: "ready", families: &FAMILIES, policy: "Cluster", endpoints: &[HERE], change: |_, _| {} };

pub static SHAPES: [Shape; 16] = [
    PLAIN,
    Shape { name: "empty", endpoints: &[], ..PLAIN },
    Shape { name: "elsewhere", policy: "Local", endpoints: &[ELSEWHERE], ..PLAIN },
    Shape { name: "here", policy: "Local", ..PLAIN },
    Shape { name: "not-ready", endpoints: &[Endpoint { conditions: [false; 3], ..HERE }], ..PLAIN },
    Shape { name: "draining", endpoints: &[Endpoint { conditions: DRAINING, ..HERE }], ..PLAIN },
    Shape { name: "four", families: &["IPv4"], ..PLAIN },
    Shape { name: "far", endpoints: &[ELSEWHERE], ..PLAIN },
    Shape { name: "two", policy: "Local", endpoints: &[HERE, ELSEWHERE], ..PLAIN },
    Shape {
        name: "draining-here",
        policy: "Local",
        endpoints: &[Endpoint { conditions: DRAINING, ..HERE }, ELSEWHERE],
        ..PLAIN
    },
    Shape {
        name: "draining-elsewhere",
        policy: "Local",
        endpoints: &[Endpoint { conditions: DRAINING, ..ELSEWHERE }],
        ..PLAIN
    },
    Shape {
        name: "internal-local",
        endpoints: &[ELSEWHERE],
        change: |service, _| service["spec"]["internalTrafficPolicy"] = json!("Local"),
        ..PLAIN
    },
    Shape {
        name: "both-local",
        policy: "Local",
        endpoints: &[ELSEWHERE],
        change: |service, _| service["spec"]["internalTrafficPolicy"] = json!("Local"),
        ..PLAIN
    },
    Shape {
        name: "sources",
        change: |service, _| {
            service["spec"]["type"] = json!("LoadBalancer");
            service["spec"]["loadBalancerSourceRanges"] = json!(["203.0.113.0/24", "2001:db8:113::/48"]);
        },
        ..PLAIN
    },
    Shape {
        name: "balancer-without-node-ports",
        change: |service, port| {
            balance(service, port);
        },
        ..PLAIN
    },
    Shape {
        name: "external-ip",
        change: |service, port| {
            expose(service, port, &SECOND);
        },
        ..PLAIN
    },
];

pub fn balance(service: &mut Value, port: u16) {
    service["spec"]["type"] = json!("LoadBalancer");
    service["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
    without_node_port(service, port);
}

pub fn expose(service: &mut Value, port: u16, addresses: &[&str]) {
    service["spec"]["type"] = json!("ClusterIP");
    service["spec"]["externalIPs"] = json!(addresses);
    service["spec"].as_object_mut().expect("a spec").remove("externalTrafficPolicy");
    without_node_port(service, port);
}

fn without_node_port(service: &mut Value, port: u16) {
    let entry = &mut service["spec"]["ports"][0];
    entry["port"] = json!(port);
    entry.as_object_mut().expect("a port").remove("nodePort");
}

impl Shape {
    pub fn forwards(&self) -> bool {
        self.policy == "Cluster" && self.endpoints.iter().any(|it| !it.here)
    }

    /// `own` has the addresses of the node's own pod.
    #[track_caller]
    pub fn create(&self, cluster: &ControlPlane, protocol: Protocol, port: u16, own: &[String]) {
        let mut entry = objects::port(80, Some(port));
        entry["protocol"] = json!(protocol.to_string().to_uppercase());
        let mut service = objects::service(&format!("{}-{port}", self.name), &[entry]);
        let both = self.families.len() == FAMILIES.len();
        service["spec"]["ipFamilyPolicy"] = json!(if both { "RequireDualStack" } else { "SingleStack" });
        service["spec"]["ipFamilies"] = json!(self.families);
        service["spec"]["externalTrafficPolicy"] = json!(self.policy);
        (self.change)(&mut service, port);
        let status = service.get("status").cloned();
        let service = cluster.api().create(&service);
        if let Some(status) = status {
            let name = service["metadata"]["name"].as_str().expect("a name");
            let path = format!("/api/v1/namespaces/default/services/{name}/status");
            let patch = json!({"status": status});
            cluster.api().send("PATCH", &path, "application/merge-patch+json", &patch).expect("it has a status");
        }
        for (index, family) in FAMILIES.iter().enumerate().filter(|(_, family)| self.families.contains(family)) {
            let mut slice = slice_of(&service, None, family);
            let endpoints = self.endpoints.iter().filter_map(|Endpoint { here, named, conditions }| {
                let (address, node) = if *here { (own.get(index)?.as_str(), "n1") } else { (FAR[index], "n2") };
                let [ready, serving, terminating] = conditions;
                let conditions = json!({"ready": ready, "serving": serving, "terminating": terminating});
                let node = named.then_some(node);
                Some(json!({"addresses": [address], "nodeName": node, "conditions": conditions}))
            });
            slice["endpoints"] = endpoints.collect();
            cluster.api().create(&slice);
        }
    }
}

/// Returns an EndpointSlice with the label that the controller would copy from the Service.
fn slice_of(service: &Value, endpoint: Option<(&str, &str)>, family: &str) -> Value {
    let mut slice = objects::endpoint_slice(service, endpoint, family);
    if let Some(name) = service["metadata"]["labels"].get(PROXY_NAME) {
        slice["metadata"]["labels"][PROXY_NAME] = name.clone();
    }
    slice
}

/// Waits until Cilium serves all earlier Services. The function creates one more Service, and waits until Cilium serves
/// this Service in as many families as the node's own pod has.
#[track_caller]
pub fn settle(cluster: &ControlPlane, cilium: &mut Cilium, pod: &Namespace, families: usize) {
    let mut last = objects::service("settled", &[objects::port(80, None)]);
    last["spec"]["type"] = json!("ClusterIP");
    if let Some(name) = cilium.settings.get("k8s-service-proxy-name") {
        last["metadata"]["labels"][PROXY_NAME] = name.clone();
    }
    let last: Value = cluster.api().create(&last);
    for (family, address) in FAMILIES.into_iter().zip(FAR) {
        cluster.api().create(&slice_of(&last, Some((address, "n2")), family));
    }
    for address in last["spec"]["clusterIPs"].as_array().expect("cluster IPs").iter().take(families) {
        let address: IpAddr = address.as_str().expect("an address").parse().expect("an address");
        cilium
            .wait_for("answer from a Service", || pod.run(move || is_pod(SocketAddr::new(address, 80))).then_some(()));
    }
}
