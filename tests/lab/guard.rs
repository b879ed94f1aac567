//! `portreeve guard` follows a real API server while connections come and go.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::Read as _,
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use portreeve_facts::PortSet;

use crate::{
    chart::{INSTALL, UNINSTALL, UPGRADE, prepare, roll_out, served},
    parts::{ControlPlane, PRIMARY, WholeNode, enter_alone, http_get, objects, sysctl, until},
    server::node_ports,
};

/// The NodePorts, and the range of outgoing connections: 1,000 ports; 600 of them may be NodePorts.
const NODE_PORTS: &str = "--service-node-port-range=30000-30599";
const RANGE: &str = "30000 30999";
/// The number of Services, and how many exist at a time.
const SERVICES: usize = 200;
const BATCH: usize = 20;

/// Connections on loopback, one after the other, each with its start time.
struct Stream {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(Instant, u16)>>,
}

impl Stream {
    fn start() -> Self {
        let server = TcpListener::bind("127.0.0.1:19999").expect("the port is free");
        let place = server.local_addr().expect("an address");
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut all, mut held) = (Vec::new(), VecDeque::new());
            while !is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                let client = TcpStream::connect(place).expect("a port is free");
                all.push((began, client.local_addr().expect("an address").port()));
                held.push_back((client, server.accept().expect("a connection")));
                // A few at a time: the range must not run out.
                if held.len() > 50 {
                    held.pop_front();
                }
                thread::sleep(Duration::from_millis(2));
            }
            all
        });
        Self { stop, thread }
    }

    fn end(self) -> Vec<(Instant, u16)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it ends")
    }
}

/// The guard of `n1`; it ends when this value is dropped.
struct Guard(Child);

impl Guard {
    fn start(cluster: &ControlPlane, record: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portreeve"));
        command.args(["guard", "--node", "n1", "--leave", "100", "--state", record, "--kubeconfig"]);
        command.arg(cluster.kubeconfig("admin")).stderr(Stdio::null());
        Self(command.spawn().expect("portreeve runs"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The kernel prints the list only into the first read.
fn reserved() -> PortSet {
    let mut bytes = vec![0; 1 << 18];
    let list = File::open("/proc/sys/net/ipv4/ip_local_reserved_ports");
    let length = list.and_then(|mut list| list.read(&mut bytes)).expect("a list");
    String::from_utf8_lossy(&bytes[..length]).parse().expect("ports")
}

/// Makes and deletes Services. Returns for each NodePort when it was there: from a moment until a moment.
fn come_and_go(cluster: &ControlPlane, is_there: impl Fn(&[u16])) -> BTreeMap<u16, Vec<(Instant, Instant)>> {
    let mut times: BTreeMap<u16, Vec<(Instant, Instant)>> = BTreeMap::new();
    for batch in 0..SERVICES / BATCH {
        let name = |index: usize| format!("s{batch}-{index}");
        let services = (0..BATCH).map(|index| objects::service(&name(index), &[objects::port(80, None)]));
        let made: Vec<_> = services.map(|it| cluster.api().create(&it)).collect();
        let ports: Vec<u16> = made.iter().flat_map(node_ports).collect();
        is_there(&ports);
        let from = Instant::now();
        thread::sleep(Duration::from_millis(300));
        let until = Instant::now();
        made.iter().for_each(|service| cluster.api().delete(service));
        ports.iter().for_each(|port| times.entry(*port).or_default().push((from, until)));
    }
    times
}

/// Connections that began on a NodePort while its Service was there.
fn hits(connections: &[(Instant, u16)], times: &BTreeMap<u16, Vec<(Instant, Instant)>>) -> usize {
    let is_hit = |(at, port): &&(Instant, u16)| {
        times.get(port).is_some_and(|times| times.iter().any(|(from, until)| (from..=until).contains(&at)))
    };
    connections.iter().filter(is_hit).count()
}

#[test]
fn no_connection_that_began_after_a_reservation_was_read_back_has_the_node_port() {
    enter_alone();
    let cluster = ControlPlane::with(&[NODE_PORTS]);
    cluster.api().create(&objects::node("n1", &PRIMARY));
    sysctl("net.ipv4.ip_local_port_range", RANGE);
    // Closed connections give their ports back at once.
    sysctl("net.ipv4.tcp_max_tw_buckets", "0");

    let stream = Stream::start();
    let times = come_and_go(&cluster, |_| ());
    let without = hits(&stream.end(), &times);
    assert!(without > 5, "without the guard {without} connections had the NodePort of a Service");

    let directory = tempfile::tempdir().expect("a directory");
    let record = directory.path().join("guard.json");
    let _guard = Guard::start(&cluster, record.to_str().expect("UTF-8"));
    let stream = Stream::start();
    let times = come_and_go(&cluster, |ports| {
        until("the reservation", || {
            let reserved = reserved();
            ports.iter().all(|port| reserved.contains(*port)).then_some(())
        });
    });
    let connections = stream.end();
    assert!(connections.len() > 500, "{} connections are a stream", connections.len());
    assert_eq!(hits(&connections, &times), 0, "of {} connections", connections.len());
}

/// The guard's process on the node.
pub(crate) fn guard_of(node: &WholeNode) -> Option<u32> {
    let mut processes = node.machine.processes().into_iter();
    processes
        .find(|(_, words)| words[0] == "/portreeve" && words.iter().any(|word| word == "guard"))
        .map(|(pid, _)| pid)
}

#[test]
fn below_a_kubelet_the_guard_of_the_chart_reserves_ports_and_leaves_them_until_they_are_released() {
    let node = WholeNode::start();
    sysctl("net.ipv4.ip_local_port_range", "30000 60999");
    sysctl("net.ipv4.ip_local_reserved_ports", "40000");
    node.namespace("shop");
    let person = node.person();
    prepare(&person);
    person.types(&format!("{INSTALL} --set guard.enabled=true"));
    roll_out(&person);
    person.types("kubectl -n portreeve rollout status daemonset/portreeve-guard --timeout=2m");
    let (_, port) = served(&node);
    let port = u16::try_from(port).expect("a port");
    until("reservation", || reserved().contains(port).then_some(()));
    assert!(reserved().contains(40000), "the entry of another program");

    let pid = guard_of(&node).expect("the guard runs");
    let status = std::fs::read_to_string(node.machine.file(&format!("/proc/{pid}/status"))).expect("a process");
    for line in ["Uid:\t0\t0\t0\t0", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.lines().any(|it| it == line), "{line}: {status}");
    }
    let metrics = until("metrics", || http_get("192.0.2.1:29518", "/metrics"));
    assert!(metrics.contains("portreeve_guard_"), "{metrics}");

    // A pod that starts again takes its own ports over.
    node.machine.run(&["kill", "-KILL", &pid.to_string()]);
    until("another process", || guard_of(&node).filter(|new| *new != pid));
    assert!(reserved().contains(port), "a restart leaves no port free");
    let service = objects::service("second", &[objects::port(80, None)]);
    let second_port = node_ports(&node.cluster.api().create(&service))[0];
    until("reservation", || reserved().contains(second_port).then_some(()));

    person.types(&format!("{UPGRADE} --set guard.enabled=false"));
    until("end of the guard", || guard_of(&node).is_none().then_some(()));
    assert!(reserved().contains(port), "it stays reserved until the boot");
    node.machine.run(&[env!("CARGO_BIN_EXE_portreeve"), "guard", "--release"]);
    assert_eq!(reserved(), "40000".parse().expect("ports"), "and no entry of another program goes");
    person.types(UNINSTALL);
}
