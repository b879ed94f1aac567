//! containerd, with runc and the CNI plugins of Debian.

use std::{fs, path::Path};

use serde_json::json;

use super::{images, machine::Machine};

/// containerd uses its default folders, which belong to the test machine. Without `restrict_oom_score_adj`, containerd
/// would need the privilege to lower an oom score.
fn configuration(networks: &Path) -> String {
    format!(
        "version = 2\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\n\
         restrict_oom_score_adj = true\n\
         sandbox_image = \"{}\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\n\
         bin_dir = \"/usr/lib/cni\"\n\
         conf_dir = \"{}\"\n",
        images::STRANGER,
        networks.display()
    )
}

#[track_caller]
pub fn start(machine: &mut Machine) {
    let folder = &machine.directory().path().to_owned();
    let networks = folder.join("networks");
    fs::create_dir(&networks).expect("a folder");
    fs::write(networks.join("lab.conflist"), network().to_string()).expect("a file");
    let configuration = machine.directory().write("containerd.toml", &configuration(&networks));
    let socket = machine.file("/run/containerd/containerd.sock");
    let containerd = machine.start_program("containerd", &[format!("--config={configuration}")]);
    containerd.wait_for("socket", || socket.exists().then_some(()));
    for archive in [images::portreeve(folder), images::stranger(folder)] {
        let archive = archive.to_str().expect("the lab's paths are UTF-8");
        machine.run(&["ctr", "--namespace=k8s.io", "images", "import", archive]);
    }
}

/// The network of the pods. The subnet contains no address of `node::ADDRESSES`.
fn network() -> serde_json::Value {
    let addresses = json!({
        "type": "host-local",
        "dataDir": "/run/cni",
        "subnet": "10.244.2.0/24",
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    let plugins = [
        json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": addresses}),
        json!({"type": "portmap", "capabilities": {"portMappings": true}}),
    ];
    json!({"cniVersion": "0.4.0", "name": "lab", "plugins": plugins})
}
