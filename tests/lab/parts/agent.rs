//! `portreeve agent`, the shipped binary, and what it leaves behind in the cluster.

use std::{
    path::Path,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{control_plane::ControlPlane, directory::Directory, process::Process, talk::http_get};

/// How long something may take that takes two looks; far more than it needs on a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// Where it answers.
const PLACE: &str = "127.0.0.1:29517";
/// What kubelet does for a pod: the files of its service account where they belong, and where the API server is said
/// to be. The first argument is the directory, the others are the program.
const POD: &str = "
    mount -t tmpfs pod /run
    mkdir -p /run/secrets/kubernetes.io
    ln -s \"$0\" /run/secrets/kubernetes.io/serviceaccount
    export KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_SERVICE_PORT=443
    exec \"$@\"";

/// An agent of node `n1`, the calling thread's namespace; it ends with this value.
pub struct Agent {
    _process: Process,
    heartbeat: String,
    _directory: Directory,
}

impl Agent {
    /// One with the rights of `observer` that has looked once, with further arguments.
    #[track_caller]
    pub fn start(cluster: &ControlPlane, arguments: &[&str]) -> Self {
        let kubeconfig = cluster.kubeconfig("observer").display().to_string();
        Self::run(&[], &[&["--kubeconfig", &kubeconfig], arguments].concat())
    }

    /// One in a pod with these files of its service account, that has looked once. The Service of the API server is
    /// one that nobody answers for.
    #[track_caller]
    pub fn in_pod(service_account: &Path, arguments: &[&str]) -> Self {
        let files = service_account.display().to_string();
        Self::run(&["/usr/bin/unshare", "--mount", "--", "/bin/sh", "-ec", POD, &files], arguments)
    }

    #[track_caller]
    fn run(around: &[&str], arguments: &[&str]) -> Self {
        let directory = Directory::new();
        let heartbeat = format!("--heartbeat={}/heartbeat", directory.path().display());
        let ours = [env!("CARGO_BIN_EXE_portreeve"), "agent", "--node", "n1", "--interval", "500ms", "--listen", PLACE];
        let words = [around, &ours, &["--cpu-percent", "100", &heartbeat], arguments].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let mut process = Process::start(&words[0], &words[1..], directory.path());
        process.wait_for("first look", || http_get(PLACE, "/readyz"));
        Self { _process: process, heartbeat, _directory: directory }
    }

    /// Whether kubelet's probes would leave it alone.
    #[track_caller]
    pub fn is_well(&self) -> bool {
        let mut probe = Command::new(env!("CARGO_BIN_EXE_portreeve"));
        let lives = probe.args(["agent", "--probe", &self.heartbeat]).status().expect("portreeve runs").success();
        lives && http_get(PLACE, "/readyz").is_some()
    }

    /// The NodePorts of open findings of a rule, in order.
    #[track_caller]
    pub fn found(&self, rule: &str) -> Vec<u64> {
        let text = http_get(PLACE, "/findings").expect("findings");
        let document: Value = serde_json::from_str(&text).expect("JSON");
        let findings = document["findings"].as_array().expect("a list").iter();
        let mut ports: Vec<u64> =
            findings.filter(|it| it["rule"] == rule).filter_map(|it| it["port"].as_u64()).collect();
        ports.sort_unstable();
        ports
    }

    /// The value of a series in an exposition, if it is there.
    pub fn value(exposition: &str, series: &str) -> Option<f64> {
        exposition.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.trim().parse().ok())
    }

    /// What it exposes now.
    #[track_caller]
    pub fn metrics(&self) -> String {
        http_get(PLACE, "/metrics").expect("metrics")
    }
}

/// Waits until `probe` has an answer.
#[track_caller]
pub fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    while Instant::now() < end {
        if let Some(answer) = probe() {
            return answer;
        }
        sleep(Duration::from_millis(100));
    }
    panic!("no {what} within {SOON:?}");
}

/// The Events of this project in every namespace, oldest first.
#[track_caller]
pub fn events(cluster: &ControlPlane) -> Vec<Value> {
    let text = cluster.api().text("/apis/events.k8s.io/v1/events").expect("events can be listed");
    let list: Value = serde_json::from_str(&text).expect("JSON");
    let mut events = list["items"].as_array().expect("items").clone();
    events.retain(|event| event["reportingController"] == "portreeve");
    events.sort_by_key(|event| event["eventTime"].as_str().map(str::to_owned));
    events
}

/// Their reasons.
#[track_caller]
pub fn reasons(cluster: &ControlPlane) -> Vec<String> {
    events(cluster).iter().filter_map(|event| event["reason"].as_str().map(str::to_owned)).collect()
}
