//! kube-controller-manager and kube-scheduler.

use super::{control_plane::ControlPlane, directory::Directory, process::Process};

#[track_caller]
pub fn start(cluster: &ControlPlane, directory: &Directory) -> [Process; 2] {
    let common = [format!("--kubeconfig={}", cluster.kubeconfig("admin").display()), "--leader-elect=false".to_owned()];
    // Pods get the certificates of this authority, to verify the API server.
    let authority = format!("--root-ca-file={}", cluster.authority().display());
    let managing = [&common[..], &[authority]].concat();
    [("kube-controller-manager", &managing[..]), ("kube-scheduler", &common[..])]
        .map(|(program, arguments)| Process::start(program, arguments, directory.path()))
}
