//! Starts the binary `portreeve agent` for a test, and reads the agent's answers and Events.

use super::named::is_of;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::{
    control_plane::ControlPlane,
    directory::Directory,
    patience::patience,
    process::Process,
    talk::{http_get, socket_get},
};

/// The time limit for an effect that needs two scans. Even a busy machine needs much less.
const SOON: Duration = Duration::from_secs(60);
const PLACE: &str = "127.0.0.1:29517";
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

/// A shell script that runs a program as in a pod: with the files of the service account, and the API server's address.
/// `$0` is the directory of these files.
const POD: &str = "
    mount -t tmpfs pod /run
    mkdir -p /run/secrets/kubernetes.io
    ln -s \"$0\" /run/secrets/kubernetes.io/serviceaccount
    export KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_SERVICE_PORT=443
    exec \"$@\"";

/// An agent in the calling thread's network namespace.
pub struct Agent {
    place: &'static str,
    process: Process,
    socket: PathBuf,
    _directory: Directory,
}

impl Agent {
    /// Starts an agent of node `n1`, and waits for its first scan. In the cluster, the agent has the rights of
    /// `observer`. On the node, the agent has all rights, as with the chart's netfilter profile.
    #[track_caller]
    pub fn start(cluster: &ControlPlane, arguments: &[&str]) -> Self {
        Self::of(cluster, "n1", PLACE, arguments)
    }

    #[track_caller]
    pub fn of_program(program: &Path, cluster: &ControlPlane, arguments: &[&str]) -> Self {
        let (program, kubeconfig) =
            (program.display().to_string(), cluster.kubeconfig("observer").display().to_string());
        Self::run(Directory::new(), &[&program], "n1", PLACE, &[&["--kubeconfig", &kubeconfig], arguments].concat())
    }

    #[track_caller]
    pub fn of(cluster: &ControlPlane, node: &str, place: &'static str, arguments: &[&str]) -> Self {
        Self::with(&cluster.kubeconfig("observer"), node, place, arguments)
    }

    #[track_caller]
    pub fn with(kubeconfig: &Path, node: &str, place: &'static str, arguments: &[&str]) -> Self {
        let kubeconfig = kubeconfig.display().to_string();
        let arguments = [&["--kubeconfig", &kubeconfig], arguments].concat();
        Self::run(Directory::new(), &[env!("CARGO_BIN_EXE_portreeve")], node, place, &arguments)
    }

    /// Starts the agent of node `n1` with uid 65534 and without a capability, as in the minimal profile.
    #[track_caller]
    pub fn start_as_nobody(cluster: &ControlPlane, arguments: &[&str]) -> Self {
        Self::as_nobody(&cluster.kubeconfig("observer"), "n1", PLACE, arguments)
    }

    /// Starts an agent with uid 65534 and without a capability.
    #[track_caller]
    pub fn as_nobody(kubeconfig: &Path, node: &str, place: &'static str, arguments: &[&str]) -> Self {
        let directory = Directory::new();
        let binary = directory.path().join("portreeve");
        // `cp` makes the copy: if this process opened the copy for writing, a child of a parallel test could inherit
        // the open file. Then the kernel would refuse to run the copy.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_portreeve")).arg(&binary).status();
        assert!(copied.expect("the program cp").success());
        open_to_all(directory.path(), 0o777);
        open_to_all(kubeconfig.parent().expect("a directory"), 0o755);
        let (binary, kubeconfig) = (binary.display().to_string(), kubeconfig.display().to_string());
        let words: Vec<&str> = ["/usr/bin/setpriv"].into_iter().chain(AS_NOBODY).chain([binary.as_str()]).collect();
        Self::run(directory, &words, node, place, &[&["--kubeconfig", &kubeconfig], arguments].concat())
    }

    /// Starts an agent of node `n1` as in a pod, with the files in `service_account`, and waits for its first scan. The
    /// API server's Service has no working endpoint.
    #[track_caller]
    pub fn in_pod(service_account: &Path, arguments: &[&str]) -> Self {
        let files = service_account.display().to_string();
        let unshare = ["/usr/bin/unshare", "--mount", "--", "/bin/sh", "-ec", POD, &files];
        let words = [&unshare[..], &[env!("CARGO_BIN_EXE_portreeve")]].concat();
        Self::run(Directory::new(), &words, "n1", PLACE, arguments)
    }

    /// Starts the agent through the command `words`, which gets the agent's program and arguments.
    #[track_caller]
    pub fn by(words: &[&str], cluster: &ControlPlane, arguments: &[&str]) -> Self {
        let kubeconfig = cluster.kubeconfig("observer").display().to_string();
        let words = [words, &[env!("CARGO_BIN_EXE_portreeve")]].concat();
        Self::run(Directory::new(), &words, "n1", PLACE, &[&["--kubeconfig", &kubeconfig], arguments].concat())
    }

    #[track_caller]
    fn run(directory: Directory, words: &[&str], node: &str, place: &'static str, arguments: &[&str]) -> Self {
        let socket = directory.path().join("socket");
        let listen = format!("--socket={}", socket.display());
        let ours = ["agent", "--node", node, "--interval", "500ms", "--listen", place, "--cpu-percent", "100", &listen];
        let all = [&words[1..], &ours, arguments].concat();
        let all: Vec<String> = all.into_iter().map(str::to_owned).collect();
        let mut process = Process::start(words[0], &all, directory.path());
        process.wait_for("first look", || http_get(place, "/readyz"));
        Self { place, process, socket, _directory: directory }
    }

    #[track_caller]
    pub fn is_well(&self) -> bool {
        let mut probe = Command::new(env!("CARGO_BIN_EXE_portreeve"));
        let lives =
            probe.args(["agent", "--probe", "--socket"]).arg(&self.socket).status().expect("portreeve runs").success();
        lives && http_get(self.place, "/readyz").is_some()
    }

    #[track_caller]
    pub fn log(&self) -> String {
        self.process.log()
    }

    #[track_caller]
    pub fn stop(mut self) {
        self.process.signal(Signal::SIGTERM);
        until("end of the agent", || self.process.has_ended().then_some(()));
    }

    #[track_caller]
    pub fn found(&self, rule: &str) -> Vec<u64> {
        let document = self.findings();
        let findings = document["findings"].as_array().expect("a list").iter();
        let mut ports: Vec<u64> = findings.filter(|it| is_of(it, rule)).filter_map(|it| it["port"].as_u64()).collect();
        ports.sort_unstable();
        ports
    }

    pub fn value(exposition: &str, series: &str) -> Option<f64> {
        exposition.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.trim().parse().ok())
    }

    #[track_caller]
    pub fn looks(&self) -> u64 {
        Self::looks_in(&self.metrics())
    }

    #[track_caller]
    pub fn looks_in(metrics: &str) -> u64 {
        let count = metrics.lines().find_map(|line| line.strip_prefix("portreeve_scans_total ")?.strip_suffix(".0"));
        count.and_then(|count| count.parse().ok()).expect("a count of looks")
    }

    #[track_caller]
    pub fn findings_after(&self, looks: u64) -> Value {
        // The scan that is running now does not count.
        let enough = self.looks() + 1 + looks;
        until("further looks", || (self.looks() >= enough).then_some(()));
        self.findings()
    }

    #[track_caller]
    pub fn metrics(&self) -> String {
        http_get(self.place, "/metrics").expect("metrics")
    }

    #[track_caller]
    pub fn findings(&self) -> Value {
        // Repeats the request, because the agent answers only a few requests at the same time.
        let findings = until("findings", || socket_get(&self.socket, "/findings"));
        serde_json::from_str(&findings).expect("JSON")
    }

    #[track_caller]
    pub fn page(&self) -> String {
        socket_get(&self.socket, "/").expect("a page")
    }

    #[track_caller]
    pub fn snapshot(&self) -> Value {
        let snapshot = socket_get(&self.socket, "/snapshot").expect("a snapshot");
        serde_json::from_str(&snapshot).expect("JSON")
    }
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("opened to others");
}

#[track_caller]
pub fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    until_within(SOON, what, probe)
}

#[track_caller]
pub fn until_within<T>(usual: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + patience(usual);
    while Instant::now() < end {
        if let Some(answer) = probe() {
            return answer;
        }
        sleep(Duration::from_millis(100));
    }
    panic!("no {what} within {usual:?}");
}

/// The Events of agents, the oldest first. If a new hour of an incident begins during the test, the agent writes a
/// second Event that differs only in its name and times. The list omits the second Event. A third Event fails the test.
#[track_caller]
pub fn events(cluster: &ControlPlane) -> Vec<Value> {
    let mut told: Vec<(Value, usize)> = Vec::new();
    for event in all_events(cluster) {
        let said = |event: &Value| ["note", "reason", "regarding", "reportingInstance"].map(|name| event[name].clone());
        match told.iter_mut().find(|(other, _)| said(other) == said(&event)) {
            Some((_, times)) => *times += 1,
            None => told.push((event, 1)),
        }
    }
    assert!(told.iter().all(|(_, times)| *times <= 2), "{told:#?}");
    told.into_iter().map(|(event, _)| event).collect()
}

#[track_caller]
pub fn all_events(cluster: &ControlPlane) -> Vec<Value> {
    let text = cluster.api().text("/apis/events.k8s.io/v1/events").expect("events can be listed");
    let list: Value = serde_json::from_str(&text).expect("JSON");
    let mut events = list["items"].as_array().expect("items").clone();
    events.retain(|event| event["reportingController"] == "portreeve");
    events.sort_by_key(|event| event["eventTime"].as_str().map(str::to_owned));
    events
}

#[track_caller]
pub fn reasons(cluster: &ControlPlane) -> Vec<String> {
    events(cluster).iter().filter_map(|event| event["reason"].as_str().map(str::to_owned)).collect()
}
