//! kube-proxy.

use std::{collections::BTreeMap, net::SocketAddr, process::Command};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use super::{
    agent::until,
    control_plane::ControlPlane,
    directory::Directory,
    node::Wired,
    objects,
    process::Process,
    programs,
    talk::{http_get, is_pod},
};

const PLACE: &str = "127.0.0.1:10249";

/// The kube-proxy of node `n1`. The calling thread's namespace must be this node, and the cluster must have the Node
/// `n1`.
pub struct Proxy {
    process: Process,
    mode: String,
    place: String,
    _directory: Directory,
}

impl Proxy {
    #[track_caller]
    pub fn start(cluster: &ControlPlane, mode: &str, settings: &Value) -> Self {
        Self::start_by(&[], cluster, mode, settings)
    }

    /// Starts kube-proxy: runs `command`, followed by the program and its arguments.
    #[track_caller]
    pub fn start_by(command: &[String], cluster: &ControlPlane, mode: &str, settings: &Value) -> Self {
        let mut proxy = Self::run(command, "kube-proxy", cluster, mode, settings);
        proxy.settle(cluster);
        proxy
    }

    /// Starts kube-proxy 1.23.6 in iptables mode. This version is the last version that holds each NodePort with a
    /// socket. `descriptors` is kube-proxy's limit of file descriptors. The function does not wait until Services are
    /// programmed.
    #[track_caller]
    pub fn start_holding(cluster: &ControlPlane, descriptors: u64) -> Self {
        Self::start_holding_by(&[], cluster, descriptors)
    }

    #[track_caller]
    pub fn start_holding_by(command: &[String], cluster: &ControlPlane, descriptors: u64) -> Self {
        let proxy = Self::run(command, "kube-proxy-1.23.6", cluster, "iptables", &json!({}));
        let limit = format!("--nofile={descriptors}:{descriptors}");
        let prlimit = Command::new("prlimit").args(["--pid", &proxy.pid().to_string(), &limit]).status();
        assert!(prlimit.expect("prlimit of util-linux is installed").success());
        proxy
    }

    /// Starts kube-proxy 1.37.2, the first version that has a feature gate for NodePorts on loopback in nftables mode.
    #[track_caller]
    pub fn start_newer(cluster: &ControlPlane, mode: &str, settings: &Value) -> Self {
        let mut proxy = Self::run(&[], "kube-proxy-1.37.2", cluster, mode, settings);
        proxy.settle(cluster);
        proxy
    }

    /// Runs a kube-proxy that must end by itself, and returns its log.
    #[track_caller]
    pub fn end(cluster: &ControlPlane, mode: &str, settings: &Value) -> String {
        let directory = Directory::new();
        let mut process = Self::process(&directory, &[], "kube-proxy", cluster, mode, settings);
        until("end of kube-proxy", || process.has_ended().then_some(()));
        process.log()
    }

    #[track_caller]
    fn run(command: &[String], program: &str, cluster: &ControlPlane, mode: &str, settings: &Value) -> Self {
        let directory = Directory::new();
        let mut process = Self::process(&directory, command, program, cluster, mode, settings);
        let place = settings["metricsBindAddress"].as_str().unwrap_or(PLACE);
        let answer = process.wait_for("proxy mode", || http_get(place, "/proxyMode"));
        assert_eq!(answer, mode);
        Self { process, mode: mode.to_owned(), place: place.to_owned(), _directory: directory }
    }

    #[track_caller]
    fn process(
        directory: &Directory,
        command: &[String],
        program: &str,
        cluster: &ControlPlane,
        mode: &str,
        settings: &Value,
    ) -> Process {
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
        Process::start_by(command, program, &[format!("--config={file}")], directory.path())
    }

    /// Waits until earlier changes are programmed. kube-proxy programs changes in order. So the function creates one
    /// more Service, and waits until this Service answers and the sync has ended.
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
        let place = self.place.clone();
        self.process.wait_for("end of a sync", || is_in_step(&http_get(&place, "/metrics")?).then_some(()));
    }

    /// Freezes kube-proxy: its sockets and rules stay, but kube-proxy does not answer.
    #[track_caller]
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    #[track_caller]
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    #[track_caller]
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().try_into().expect("a pid")), signal).expect("it is ours");
    }

    /// Runs the cleanup twice after ipvs mode. The first cleanup can fail, because other chains still lead to some of
    /// the deleted chains.
    pub fn clean_up(self) {
        let runs = if self.mode == "ipvs" { 2 } else { 1 };
        drop(self);
        let clean = || Command::new(programs::find("kube-proxy")).arg("--cleanup").output().expect("kube-proxy runs");
        let outputs: Vec<_> = (0..runs).map(|_| clean()).collect();
        let said: Vec<_> = outputs.iter().map(|it| String::from_utf8_lossy(&it.stderr)).collect();
        assert!(outputs.last().is_some_and(|it| it.status.success()), "{said:#?}");
    }

    /// The version that kube-proxy reports, for example `v1.36.3`.
    pub fn version() -> String {
        let output = Command::new(programs::find("kube-proxy")).arg("--version").output().expect("kube-proxy runs");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        said.trim().trim_start_matches("Kubernetes ").to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    #[track_caller]
    pub fn log(&self) -> String {
        self.process.log()
    }
}

fn is_in_step(metrics: &str) -> bool {
    let of = |name: &str| -> BTreeMap<String, f64> {
        let lines = metrics
            .lines()
            .filter_map(|line| line.strip_prefix("kubeproxy_sync_proxy_rules_last_")?.strip_prefix(name));
        let values = lines.filter_map(|rest| rest.rsplit_once(' '));
        values.filter_map(|(labels, value)| Some((labels.to_owned(), value.parse().ok()?))).collect()
    };
    let (synced, queued) = (of("timestamp_seconds"), of("queued_timestamp_seconds"));
    !queued.is_empty() && queued.iter().all(|(labels, told)| synced.get(labels).is_some_and(|done| done >= told))
}
