//! kube-proxy.

use std::{net::SocketAddr, process::Command};

use serde_json::{Value, json};

use super::{
    control_plane::ControlPlane,
    directory::Directory,
    node::Wired,
    objects,
    process::Process,
    programs,
    talk::{http_get, is_pod},
};

/// Where it answers.
const PLACE: &str = "127.0.0.1:10249";

/// kube-proxy of node `n1`, which must be the calling thread's namespace and a Node of the cluster.
pub struct Proxy {
    process: Process,
    _directory: Directory,
}

impl Proxy {
    /// One in a mode, with further settings of its configuration; every Service there is has been programmed.
    #[track_caller]
    pub fn start(cluster: &ControlPlane, mode: &str, settings: &Value) -> Self {
        Self::start_by(&[], cluster, mode, settings)
    }

    /// The same, started by a command that is given the program and its arguments.
    #[track_caller]
    pub fn start_by(command: &[String], cluster: &ControlPlane, mode: &str, settings: &Value) -> Self {
        let directory = Directory::new();
        let mut configuration = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": mode,
            "hostnameOverride": "n1",
            "clusterCIDR": "10.244.0.0/16,fd00:244::/56",
            "clientConnection": {"kubeconfig": cluster.kubeconfig("admin")},
            "conntrack": {"maxPerCore": 0},
        });
        for (name, value) in settings.as_object().expect("settings") {
            configuration[name] = value.clone();
        }
        let file = directory.write("kube-proxy.yaml", &configuration.to_string());
        let mut process = Process::start_by(command, "kube-proxy", &[format!("--config={file}")], directory.path());
        let answer = process.wait_for("proxy mode", || http_get(PLACE, "/proxyMode"));
        assert_eq!(answer, mode);
        let mut proxy = Self { process, _directory: directory };
        proxy.settle(cluster);
        proxy
    }

    /// Waits until every Service that was created before is programmed in both families: changes arrive in their
    /// order, so that one more Service that answers is proof.
    #[track_caller]
    pub fn settle(&mut self, cluster: &ControlPlane) {
        let mut last = objects::service("", &[objects::port(80, None)]);
        last["spec"]["type"] = json!("ClusterIP");
        last["metadata"] = json!({"generateName": "settled-", "namespace": "default"});
        let last = cluster.api().create(&last);
        for (family, address) in ["IPv4", "IPv6"].into_iter().zip(Wired::HERE) {
            cluster.api().create(&objects::endpoint_slice(&last, Some((address, "n1")), family));
        }
        for address in last["spec"]["clusterIPs"].as_array().expect("cluster IPs") {
            let address = address.as_str().expect("an address").parse().expect("an address");
            self.process.wait_for("answer from a Service", || is_pod(SocketAddr::new(address, 80)).then_some(()));
        }
    }

    /// Ends it, and lets it take its rules away.
    pub fn clean_up(self) {
        drop(self);
        let output = Command::new(programs::find("kube-proxy")).arg("--cleanup").output().expect("kube-proxy runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Its version as it tells it itself, e.g. `v1.36.3`.
    pub fn version() -> String {
        let output = Command::new(programs::find("kube-proxy")).arg("--version").output().expect("kube-proxy runs");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        said.trim().trim_start_matches("Kubernetes ").to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
