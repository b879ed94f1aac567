//! `portreeve agent`, the shipped binary, and what it leaves behind in the cluster.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{control_plane::ControlPlane, directory::Directory, patience::patience, process::Process, talk::http_get};

/// How long something may take that takes two looks; far more than it needs on a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// Where it answers.
const PLACE: &str = "127.0.0.1:29517";

/// An agent of node `n1`, the calling thread's namespace, with the rights of `observer`; it ends with this value.
pub struct Agent {
    _process: Process,
    _directory: Directory,
}

impl Agent {
    /// One that has looked once, with further arguments.
    #[track_caller]
    pub fn start(cluster: &ControlPlane, arguments: &[&str]) -> Self {
        let directory = Directory::new();
        let kubeconfig = cluster.kubeconfig("observer").display().to_string();
        let ours = ["agent", "--kubeconfig", &kubeconfig, "--node", "n1", "--interval", "500ms", "--listen", PLACE];
        let all = ours.iter().chain(&["--cpu-percent", "100"]).chain(arguments).map(|it| (*it).to_owned());
        let heartbeat = format!("--heartbeat={}/heartbeat", directory.path().display());
        let arguments: Vec<String> = all.chain([heartbeat]).collect();
        let mut process = Process::start(env!("CARGO_BIN_EXE_portreeve"), &arguments, directory.path());
        process.wait_for("first look", || http_get(PLACE, "/readyz"));
        Self { _process: process, _directory: directory }
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
    let end = Instant::now() + patience(SOON);
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
