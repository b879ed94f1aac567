//! The objects of the demo's cluster, as `kubectl get -o yaml --show-managed-fields` prints them.

use std::net::Ipv4Addr;

use serde_json::{Map, Value, json};

pub(super) struct Port {
    pub(super) name: String,
    pub(super) port: u16,
    /// The port's nodePort. 0 if the port has none.
    pub(super) node_port: u16,
    /// Whether a client wrote the nodePort.
    pub(super) fixed: bool,
}

impl Port {
    pub(super) fn automatic(name: impl Into<String>, port: u16, node_port: u16) -> Self {
        Self { name: name.into(), port, node_port, fixed: false }
    }

    pub(super) fn cluster(name: impl Into<String>, port: u16) -> Self {
        Self { name: name.into(), port, node_port: 0, fixed: false }
    }
}

pub(super) fn node(name: &str, ip: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "uid": uid("node", name), "labels": { "kubernetes.io/hostname": name } },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": ip }, { "type": "Hostname", "address": name }],
            "conditions": [{ "type": "Ready", "status": "True" }],
            "nodeInfo": { "kubeletVersion": "v1.36.3" },
        },
    })
}

pub(super) fn service(name: &str, kind: &str, ports: &[Port]) -> Value {
    let spec_ports: Vec<_> = ports
        .iter()
        .map(|Port { name, port, node_port, .. }| match node_port {
            0 => json!({ "name": name, "port": port, "protocol": "TCP", "targetPort": 8080 }),
            _ => json!({
                "name": name, "nodePort": node_port, "port": port, "protocol": "TCP", "targetPort": 8080,
            }),
        })
        .collect();
    let [.., third, fourth] = fingerprint(name).to_be_bytes();
    let cluster_ip = Ipv4Addr::new(10, 96, third, fourth);
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid("service", name),
            "managedFields": [{
                "apiVersion": "v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": { "f:spec": { "f:ports": owned(ports), "f:selector": {}, "f:type": {} } },
                "manager": "kubectl-create",
                "operation": "Update",
                "time": "2026-11-21T12:00:00Z",
            }],
        },
        "spec": {
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "externalTrafficPolicy": "Cluster",
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": spec_ports,
            "selector": { "app": name },
            "sessionAffinity": "None",
            "type": kind,
        },
        "status": { "loadBalancer": {} },
    })
}

pub(super) fn endpoint_slice(service: &str, ports: &[Port], pods: &[&str]) -> Value {
    let ports: Vec<_> =
        ports.iter().map(|port| json!({ "name": port.name, "port": 8080, "protocol": "TCP" })).collect();
    let endpoints: Vec<_> = pods
        .iter()
        .map(|ip| {
            json!({
                "addresses": [ip],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": super::incident::NODE,
            })
        })
        .collect();
    json!({
        "addressType": "IPv4",
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "labels": { "kubernetes.io/service-name": service },
            "name": format!("{service}-x7k2p"),
            "namespace": "default",
        },
        "ports": ports,
        "endpoints": endpoints,
    })
}

/// The static pod of a kube-apiserver on another machine.
pub(super) fn api_server(node_port_range: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": { "component": "kube-apiserver", "tier": "control-plane" },
            "name": "kube-apiserver-control-plane",
            "namespace": "kube-system",
        },
        "spec": {
            "containers": [{
                "command": [
                    "kube-apiserver",
                    "--service-cluster-ip-range=10.96.0.0/12",
                    format!("--service-node-port-range={node_port_range}"),
                ],
                "name": "kube-apiserver",
            }],
            "hostNetwork": true,
            "nodeName": "control-plane",
        },
        "status": { "phase": "Running" },
    })
}

pub(super) fn list(objects: &[Value]) -> anyhow::Result<String> {
    // Every cluster has this Service. Without this Service, a list counts as incomplete.
    let of_api_server = service("kubernetes", "ClusterIP", &[Port::cluster("https", 443)]);
    let items: Vec<&Value> = objects.iter().chain([&of_api_server]).collect();
    let list = json!({ "apiVersion": "v1", "items": items, "kind": "List", "metadata": { "resourceVersion": "" } });
    Ok(serde_saphyr::to_string(&list)?)
}

/// The port fields that a client wrote, in the format of managedFields.
fn owned(ports: &[Port]) -> Map<String, Value> {
    ports
        .iter()
        .map(|port| {
            let mut fields = json!({ ".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {} });
            if port.fixed {
                fields["f:nodePort"] = json!({});
            }
            (format!(r#"k:{{"port":{},"protocol":"TCP"}}"#, port.port), fields)
        })
        .collect()
}

/// A uid that is the same in each run.
fn uid(kind: &str, name: &str) -> String {
    let print = fingerprint(kind) ^ fingerprint(name);
    format!("{:08x}-0000-4000-8000-{:012x}", print >> 32, print & 0xffff_ffff_ffff)
}

fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
