//! What the agent costs: its memory and its processor time beside a real API server with 5,000 Services, while the node
//! has 2,000 sockets. Fails when a promise is missed.
//!
//! `make bench` runs it on the binary of the image; `cargo bench --bench footprint -- FILE` measures another build of the
//! same program.

#![allow(clippy::disallowed_methods, reason = "makes the world that the program looks at, and measures time")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark tells what it measured")]
#![allow(unreachable_pub, reason = "a program has no outside")]

#[path = "footprint/cluster.rs"]
mod cluster;
#[allow(dead_code, unused_imports, reason = "the lab has more parts than a benchmark needs")]
#[path = "../tests/lab/parts/mod.rs"]
mod parts;
#[path = "footprint/sockets.rs"]
mod sockets;

use std::{
    env, fs,
    path::Path,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use nix::unistd::{SysconfVar, sysconf};

use self::parts::{
    ControlPlane, PRIMARY, directory::Directory, enter_alone, http_get, memory::Memory, objects, process::Process,
};

/// Services, and how many of them have a NodePort: the default range has no room for more of them.
const SERVICES: usize = 5000;
const NODE_PORTS: usize = 2500;
/// Sockets of a node, and of one with ten times as many.
const SOCKETS: usize = 2000;
const MANY_SOCKETS: usize = 20_000;
/// The default interval of looks.
const INTERVAL: Duration = Duration::from_secs(15);
/// How many of them processor time is measured over.
const LOOKS: u32 = 6;
/// Where the agent answers.
const PLACE: &str = "127.0.0.1:29517";

/// Resident memory of the agent, in MiB.
const MOST_MEMORY: f64 = 15.0;
/// Processor time, in thousandths of a core.
const MOST_PROCESSOR: f64 = 3.0;
/// What so many more sockets may add to the memory of an agent that sees none, in MiB.
const MOST_GROWTH: f64 = 4.0;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).filter(|it| it != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["hold", number, pairs] => sockets::hold(number, pairs),
        [binary] => measure(binary),
        _ => measure(env!("CARGO_BIN_EXE_portreeve")),
    }
}

fn measure(binary: &str) -> ExitCode {
    enter_alone();
    let control_plane = ControlPlane::start();
    control_plane.api().create(&objects::node("n1", &PRIMARY));
    let bytes = cluster::fill(&control_plane.kubeconfig("admin"), SERVICES, NODE_PORTS);
    println!("{SERVICES} Services of {bytes} bytes on average, {NODE_PORTS} with a NodePort; looks every {INTERVAL:?}");

    let directory = Directory::new();
    let mut agent = start(binary, &control_plane, directory.path());
    let pid = agent.pid();
    agent.wait_for("view of every Service", || (allocated() == NODE_PORTS).then_some(()));
    println!("{:<28} {}", "every Service is known", Memory::of(pid));
    thread::sleep(2 * INTERVAL);
    let idle = Memory::of(pid);
    println!("{:<28} {idle}", "no sockets");

    let crowd = sockets::Crowd::of(SOCKETS, directory.path());
    let (begun, spent) = (Instant::now(), processor_time(pid));
    let scans = number("portreeve_scans_total");
    for _ in 0..LOOKS {
        thread::sleep(INTERVAL);
        // As often as a look, somebody scrapes.
        http_get(PLACE, "/metrics").expect("metrics");
    }
    let spent = processor_time(pid) - spent;
    let millicores = 1000.0 * spent.as_secs_f64() / begun.elapsed().as_secs_f64();
    let looked = number("portreeve_scans_total") - scans;
    let busy = Memory::of(pid);
    println!("{:<28} {busy}", format!("{SOCKETS} sockets"));
    println!("{looked} looks, {:.1} ms of processor time each", 1000.0 * spent.as_secs_f64() / looked);
    drop(crowd);

    let crowd = sockets::Crowd::of(MANY_SOCKETS, directory.path());
    thread::sleep(2 * INTERVAL);
    let crowded = Memory::of(pid);
    println!("{:<28} {crowded}", format!("{MANY_SOCKETS} sockets"));
    drop((crowd, agent));

    let kept = [
        keeps("resident memory, MiB", busy.resident, MOST_MEMORY),
        keeps("processor time, millicores", millicores, MOST_PROCESSOR),
        keeps("growth with sockets, MiB", crowded.resident - idle.resident, MOST_GROWTH),
    ];
    if kept == [true; 3] { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The agent as it is shipped; only that a look may cost what it costs, so that no interval is stretched.
fn start(binary: &str, cluster: &ControlPlane, directory: &Path) -> Process {
    let arguments = [
        "agent".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig("admin").display()),
        "--node=n1".to_owned(),
        format!("--interval={}s", INTERVAL.as_secs()),
        "--cpu-percent=100".to_owned(),
        format!("--listen={PLACE}"),
        format!("--heartbeat={}/heartbeat", directory.display()),
    ];
    let binary = Path::new(binary).canonicalize().expect("a program");
    Process::start(binary.to_str().expect("a path"), &arguments, directory)
}

/// How many NodePorts the agent knows to be taken.
fn allocated() -> usize {
    let metrics = http_get(PLACE, "/metrics").unwrap_or_default();
    let states = metrics.lines().filter_map(|line| line.strip_prefix("portreeve_node_ports{state=\""));
    let allocated = states.filter(|rest| !rest.starts_with("free")).filter_map(|rest| rest.rsplit(' ').next());
    allocated.map(|count| count.parse::<f64>().expect("a number")).sum::<f64>() as usize
}

/// One metric without labels.
fn number(name: &str) -> f64 {
    let metrics = http_get(PLACE, "/metrics").expect("metrics");
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {metrics}"))
}

/// User and system time of a process so far, all threads that ever were. The kernel tells it in hundredths of a second.
fn processor_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let (_, after_name) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|it| it.parse::<u64>().expect("ticks")).sum();
    let per_second = sysconf(SysconfVar::CLK_TCK).expect("a constant").expect("a constant");
    Duration::from_secs_f64(ticks as f64 / per_second as f64)
}

fn keeps(what: &str, is: f64, most: f64) -> bool {
    println!("{what:<28} {is:6.2}, promised at most {most}: {}", if is <= most { "kept" } else { "MISSED" });
    is <= most
}
