//! `portreeve agent`, the shipped binary, and what it leaves behind in the cluster.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
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
/// What is to be run as nobody follows.
const AS_NOBODY: [&str; 8] = [
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "--no-new-privs",
    "--pdeathsig=KILL",
    "--",
];

/// An agent of the calling thread's namespace, with the rights of `observer`; it ends with this value.
pub struct Agent {
    place: &'static str,
    _process: Process,
    _directory: Directory,
}

impl Agent {
    /// One of node `n1` that has looked once, with further arguments. It may do everything, as with the guard profile.
    #[track_caller]
    pub fn start(cluster: &ControlPlane, arguments: &[&str]) -> Self {
        Self::of(cluster, "n1", PLACE, arguments)
    }

    /// The same, of another node and answering at another place.
    #[track_caller]
    pub fn of(cluster: &ControlPlane, node: &str, place: &'static str, arguments: &[&str]) -> Self {
        Self::run(cluster, node, place, Directory::new(), &[env!("CARGO_BIN_EXE_portreeve")], arguments)
    }

    /// The one of node `n1` as uid 65534 without a single capability, as the minimal profile runs.
    #[track_caller]
    pub fn start_as_nobody(cluster: &ControlPlane, arguments: &[&str]) -> Self {
        let directory = Directory::new();
        let binary = directory.path().join("portreeve");
        // By another program: were it open for writing here, a child of a parallel test would keep it busy.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_portreeve")).arg(&binary).status();
        assert!(copied.expect("the program cp").success());
        open_to_all(directory.path(), 0o777);
        open_to_all(cluster.kubeconfig("observer").parent().expect("a directory"), 0o755);
        let binary = binary.display().to_string();
        let words: Vec<&str> = ["/usr/bin/setpriv"].into_iter().chain(AS_NOBODY).chain([binary.as_str()]).collect();
        Self::run(cluster, "n1", PLACE, directory, &words, arguments)
    }

    #[track_caller]
    fn run(
        cluster: &ControlPlane,
        node: &str,
        place: &'static str,
        directory: Directory,
        words: &[&str],
        arguments: &[&str],
    ) -> Self {
        let kubeconfig = cluster.kubeconfig("observer").display().to_string();
        let ours = ["agent", "--kubeconfig", &kubeconfig, "--node", node, "--interval", "500ms", "--listen", place];
        let all = words[1..].iter().chain(&ours).chain(&["--cpu-percent", "100"]).chain(arguments);
        let heartbeat = format!("--heartbeat={}/heartbeat", directory.path().display());
        let arguments: Vec<String> = all.map(|it| (*it).to_owned()).chain([heartbeat]).collect();
        let mut process = Process::start(words[0], &arguments, directory.path());
        process.wait_for("first look", || http_get(place, "/readyz"));
        Self { place, _process: process, _directory: directory }
    }

    /// The value of a series in an exposition, if it is there.
    pub fn value(exposition: &str, series: &str) -> Option<f64> {
        exposition.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.trim().parse().ok())
    }

    /// How often it has looked.
    #[track_caller]
    pub fn looks(&self) -> u64 {
        Self::looks_in(&self.metrics())
    }

    /// The same in what it exposed.
    #[track_caller]
    pub fn looks_in(metrics: &str) -> u64 {
        let count = metrics.lines().find_map(|line| line.strip_prefix("portreeve_scans_total ")?.strip_suffix(".0"));
        count.and_then(|count| count.parse().ok()).expect("a count of looks")
    }

    /// What it says once it has begun and ended so many looks from now on.
    #[track_caller]
    pub fn findings_after(&self, looks: u64) -> Value {
        // The one that may be under way does not count.
        let enough = self.looks() + 1 + looks;
        until("further looks", || (self.looks() >= enough).then_some(()));
        self.findings()
    }

    /// What it exposes now.
    #[track_caller]
    pub fn metrics(&self) -> String {
        http_get(self.place, "/metrics").expect("metrics")
    }

    /// What it has found and could not tell, as JSON.
    #[track_caller]
    pub fn findings(&self) -> Value {
        let findings = http_get(self.place, "/findings").expect("findings");
        serde_json::from_str(&findings).expect("JSON")
    }
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("opened to others");
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
