//! kubectl, as a person types it.

use std::process::Command;

use super::{control_plane::ControlPlane, directory::Directory, programs};

/// What kubectl prints for `admin`.
#[track_caller]
pub fn kubectl(cluster: &ControlPlane, words: &[&str]) -> String {
    let cache = Directory::new();
    let mut command = Command::new(programs::find("kubectl"));
    command.env("KUBERC", "off").env("KUBECACHEDIR", cache.path()).args(words);
    command.arg("--kubeconfig").arg(cluster.kubeconfig("admin"));
    let output = command.output().expect("kubectl runs");
    assert!(output.status.success(), "kubectl {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}
