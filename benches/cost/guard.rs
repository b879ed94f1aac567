//! The cost of a running guard, and the cost of the bind hook for each bind on the node.

use std::{
    fs::File,
    io::Read as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use portreeve_facts::PortSet;

use crate::{
    fill,
    fleet::watches,
    memory::processor_time,
    parts::{
        Audit, ControlPlane, PRIMARY, directory::Directory, http_get, memory::Memory, objects, process::Process,
        sysctl, until,
    },
    row::{Promise, Row},
    sizes::short,
};

const PLACE: &str = "127.0.0.1:29518";
const SERVICES: usize = 5_000;
const NODE_PORTS: usize = 2_000;
/// The time for which a guard at rest is measured. The guard reads the node twice a minute.
const LASTS: Duration = Duration::from_secs(120);
/// The greatest processor time of a guard at rest, in thousandths of a core.
const MOST_PROCESSOR: f64 = 3.0;
/// The greatest number of open watches of a guard: one for Services, and one for the Pods of its node.
const MOST_WATCHES: f64 = 2.0;
/// The greatest number of reads of a guard at rest in a minute. A guard reads Nodes at most once in `LASTS`, with at
/// most three requests.
const MOST_READS: f64 = 1.5;
/// The user of the guard, and of this benchmark.
const USER: &str = "admin";
/// The number of new Services. `MOST_WAIT` is the greatest wait in milliseconds, from the API server's answer until the
/// NodePort is reserved.
const NEW: usize = 10;
const MOST_WAIT: f64 = 1_000.0;

pub fn measure(binary: &Path, small: bool) -> Vec<Row> {
    let (services, lasts) = if small { (100, LASTS / 4) } else { (SERVICES, LASTS) };
    // This measurement needs an ephemeral port range that contains NodePorts. With the default range, the guard would
    // reserve nothing.
    sysctl("net.ipv4.ip_local_port_range", "30000 60999");
    let (directory, audit) = (Directory::new(), Audit::new());
    let cluster = ControlPlane::with(&audit.flags().each_ref().map(String::as_str));
    cluster.api().create(&objects::node("n1", &PRIMARY));
    fill::services(&cluster, 0..services, NODE_PORTS);
    let own = watches(cluster.api());
    let guard = start(&[], binary.to_str().expect("a path"), &cluster, &directory, &[]);
    let wanted = NODE_PORTS.min(services.div_ceil(2)) as f64;
    until("every reservation", || {
        (value("portreeve_guard_reserved_ports{reason=\"node_port\"}")? >= wanted).then_some(())
    });
    let open = watches(cluster.api()) - own;
    let before = reads(&audit);
    let (begun, spent) = (Instant::now(), processor_time(guard.pid()));
    thread::sleep(lasts);
    let lasted = begun.elapsed().as_secs_f64();
    let rate = 1000.0 * (processor_time(guard.pid()) - spent).as_secs_f64() / lasted;
    let reads = 60.0 * (reads(&audit) - before) / lasted;
    let what = format!("the guard, {} Services", short(services));
    let memory = Memory::of(guard.pid()).resident;
    let waits: Vec<f64> = (0..NEW).map(|number| reserved_after(&cluster, &format!("new-{number}"))).collect();
    // Ends this guard before `hook::measure` starts a guard, because a node can have only one guard.
    drop(guard);
    vec![
        Row::alone(format!("{what}: resident memory"), "MiB", [memory], Promise::None),
        Row::alone(
            format!("{what}: processor time at rest"),
            "thousandths of a core",
            [rate],
            Promise::AtMost(MOST_PROCESSOR),
        ),
        Row::alone(
            format!("{what}: time from a new Service to its reservation"),
            "ms",
            waits,
            Promise::AtMost(MOST_WAIT),
        ),
        Row::alone("watches of a guard", "watches", [open], Promise::AtMost(MOST_WATCHES)),
        Row::alone("reads of a guard at rest, in a minute", "requests", [reads], Promise::AtMost(MOST_READS)),
    ]
    .into_iter()
    .chain(hook::measure(&cluster, &directory, small))
    .collect()
}

/// The number of objects and lists that the user has read. While the guard is at rest, only the guard reads.
fn reads(audit: &Audit) -> f64 {
    let all = audit.of(USER);
    all.iter().filter(|it| it.uri.starts_with("/api/") && ["get", "list"].contains(&it.verb.as_str())).count() as f64
}

fn start(command: &[String], binary: &str, cluster: &ControlPlane, directory: &Directory, more: &[String]) -> Process {
    let mut arguments = vec![
        "guard".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig(USER).display()),
        "--node=n1".to_owned(),
        "--proxy-mode=iptables".to_owned(),
        format!("--state={}", directory.path().join("guard.json").display()),
        format!("--listen={PLACE}"),
    ];
    arguments.extend_from_slice(more);
    Process::start_by(command, binary, &arguments, directory.path())
}

/// Returns the milliseconds until the kernel has reserved the NodePort.
fn reserved_after(cluster: &ControlPlane, name: &str) -> f64 {
    let service = cluster.api().create(&objects::service(name, &[objects::port(80, None)]));
    let begun = Instant::now();
    let port = service["spec"]["ports"][0]["nodePort"].as_u64().and_then(|port| u16::try_from(port).ok());
    let port = port.expect("a NodePort");
    while !reserved().contains(port) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{port} is not reserved");
        thread::sleep(Duration::from_millis(5));
    }
    begun.elapsed().as_secs_f64() * 1e3
}

/// One read must return the whole list, because the kernel returns nothing to a second read.
fn reserved() -> PortSet {
    let mut bytes = vec![0; 1 << 18];
    let list = File::open("/proc/sys/net/ipv4/ip_local_reserved_ports");
    let length = list.and_then(|mut list| list.read(&mut bytes)).expect("a list");
    String::from_utf8_lossy(&bytes[..length]).parse().expect("ports")
}

fn value(series: &str) -> Option<f64> {
    http_get(PLACE, "/metrics")?.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

/// Measures how much longer each bind takes with the hook. The BPF program is the same in all builds of the guard.
#[cfg(feature = "bind-hook")]
mod hook {
    use std::net::TcpListener;

    use nix::time::{ClockId, clock_gettime};

    use super::*;
    use crate::parts::Group;

    const BINDS: u32 = 100_000;
    const ROUNDS: usize = 5;
    /// The greatest additional time of a bind, in microseconds.
    const MOST: f64 = 3.0;

    pub fn measure(cluster: &ControlPlane, directory: &Directory, small: bool) -> Vec<Row> {
        let (binds, rounds) = if small { (BINDS / 10, 3) } else { (BINDS, ROUNDS) };
        let group = Group::new();
        // A guard can attach the hook only to a control group that contains the guard.
        let command = Group::entering(&group.path);
        let more = ["--bind=report".to_owned(), format!("--cgroup={}", group.path.display())];
        let times: Vec<(f64, f64)> = (0..rounds)
            .map(|_| {
                let without = each(binds);
                let guard = start(&command, env!("CARGO_BIN_EXE_portreeve"), cluster, directory, &more);
                let hook_and_claims = [
                    "portreeve_guard_bind_hook{mode=\"report\"}",
                    "portreeve_guard_reserved_ports{reason=\"node_port\"}",
                ];
                until("the hook and its claims", || {
                    hook_and_claims.iter().all(|series| value(series).is_some_and(|it| it >= 1.0)).then_some(())
                });
                // At first, the guard reads the node and fills the maps in the kernel.
                thread::sleep(Duration::from_secs(1));
                let with = each(binds);
                drop(guard);
                (without, with)
            })
            .collect();
        let unit = "µs";
        vec![
            Row::alone("bind and listen without the hook", unit, times.iter().map(|it| it.0), Promise::None),
            Row::alone("bind and listen below the hook", unit, times.iter().map(|it| it.1), Promise::None),
            Row::alone("what the hook adds", unit, times.iter().map(|(a, b)| (b - a).max(0.0)), Promise::AtMost(MOST)),
        ]
    }

    /// The processor time of one bind in microseconds, for a port that no Service has. Other processes of the machine
    /// do not count.
    fn each(binds: u32) -> f64 {
        let spent = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock"));
        let begun = spent();
        for _ in 0..binds {
            // A program like lsof can hold the last socket open a moment longer. Then the port is still in use, and the
            // bind is repeated.
            assert!((0..1_000).any(|_| TcpListener::bind("127.0.0.1:19999").is_ok()), "a free port");
        }
        (spent() - begun).as_secs_f64() * 1e6 / f64::from(binds)
    }
}

#[cfg(not(feature = "bind-hook"))]
mod hook {
    use super::*;

    pub fn measure(_: &ControlPlane, _: &Directory, _: bool) -> Vec<Row> {
        eprintln!("the bind hook is not measured: pass --features bind-hook");
        Vec::new()
    }
}
