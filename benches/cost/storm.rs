//! Measures the cost of an agent with its usual share of a core during constant changes. Also counts the scans until
//! the agent finds a new listener.

use std::{
    net::TcpListener,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    crowd::{Crowd, Holder},
    memory::processor_time,
    parts::{ControlPlane, PRIMARY, directory::Directory, http_get, objects, process::Process},
    row::{Promise, Row},
    sizes::short,
    world::{PLACE, node_ports, number},
};

/// The greatest processor time of an agent with default settings, in per cent of a core. Scans may take half of this
/// time, and connections and changes may take the other half.
const COST: f64 = 0.4;
const INTERVAL: Duration = Duration::from_secs(15);
const SERVICES: u16 = 2_000;
const FIRST: u16 = 30_000;
/// The number of NodePorts with a listener. With 2,000 listeners, a scan on a slow machine exceeds the agent's share,
/// even with the longest pause between scans.
const CONFLICTS: u16 = 500;
/// The number of NodePorts with a listener while the benchmark counts the scans until a finding about a new listener.
const FEW: u16 = 100;
const EDITS: Duration = Duration::from_millis(300);
/// In the time `BEFORE`, the agent reads everything for the first time. The measured parts follow: each takes the time
/// `PART`, and `PARTS` is their number.
const BEFORE: Duration = Duration::from_secs(90);
const PART: Duration = Duration::from_secs(15);
const PARTS: u32 = 10;
const SOCKETS: usize = 500_000;
/// The greatest number of scans until the finding. The problem must last for two scans, and one scan may have begun
/// before the listener.
const LATENCY: f64 = 3.0;

pub fn measure(binary: &Path, small: bool) -> Vec<Row> {
    let (services, conflicts, parts, sockets) =
        if small { (20, 20, 2, 2_000) } else { (SERVICES, CONFLICTS, PARTS, SOCKETS) };
    let directory = Directory::new();
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    for port in FIRST..FIRST + services {
        cluster.api().create(&objects::service(&format!("s{port}"), &[objects::port(80, Some(port))]));
    }
    let all_held = hold("127.0.0.1:7000", conflicts);
    let agent = start(binary, &cluster, &directory, services);

    if !small {
        storm(&cluster, BEFORE);
    }
    let curve: Vec<f64> = (0..parts)
        .map(|_| {
            let (began, spent) = (Instant::now(), processor_time(agent.pid()));
            storm(&cluster, PART);
            100.0 * (processor_time(agent.pid()) - spent).as_secs_f64() / began.elapsed().as_secs_f64()
        })
        .collect();
    eprintln!("per cent of a core, every {PART:?} of the storm: {curve:.3?}");
    // In some parts, the agent begins to read all listeners. These parts cost clearly more. The mean covers whole
    // periods: from the first costly part up to the last costly part.
    let costly = |part: usize| curve[part] > COST;
    let begins: Vec<usize> =
        (0..curve.len()).filter(|part| costly(*part) && (*part == 0 || !costly(part - 1))).collect();
    let periods = match begins[..] {
        [first, .., last] => &curve[first..last],
        _ => &curve,
    };
    let mean = periods.iter().sum::<f64>() / periods.len() as f64;
    let what = format!("one Service edited every {} ms, {} conflicts", EDITS.as_millis(), short(conflicts.into()));
    let mut rows = vec![Row::alone(format!("{what}: processor time"), "% of a core", [mean], Promise::AtMost(COST))];
    drop((agent, all_held));

    let few = FEW.min(conflicts);
    let _few_held = hold("127.0.0.1:7001", few);
    let agent = start(binary, &cluster, &directory, services);
    if !small {
        storm(&cluster, BEFORE);
    }
    rows.push(Row::alone(
        format!("after such a storm, {few} conflicts: a new listener to the finding, interval {INTERVAL:?}"),
        "scans",
        [listener(&cluster, FIRST + SERVICES)],
        Promise::AtMost(LATENCY),
    ));
    drop(agent);

    let mut crowd = Crowd::default();
    crowd.grow(sockets);
    let _agent = start(binary, &cluster, &directory, services);
    let scans = (1..=if small { 1 } else { 3 }).map(|number| listener(&cluster, FIRST + SERVICES + number));
    rows.push(Row::alone(
        format!("{} sockets, {few} conflicts: a new listener to the finding, interval {INTERVAL:?}", short(sockets)),
        "scans",
        scans,
        Promise::AtMost(LATENCY),
    ));
    rows
}

fn storm(cluster: &ControlPlane, lasts: Duration) {
    let began = Instant::now();
    let path = format!("/api/v1/namespaces/default/services/s{FIRST}");
    let mut edits = 0_u32;
    while began.elapsed() < lasts {
        edits += 1;
        let mut port = objects::port(80, Some(FIRST));
        port["targetPort"] = json!(8080 + edits % 2);
        port["name"] = json!(format!("http-{}", edits % 2));
        let patch = json!({"spec": {"ports": [port]}});
        cluster.api().send("PATCH", &path, "application/merge-patch+json", &patch).expect("it may be edited");
        thread::sleep((EDITS * edits).saturating_sub(began.elapsed()));
    }
}

/// Counts the scans from the start of a listener on a Service's NodePort until the finding. The listener starts at any
/// moment between two scans. The benchmark compares the number of findings, because only a limited number of findings
/// have their own metrics.
fn listener(cluster: &ControlPlane, port: u16) -> f64 {
    let known = node_ports(&metrics());
    cluster.api().create(&objects::service(&format!("s{port}"), &[objects::port(80, Some(port))]));
    patiently(|| node_ports(&metrics()) > known);
    thread::sleep(Duration::from_millis(u64::from(port) * 7919 % 15_000));
    let found = findings(&metrics());
    let _listener = TcpListener::bind(("0.0.0.0", port)).expect("a free port");
    let scans = || number(&metrics(), "portreeve_scans_total");
    let before = scans();
    patiently(|| findings(&metrics()) > found);
    scans() - before
}

fn findings(metrics: &str) -> f64 {
    let of_rule = |line: &&str| line.starts_with("portreeve_findings{rule=\"listener-on-node-port\",variant=\"loses\"");
    metrics.lines().filter(of_rule).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Repeats a request until it succeeds. The pauses are long, because each request costs the agent time.
fn patiently(probe: impl Fn() -> bool) {
    while !probe() {
        thread::sleep(Duration::from_millis(500));
    }
}

fn metrics() -> String {
    http_get(PLACE, "/metrics").expect("metrics")
}

fn hold(control: &str, conflicts: u16) -> Holder {
    let mut holder = Holder::start(control);
    (FIRST..FIRST + conflicts).for_each(|port| holder.order(&format!("listen 0.0.0.0:{port}")));
    holder
}

/// Starts the agent as shipped, with its usual interval and share. Waits until the agent knows `services` Services.
pub fn start(binary: &Path, cluster: &ControlPlane, directory: &Directory, services: u16) -> Process {
    let arguments = [
        "agent".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig("admin").display()),
        "--node=n1".to_owned(),
        "--proxy-mode=iptables".to_owned(),
        format!("--listen={PLACE}"),
    ];
    let mut agent = Process::start(binary.to_str().expect("a path"), &arguments, directory.path());
    agent
        .wait_for("every Service", || (node_ports(&http_get(PLACE, "/metrics")?) >= f64::from(services)).then_some(()));
    agent
}
