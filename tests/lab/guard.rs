//! `portreeve guard` follows a real API server while connections begin and end.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::{self, File},
    io::Read as _,
    net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrStorage, bind, connect, recv,
        socket,
    },
};
use portreeve_facts::PortSet;
use serde_json::Value;

use crate::{
    chart::{INSTALL, UNINSTALL, UPGRADE, prepare, roll_out, served},
    parts::{ControlPlane, PRIMARY, Person, Plugin, Reader, WholeNode, enter_alone, http_get, objects, sysctl, until},
    server::node_ports,
};

/// The NodePort range has 600 ports. All 600 ports are among the 1,000 ports of outgoing connections.
const NODE_PORTS: &str = "--service-node-port-range=30000-30599";
const RANGE: &str = "30000 30999";
const SERVICES: usize = 200;
const BATCH: usize = 20;
/// The number of connections that begin while a batch of Services exists. Without a guard, about 2 % of these
/// connections take a NodePort of the batch.
const CONNECTIONS: usize = 1500;
/// An outgoing connection takes this NodePort before its Service exists.
const EARLIER: u16 = 30590;
/// The number of connections that stay open. Each needs two descriptors.
const OPEN: usize = 400;
/// The address to which the stream connects. No other program uses this address.
const SERVER: &str = "127.0.0.9:19999";

struct Stream {
    count: Arc<AtomicUsize>,
    stop: Sender<()>,
    thread: JoinHandle<Vec<(Instant, u16)>>,
}

impl Stream {
    fn start() -> Self {
        let place: SocketAddrV4 = SERVER.parse().expect("an address");
        let server = TcpListener::bind(place).expect("the port is free");
        let wire = Wire::to(place);
        let (stop, stopped) = channel();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let thread = thread::spawn(move || {
            let (mut all, mut held) = (Vec::new(), VecDeque::new());
            // The loop opens at most a thousand connections a second, and closes old connections, so that enough ports
            // stay free.
            while stopped.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                let client = TcpStream::connect(place).expect("a port is free");
                let (accepted, _) = server.accept().expect("a connection");
                let ports = wire.source_ports();
                let [port] = ports.iter().copied().collect::<Vec<_>>()[..] else { panic!("one connection: {ports:?}") };
                all.push((began, port));
                counted.store(all.len(), Ordering::Relaxed);
                held.push_back((client, accepted));
                if held.len() > 50 {
                    held.pop_front();
                }
            }
            all
        });
        Self { count, stop, thread }
    }

    fn continue_for(&self, connections: usize) {
        let end = self.count.load(Ordering::Relaxed) + connections;
        until("connections", || {
            assert!(!self.thread.is_finished(), "the stream ended");
            (self.count.load(Ordering::Relaxed) >= end).then_some(())
        });
    }

    fn end(self) -> Vec<(Instant, u16)> {
        drop(self.stop);
        self.thread.join().expect("it ends")
    }
}

/// A raw socket that gets a copy of each TCP packet to an address.
struct Wire {
    socket: OwnedFd,
    port: u16,
}

impl Wire {
    fn to(place: SocketAddrV4) -> Self {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Tcp).expect("root may do this");
        bind(socket.as_raw_fd(), &SockaddrIn::from(place)).expect("an address of this namespace");
        Self { socket, port: place.port() }
    }

    /// The source ports of the connections that began after the last call. The first packet of a connection has SYN and
    /// no ACK.
    fn source_ports(&self) -> BTreeSet<u16> {
        let (mut ports, mut packet) = (BTreeSet::new(), [0; 128]);
        loop {
            let length = match recv(self.socket.as_raw_fd(), &mut packet, MsgFlags::empty()) {
                Ok(length) => length,
                Err(Errno::EAGAIN) => return ports,
                Err(error) => panic!("a packet: {error}"),
            };
            // The low half of the first byte is the length of the IPv4 header, in words of four bytes.
            let segment = &packet[usize::from(packet[0] & 0xf) * 4..length];
            let port = |at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
            if port(2) == self.port && segment[13] & 0x12 == 0x02 {
                ports.insert(port(0));
            }
        }
    }
}

/// Opens connections, which end when the caller drops them. Returns the connections, and the source ports of their
/// packets.
fn open_connections() -> (Vec<(TcpStream, TcpStream)>, BTreeSet<u16>) {
    let place: SocketAddrV4 = SERVER.parse().expect("an address");
    let (server, wire) = (TcpListener::bind(place).expect("the port is free"), Wire::to(place));
    let (mut open, mut ports) = (Vec::new(), BTreeSet::new());
    while open.len() < OPEN {
        let client = TcpStream::connect(place).expect("a port is free");
        open.push((client, server.accept().expect("a connection").0));
        ports.extend(wire.source_ports());
    }
    (open, ports)
}

struct Guard(Child);

impl Guard {
    fn start(cluster: &ControlPlane, directory: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portreeve"));
        command.args(["guard", "--node", "n1", "--leave", "100", "--state"]).arg(directory.join("guard.json"));
        command.arg("--kubeconfig").arg(cluster.kubeconfig("admin"));
        command.stderr(File::create(directory.join("log")).expect("a log"));
        Self(command.spawn().expect("portreeve runs"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// One read must take the whole list, because the kernel returns it only once.
fn reserved() -> PortSet {
    let mut bytes = vec![0; 1 << 18];
    let list = File::open("/proc/sys/net/ipv4/ip_local_reserved_ports");
    let length = list.and_then(|mut list| list.read(&mut bytes)).expect("a list");
    String::from_utf8_lossy(&bytes[..length]).parse().expect("ports")
}

/// For each NodePort, the spans of time in which its Service existed or was being made.
type Times = BTreeMap<u16, Vec<(Instant, Instant)>>;

/// Returns the new Services, and their NodePorts.
fn create(cluster: &ControlPlane, name: &str, count: usize) -> (Vec<Value>, Vec<u16>) {
    let service = |index| objects::service(&format!("{name}-{index}"), &[objects::port(80, None)]);
    let made: Vec<Value> = (0..count).map(|index| cluster.api().create(&service(index))).collect();
    let ports = made.iter().flat_map(node_ports).collect();
    (made, ports)
}

/// Returns two tables: the spans in which each NodePort's Service was being made, and the spans in which the Service
/// existed.
fn come_and_go(cluster: &ControlPlane, stream: &Stream, is_there: impl Fn(&[u16])) -> (Times, Times) {
    let (mut before, mut times) = (Times::new(), Times::new());
    for batch in 0..SERVICES / BATCH {
        let began = Instant::now();
        let (made, ports) = create(cluster, &format!("s{batch}"), BATCH);
        is_there(&ports);
        let from = Instant::now();
        stream.continue_for(CONNECTIONS);
        let until = Instant::now();
        made.iter().for_each(|service| cluster.api().delete(service));
        for port in ports {
            before.entry(port).or_default().push((began, from));
            times.entry(port).or_default().push((from, until));
        }
    }
    (before, times)
}

fn hits(connections: &[(Instant, u16)], times: &Times) -> usize {
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
    // With this setting, closed connections release their ports at once.
    sysctl("net.ipv4.tcp_max_tw_buckets", "0");

    let stream = Stream::start();
    let (_, times) = come_and_go(&cluster, &stream, |_| ());
    let without = hits(&stream.end(), &times);
    assert!(without >= 100, "without the guard {without} connections had the NodePort of a Service");

    let directory = tempfile::tempdir().expect("a directory");
    let _guard = Guard::start(&cluster, directory.path());
    let wait_for = |ports: &[u16]| {
        until("the reservation", || {
            let reserved = reserved();
            ports.iter().all(|port| reserved.contains(*port)).then_some(())
        });
    };
    let other = TcpListener::bind("127.0.0.9:19998").expect("the port is free");
    let earlier = connection(EARLIER, other.local_addr().expect("an address"));
    cluster.api().create(&objects::service("earlier", &[objects::port(80, Some(EARLIER))]));
    wait_for(&[EARLIER]);
    let is_named = |connections: &[String]| {
        until("a connection from before its reservation", || {
            let log = fs::read_to_string(directory.path().join("log")).expect("a log");
            connections.iter().any(|it| log.contains(it)).then_some(())
        });
    };
    is_named(&[format!("{EARLIER}/tcp to 127.0.0.9:19998")]);
    drop(earlier);
    // The kernel chose these connections' ports before the guard reserved them.
    let (open, sources) = open_connections();
    let (_, ports) = create(&cluster, "open", 2 * BATCH);
    wait_for(&ports);
    let on_node_ports = ports.iter().filter(|port| sources.contains(*port));
    let on_node_ports: Vec<String> = on_node_ports.map(|port| format!("{port}/tcp to {SERVER}")).collect();
    assert!(!on_node_ports.is_empty(), "no connection has one of the NodePorts {ports:?}");
    is_named(&on_node_ports);
    drop(open);

    let stream = Stream::start();
    let (before, times) = come_and_go(&cluster, &stream, wait_for);
    let connections = stream.end();
    assert!(connections.len() > SERVICES / BATCH * CONNECTIONS, "{} connections are a stream", connections.len());
    assert_eq!(hits(&connections, &times), 0, "of {} connections", connections.len());
    // `make lab` prints this number. These connections ended before the guard searched for them.
    println!("{} connections began on a NodePort before it was reserved", hits(&connections, &before));
}

fn connection(from: u16, to: SocketAddr) -> OwnedFd {
    let client = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    let own = SocketAddr::from(([127, 0, 0, 1], from));
    bind(client.as_raw_fd(), &SockaddrStorage::from(own)).expect("the port is free");
    connect(client.as_raw_fd(), &SockaddrStorage::from(to)).expect("it listens");
    client
}

pub(crate) fn guard_of(node: &WholeNode) -> Option<u32> {
    let mut processes = node.machine.processes().into_iter();
    processes
        .find(|(_, words)| words[0] == "/portreeve" && words.iter().any(|word| word == "guard"))
        .map(|(pid, _)| pid)
}

/// Waits until the log of the guard has these words.
#[track_caller]
fn until_logged(person: &Person<'_>, words: &str) {
    let log = || person.types("kubectl -n portreeve logs daemonset/portreeve-guard");
    until(words, || log().contains(words).then_some(()));
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
    let admin = Plugin::of(&node.cluster.kubeconfig("admin"));
    until("a covered node", || {
        let (code, table, _) = admin.types("kubectl portreeve reserve --check");
        (code == 0 && table.contains("runs, according to its pod")).then_some(())
    });

    let pid = guard_of(&node).expect("the guard runs");
    let status = std::fs::read_to_string(node.machine.file(&format!("/proc/{pid}/status"))).expect("a process");
    for line in ["Uid:\t0\t0\t0\t0", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.lines().any(|it| it == line), "{line}: {status}");
    }
    let metrics = until("metrics", || http_get("192.0.2.1:29518", "/metrics"));
    assert!(metrics.contains("portreeve_guard_"), "{metrics}");

    sysctl("net.ipv4.ip_local_reserved_ports", "40000");
    until_logged(&person, "another program removed reserved ports");
    Reader::of(&node.cluster).follows("PortreeveGuardPortsNotReserved");
    until("reservation", || reserved().contains(port).then_some(()));

    // A restart of the guard must keep the reserved ports.
    node.machine.run(&["kill", "-KILL", &pid.to_string()]);
    until("another process", || guard_of(&node).filter(|new| *new != pid));
    assert!(reserved().contains(port), "a restart leaves no port free");
    // Without capabilities, root cannot write into this folder.
    node.machine.run(&["chmod", "0500", "/run/portreeve"]);
    let service = objects::service("second", &[objects::port(80, None)]);
    let second_port = node_ports(&node.cluster.api().create(&service))[0];
    until_logged(&person, "cannot write the guard's record");
    Reader::of(&node.cluster).follows("PortreeveGuardStuck");
    node.machine.run(&["chmod", "0755", "/run/portreeve"]);
    until("reservation", || reserved().contains(second_port).then_some(()));

    person.types(&format!("{UPGRADE} --set guard.enabled=false"));
    until("end of the guard", || guard_of(&node).is_none().then_some(()));
    assert!(reserved().contains(port), "it stays reserved until the boot");
    node.machine.run(&[env!("CARGO_BIN_EXE_portreeve"), "guard", "--release"]);
    assert_eq!(reserved(), "40000".parse().expect("ports"), "and no entry of another program goes");
    person.types(UNINSTALL);
}
