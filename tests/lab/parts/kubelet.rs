//! The kubelet of a node.

use serde_json::{Value, json};

use super::{control_plane::ControlPlane, machine::Machine};

/// containerd must run on the machine.
#[track_caller]
pub fn start(machine: &mut Machine, cluster: &ControlPlane, name: &str, addresses: [&str; 2]) {
    let configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", machine.cgroup()),
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        // No DNS server answers at this address, because the test's pods resolve no names.
        "clusterDNS": ["10.96.0.10"],
        // For `kubectl exec`, the API server calls the kubelet without credentials.
        "authentication": {"anonymous": {"enabled": true}},
        "authorization": {"mode": "AlwaysAllow"},
        // With these limits, a full disk of the machine does not make the kubelet evict pods.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
    });
    let configuration = machine.directory().write("kubelet.json", &configuration.to_string());
    let arguments = [
        format!("--config={configuration}"),
        format!("--kubeconfig={}", cluster.kubeconfig("admin").display()),
        format!("--hostname-override={name}"),
        format!("--node-ip={}", addresses.join(",")),
    ];
    let kubelet = machine.start_program("kubelet", &arguments);
    kubelet.wait_for("Node that is Ready", || {
        let node = cluster.api().text(&format!("/api/v1/nodes/{name}"))?;
        let node: Value = serde_json::from_str(&node).expect("JSON");
        let conditions = node["status"]["conditions"].as_array()?;
        conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True").then_some(())
    });
}
