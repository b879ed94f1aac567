//! The cost of a running agent with a real API server: its processor time, and its resident memory with different
//! numbers of Services and sockets.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::unistd::{SysconfVar, sysconf};

use crate::{
    crowd::Crowd,
    fill,
    growth::{self, Point},
    parts::{ControlPlane, PRIMARY, directory::Directory, http_get, memory::Memory, objects, process::Process, until},
    row::{Promise, Row},
    sizes::short,
    world::{PLACE, node_ports, number},
};

/// The numbers of Services in a cluster. The promise about memory is for 5,000 Services. Every second Service has a
/// NodePort, as long as NodePorts are free.
const SERVICES: [usize; 3] = [0, 1_000, 5_000];
const MANY_SERVICES: usize = 50_000;
const NODE_PORTS: usize = 2_500;
/// The numbers of sockets on a node. The last numbers are for busy nodes.
const SOCKETS: [usize; 4] = [2_000, 200_000, 500_000, 1_000_000];
/// The default interval of scans. `LOOKS` is the number of scans in a measurement of processor time: one of twenty
/// scans reads all facts.
const INTERVAL: Duration = Duration::from_secs(15);
const LOOKS: u32 = 20;
/// The number of scans after which memory is stable.
const SETTLED: f64 = 4.0;

/// The greatest resident memory with 5,000 Services and 2,000 sockets, in MiB. `MOST_OF_MANY` is the greatest resident
/// memory with 50,000 Services. `MOST_GROWTH` is the greatest additional memory for a million sockets.
const MOST_MEMORY: f64 = 15.0;
const MOST_OF_MANY: f64 = 45.0;
const MOST_GROWTH: f64 = 4.0;
/// The greatest resident memory since the start, as a multiple of the final memory. The agent does not keep a list in
/// memory while the list arrives.
const MOST_PEAK: f64 = 1.5;
/// The greatest processor time with 5,000 Services and 2,000 sockets, in thousandths of a core.
const MOST_PROCESSOR: f64 = 3.0;

pub fn measure(binary: &Path, small: bool) -> Vec<Row> {
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    let directory = Directory::new();
    let mut crowd = Crowd::default();
    crowd.grow(SOCKETS[0]);
    let mut rows = Vec::new();
    let (mut filled, mut few) = (0, 0.0);
    let services = if small { &SERVICES[..2] } else { &SERVICES[..] };
    for services in services {
        fill::services(&cluster, filled..*services, NODE_PORTS);
        filled = *services;
        let promise = if *services == SERVICES[2] { Promise::AtMost(MOST_MEMORY) } else { Promise::None };
        let memory = (0..starts(promise)).map(|_| settled(binary, &cluster, filled, &directory).resident);
        let row = resident(services, SOCKETS[0], memory, promise);
        few = row.ours.median;
        rows.push(row);
    }
    rows.push(processor(binary, &cluster, filled, &directory, small));
    rows.push(of_proxy(&cluster, filled, &directory));
    for sockets in &SOCKETS[1..if small { 2 } else { SOCKETS.len() }] {
        crowd.grow(*sockets);
        let memory = settled(binary, &cluster, filled, &directory).resident;
        rows.push(resident(&filled, *sockets, [memory], Promise::None));
        let what = format!("memory that {} sockets add", short(*sockets));
        rows.push(Row::alone(what, "MiB", [(memory - few).max(0.0)], Promise::AtMost(MOST_GROWTH)));
    }
    rows
}

pub fn many(binary: &Path, small: bool) -> Vec<Row> {
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    let directory = Directory::new();
    let (mut filled, mut rows, mut peaks) = (0, Vec::new(), Vec::new());
    let sizes = if small { [500, 1_000, 2_000] } else { [SERVICES[2], 2 * SERVICES[2], MANY_SERVICES] };
    let points = sizes.map(|services| {
        fill::services(&cluster, filled..services, NODE_PORTS);
        filled = services;
        let promise = if services == MANY_SERVICES { Promise::AtMost(MOST_OF_MANY) } else { Promise::None };
        let memory: Vec<Memory> =
            (0..starts(promise)).map(|_| settled(binary, &cluster, services, &directory)).collect();
        peaks = memory.iter().map(|memory| memory.peak / memory.resident).collect();
        let row = resident(&services, 0, memory.iter().map(|memory| memory.resident), promise);
        let took = row.ours.median;
        rows.push(row);
        Point { size: services as f64, took }
    });
    let what = format!("peak memory since the start with {} Services, compared with the memory at rest", short(filled));
    rows.push(Row::alone(what, "times", peaks, Promise::AtMost(MOST_PEAK)));
    rows.push(growth::row("memory with Services", &points, Promise::AtMost(growth::LINEAR)));
    rows
}

/// The number of starts of the agent for one row. Each start maps a different number of pages of the program's file, so
/// a promise needs several starts.
fn starts(promise: Promise) -> usize {
    if promise == Promise::None { 1 } else { 3 }
}

fn resident(services: &usize, sockets: usize, memory: impl IntoIterator<Item = f64>, promise: Promise) -> Row {
    let what = format!("resident memory with {} Services and {} sockets", short(*services), short(sockets));
    Row::alone(what, "MiB", memory, promise)
}

fn settled(binary: &Path, cluster: &ControlPlane, services: usize, directory: &Directory) -> Memory {
    let mut agent = start(binary, cluster, Duration::from_secs(1), directory);
    ready(&mut agent, services);
    let scanned = scans();
    until("further scans", || (scans() >= scanned + SETTLED).then_some(()));
    Memory::of(agent.pid())
}

fn processor(binary: &Path, cluster: &ControlPlane, services: usize, directory: &Directory, small: bool) -> Row {
    let mut agent = start(binary, cluster, INTERVAL, directory);
    ready(&mut agent, services);
    let scans = if small { 1 } else { LOOKS };
    let rates = (0..scans).map(|_| {
        let (begun, spent) = (Instant::now(), processor_time(agent.pid()));
        thread::sleep(INTERVAL);
        // The agent is scraped once for each scan.
        http_get(PLACE, "/metrics").expect("metrics");
        1000.0 * (processor_time(agent.pid()) - spent).as_secs_f64() / begun.elapsed().as_secs_f64()
    });
    let mean = rates.sum::<f64>() / f64::from(scans);
    let what = format!("processor time with {} Services and {} sockets", short(services), short(SOCKETS[0]));
    Row::alone(what, "thousandths of a core", [mean], Promise::AtMost(MOST_PROCESSOR))
}

/// For comparison, the resident memory of kube-proxy, which watches the same objects with client-go. kube-proxy is
/// measured after it has programmed all Services.
fn of_proxy(cluster: &ControlPlane, services: usize, directory: &Directory) -> Row {
    let arguments = [
        format!("--kubeconfig={}", cluster.kubeconfig("admin").display()),
        "--hostname-override=n1".to_owned(),
        "--proxy-mode=nftables".to_owned(),
        "--conntrack-max-per-core=0".to_owned(),
    ];
    let mut proxy = Process::start("kube-proxy", &arguments, directory.path());
    proxy.wait_for("kube-proxy in step", || {
        let metrics = http_get("127.0.0.1:10249", "/metrics")?;
        let mut told =
            metrics.lines().filter_map(|it| it.strip_prefix("kubeproxy_sync_proxy_rules_service_changes_total"));
        let synced: f64 = told.find_map(|line| line.rsplit(' ').next()?.parse().ok())?;
        (synced >= services as f64).then_some(())
    });
    let what = format!("resident memory of kube-proxy with {} Services", short(services));
    Row::alone(what, "MiB", [Memory::of(proxy.pid()).resident], Promise::None)
}

/// Starts the agent as shipped, except that a scan may use any share of a core. So the interval between scans stays the
/// same.
fn start(binary: &Path, cluster: &ControlPlane, interval: Duration, directory: &Directory) -> Process {
    let arguments = [
        "agent".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig("admin").display()),
        "--node=n1".to_owned(),
        format!("--interval={}s", interval.as_secs()),
        "--cpu-percent=100".to_owned(),
        format!("--listen={PLACE}"),
    ];
    Process::start(binary.to_str().expect("a path"), &arguments, directory.path())
}

fn ready(agent: &mut Process, services: usize) {
    let expected = NODE_PORTS.min(services.div_ceil(2)) as f64;
    agent.wait_for("view of every Service", || {
        let metrics = http_get(PLACE, "/metrics")?;
        (node_ports(&metrics) == expected && metrics.contains("portreeve_node_ports{")).then_some(())
    });
}

fn scans() -> f64 {
    number(&http_get(PLACE, "/metrics").expect("metrics"), "portreeve_scans_total")
}

/// The user and system time of a process so far, including threads that have ended. The kernel counts in hundredths of
/// a second.
pub fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let (_, after_name) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|it| it.parse::<u64>().expect("ticks")).sum();
    let per_second = sysconf(SysconfVar::CLK_TCK).expect("a constant").expect("a constant");
    Duration::from_secs_f64(ticks as f64 / per_second as f64)
}
