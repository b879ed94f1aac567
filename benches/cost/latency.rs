//! The time from a change until the metrics, a finding and an Event report the change.

use std::{
    net::TcpListener,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    parts::{ControlPlane, PRIMARY, directory::Directory, events, http_get, objects, process::Process, sysctl},
    row::{Promise, Row},
    world::{PLACE, node_ports, number},
};

/// The interval of scans. It is short, so that the benchmark has many scans. A result that depends on the interval is a
/// number of scans, not a time.
const INTERVAL: Duration = Duration::from_secs(2);
const OFTEN: Duration = Duration::from_millis(5);
const FIRST: u16 = 30_100;
/// The longest time until the first verdict without an API server, in milliseconds. `CHANGE` is the longest time from a
/// change of a Service until the scan that judges the change.
const FIRST_VERDICT: f64 = 2000.0;
const CHANGE: f64 = 1000.0;

pub fn measure(binary: &Path, small: bool) -> Vec<Row> {
    let times = if small { 2 } else { 15 };
    let directory = Directory::new();
    let alone = |_| {
        let begun = Instant::now();
        // No API server listens at this address yet.
        let _agent = start(binary, "https://127.0.0.1:6443", &directory);
        patiently(|| http_get(PLACE, "/readyz"));
        millis(begun)
    };
    let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n\
                      clusters: [{name: a, cluster: {server: \"https://127.0.0.1:6443\"}}]\nusers: [{name: a, user: {token: a}}]\n";
    directory.write("kubeconfig", kubeconfig);
    let first: Vec<f64> = (0..times).map(alone).collect();

    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    std::fs::copy(cluster.kubeconfig("admin"), directory.path().join("kubeconfig")).expect("a kubeconfig");
    let agent = start(binary, "https://127.0.0.1:6443", &directory);
    patiently(|| http_get(PLACE, "/readyz"));
    let changes: Vec<[f64; 3]> = (0..times).map(|time| change(&cluster, FIRST + time)).collect();
    let scans: Vec<f64> = (0..times).map(|time| listener(&cluster, FIRST + 100 + time)).collect();
    let settings: Vec<f64> = (0..times).map(|_| setting()).collect();
    drop(agent);
    let of = |index: usize| changes.iter().map(move |times| times[index]);
    vec![
        Row::alone("start to first verdict without an API server", "ms", first, Promise::AtMost(FIRST_VERDICT)),
        Row::alone(
            "time from a Service's change to the scan that judges the change",
            "ms",
            of(0),
            Promise::AtMost(CHANGE),
        ),
        Row::alone("the same to the finding, which has to last", "ms", of(1), Promise::None),
        Row::alone("the same to the Event", "ms", of(2), Promise::None),
        // The problem must last for two scans. One scan may have begun before the change, and a part of an interval may
        // pass.
        Row::alone("scans from a new listener to its finding", "scans", scans, Promise::AtMost(3.0)),
        Row::alone("scans from a change of a sysctl to the finding", "scans", settings, Promise::AtMost(2.0)),
    ]
}

/// Returns the milliseconds until the metrics, the finding and the Event show the conflict.
fn change(cluster: &ControlPlane, port: u16) -> [f64; 3] {
    let _listener = TcpListener::bind(("0.0.0.0", port)).expect("a free port");
    let name = format!("s{port}");
    let allocated = || node_ports(&metrics());
    let before = allocated();
    let begun = Instant::now();
    cluster.api().create(&objects::service(&name, &[objects::port(80, Some(port))]));
    patiently(|| (allocated() > before).then_some(()));
    let seen = millis(begun);
    patiently(|| is_found(port).then_some(()));
    let found = millis(begun);
    patiently(|| events(cluster).iter().any(|event| event["regarding"]["name"] == name.as_str()).then_some(()));
    [seen, found, millis(begun)]
}

/// Returns the number of scans until the finding.
fn listener(cluster: &ControlPlane, port: u16) -> f64 {
    let before = node_ports(&metrics());
    cluster.api().create(&objects::service(&format!("s{port}"), &[objects::port(80, Some(port))]));
    patiently(|| (node_ports(&metrics()) > before).then_some(()));
    let _listener = TcpListener::bind(("0.0.0.0", port)).expect("a free port");
    scans_to(|| is_found(port))
}

/// Widens the ephemeral port range until it contains the NodePorts. Returns the number of scans until the finding.
fn setting() -> f64 {
    let series = "portreeve_findings{rule=\"ephemeral-range-overlap\",variant=\"node-ports\"";
    let is_told = || metrics().lines().any(|line| line.starts_with(series) && !line.ends_with(" 0.0"));
    let range = |range| sysctl("net.ipv4.ip_local_port_range", range);
    range("1024 65535");
    let scans = scans_to(is_told);
    range("32768 60999");
    patiently(|| (!is_told()).then_some(()));
    scans
}

fn scans_to(is_found: impl Fn() -> bool) -> f64 {
    let scans = || number(&metrics(), "portreeve_scans_total");
    let before = scans();
    patiently(|| is_found().then_some(()));
    scans() - before
}

fn is_found(port: u16) -> bool {
    let (rule, port) = ("rule=\"listener-on-node-port\",variant=\"loses\"", format!("port=\"{port}\""));
    let metrics = metrics();
    let mut single = metrics.lines().filter(|line| line.starts_with("portreeve_finding_info{"));
    single.any(|line| line.contains(rule) && line.contains(&port))
}

fn metrics() -> String {
    http_get(PLACE, "/metrics").expect("metrics")
}

fn start(binary: &Path, server: &str, directory: &Directory) -> Process {
    let arguments = [
        "agent".to_owned(),
        format!("--kubeconfig={}/kubeconfig", directory.path().display()),
        format!("--apiserver={server}"),
        "--node=n1".to_owned(),
        "--proxy-mode=iptables".to_owned(),
        format!("--interval={}s", INTERVAL.as_secs()),
        "--cpu-percent=100".to_owned(),
        format!("--listen={PLACE}"),
    ];
    Process::start(binary.to_str().expect("a path"), &arguments, directory.path())
}

fn patiently<T>(mut probe: impl FnMut() -> Option<T>) -> T {
    loop {
        match probe() {
            Some(answer) => return answer,
            None => thread::sleep(OFTEN),
        }
    }
}

fn millis(begun: Instant) -> f64 {
    1000.0 * begun.elapsed().as_secs_f64()
}
