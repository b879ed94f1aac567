//! Kubernetes objects as JSON.

use serde_json::{Value, json};

pub fn node(name: &str, addresses: &[&str]) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|it| json!({"type": "InternalIP", "address": it})).collect();
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"addresses": addresses}})
}

/// The API server demands all fields of `nodeInfo`.
pub fn node_info(kubelet: &str) -> Value {
    let fields = [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    let mut info: Value = fields.into_iter().map(|field| (field.to_owned(), json!("?"))).collect();
    info["kubeletVersion"] = json!(kubelet);
    info
}

pub fn static_pod(name: &str, command: &[&str]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("{name}-n1"),
            "namespace": "kube-system",
            "labels": {"component": name, "tier": "control-plane"},
            "annotations": {"kubernetes.io/config.mirror": "0", "kubernetes.io/config.source": "file"},
        },
        "spec": {
            "nodeName": "n1",
            "hostNetwork": true,
            "containers": [{"name": name, "image": name, "command": command}],
        },
    })
}

/// The Pod needs the ServiceAccount `default`.
pub fn host_port_pod(name: &str, protocol: &str, host_port: u16, host_ip: Option<&str>) -> Value {
    let mut port = json!({"containerPort": 9090, "hostPort": host_port, "protocol": protocol});
    if let Some(host_ip) = host_ip {
        port["hostIP"] = json!(host_ip);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "n1",
            "automountServiceAccountToken": false,
            "containers": [{"name": name, "image": name, "ports": [port]}],
        },
    })
}

pub fn service_account() -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}})
}

pub fn service(name: &str, ports: &[Value]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": "NodePort", "ipFamilyPolicy": "RequireDualStack", "ports": ports},
    })
}

/// With a selector, Portreeve knows the target port. Without a selector, an unread endpoint could be any listener of
/// the node. No controller makes endpoints of the Service.
pub fn selecting_service(name: &str, ports: &[Value]) -> Value {
    let mut service = service(name, ports);
    service["spec"]["selector"] = json!({"app": name});
    service
}

pub fn port(number: u16, node_port: Option<u16>) -> Value {
    let mut port = json!({"name": format!("p{number}"), "port": number, "targetPort": 8080});
    if let Some(node_port) = node_port {
        port["nodePort"] = json!(node_port);
    }
    port
}

/// The target port of each port is 8080.
pub fn endpoint_slice(service: &Value, endpoint: Option<(&str, &str)>, family: &str) -> Value {
    let name = service["metadata"]["name"].as_str().expect("a name");
    let ports = service["spec"]["ports"].as_array().expect("ports");
    let ports: Vec<Value> =
        ports.iter().map(|it| json!({"name": it["name"], "port": 8080, "protocol": it["protocol"]})).collect();
    let endpoints: Vec<Value> = endpoint
        .map(|(address, node)| json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}}))
        .into_iter()
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{name}-{}", family.to_lowercase()),
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": family,
        "ports": ports,
        "endpoints": endpoints,
    })
}
