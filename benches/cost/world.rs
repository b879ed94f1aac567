//! The node whose sockets are searched, and the programs that search the sockets.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    crowd::Holder,
    parts::{directory::Directory, http_get, process::Process},
};

pub const TAKEN: [u16; 8] = [30001, 30002, 30003, 30004, 31005, 31006, 31007, 32008];
const SERVICES: u16 = 100;
/// The ports on which kube-proxy listens for metrics and health checks.
const OF_PROXY: [u16; 2] = [10249, 10256];
/// The numbers of sockets that almost each node has: listeners on other ports, and UDP sockets.
const LISTENERS: u16 = 100;
const DATAGRAMS: usize = 100;
/// One of twenty scans also reads the facts that the agent reads seldom.
const RARELY: f64 = 20.0;
/// The time between two requests to an agent that scans every 20 ms.
const PAUSE: Duration = Duration::from_millis(8);
pub const PLACE: &str = "127.0.0.1:29517";

/// The part of the node that is the same for each number of sockets: listeners on NodePorts, other listeners, UDP
/// sockets, and a file with Services.
pub struct World {
    pub binary: PathBuf,
    pub services: PathBuf,
    directory: Directory,
    holder: Holder,
}

impl World {
    /// Makes the node in the network namespace of the calling thread.
    pub fn new(binary: &Path) -> Self {
        let directory = Directory::new();
        let services = PathBuf::from(directory.write("services.json", &services()));
        let mut holder = Holder::start("127.0.0.1:7000");
        for (number, port) in TAKEN.into_iter().enumerate() {
            let address = ["0.0.0.0", "[::]", "192.0.2.1"][number % 3];
            holder.order(&format!("listen {address}:{port}"));
        }
        (0..LISTENERS).for_each(|number| holder.order(&format!("listen 127.0.0.1:{}", 20_000 + number)));
        holder.order(&format!("datagrams {DATAGRAMS}"));
        let mut world = Self { binary: binary.to_owned(), services, directory, holder };
        world.start_proxy();
        world
    }

    /// Opens the listeners on kube-proxy's ports. Without a listener on each of these ports, a scan searches all
    /// connections once more.
    pub fn start_proxy(&mut self) {
        OF_PROXY.iter().for_each(|port| self.order(&format!("listen as nobody 127.0.0.1:{port}")));
    }

    pub fn stop_proxy(&mut self) {
        OF_PROXY.iter().for_each(|port| self.order(&format!("close 127.0.0.1:{port}")));
    }

    pub fn order(&mut self, order: &str) {
        self.holder.order(order);
    }

    pub fn portreeve(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(words).args(["--node", "n1", "--proxy-mode", "iptables", "--services"]).arg(&self.services);
        command
    }

    pub fn snapshot(&self) -> Value {
        let output = run(&mut self.portreeve(&["snapshot"]));
        let snapshot: Value = serde_json::from_slice(&output.stdout).expect("a snapshot");
        snapshot["kernel"].clone()
    }

    pub fn agent(&self) -> Scanning {
        let arguments = [
            "agent".to_owned(),
            format!("--services={}", self.services.display()),
            "--node=n1".to_owned(),
            "--proxy-mode=iptables".to_owned(),
            "--interval=20ms".to_owned(),
            "--cpu-percent=100".to_owned(),
            format!("--listen={PLACE}"),
        ];
        let mut process = Process::start(self.binary.to_str().expect("a path"), &arguments, self.directory.path());
        process.wait_for("first scan", || http_get(PLACE, "/readyz"));
        let scanning = Scanning { process };
        scanning.process.signal(Signal::SIGSTOP);
        scanning
    }
}

/// An agent that is stopped, and scans only on request.
pub struct Scanning {
    process: Process,
}

impl Scanning {
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn freely<T>(&self, happens: impl FnOnce() -> T) -> T {
        self.process.signal(Signal::SIGCONT);
        let happened = happens();
        self.process.signal(Signal::SIGSTOP);
        happened
    }

    pub fn scan(&self) -> Took {
        self.scan_after(|| ())
    }

    /// Calls `change` after each scan, to change the node.
    pub fn scan_after(&self, change: impl Fn()) -> Took {
        self.process.signal(Signal::SIGCONT);
        let metrics = || http_get(PLACE, "/metrics").expect("metrics");
        let scans = |metrics: &str| number(metrics, "portreeve_scans_total");
        let mut before = metrics();
        // Leaves out the interrupted scan, and each scan that also reads the seldom-read facts.
        let first = scans(&before) + 2.0;
        let took = loop {
            let after = metrics();
            let (was, is) = (scans(&before), scans(&after));
            if was >= first && is == was + 1.0 && was % RARELY != 0.0 {
                break Took { before, after };
            }
            if is > was {
                before = after;
                change();
            }
            // Without pauses, the requests would keep another thread of the agent busy, which shares its heap with the
            // scanning thread.
            thread::sleep(PAUSE);
        };
        self.process.signal(Signal::SIGSTOP);
        took
    }
}

impl Drop for Scanning {
    fn drop(&mut self) {
        self.process.signal(Signal::SIGCONT);
    }
}

pub struct Took {
    before: String,
    after: String,
}

impl Took {
    /// The time that one reader took, in milliseconds.
    pub fn by(&self, source: &str) -> f64 {
        1000.0 * number(&self.after, &format!("portreeve_source_duration_seconds{{source=\"{source}\"}}"))
    }

    /// The time of a scan that reads connections, in milliseconds.
    pub fn whole(&self) -> f64 {
        let name = "portreeve_scan_duration_seconds_sum";
        1000.0 * (number(&self.after, name) - number(&self.before, name))
    }
}

pub fn number(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {series} in {metrics}"))
}

pub fn node_ports(metrics: &str) -> f64 {
    let states = metrics.lines().filter(|line| line.starts_with("portreeve_node_ports{"));
    let taken = states.filter(|line| !line.contains("state=\"free\""));
    taken.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// The command must succeed or print output.
pub fn run(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(!output.stdout.is_empty() || output.status.success(), "{command:?}: {output:?}");
    output
}

pub fn ends(sockets: &Value, of: impl Fn(&Value) -> bool) -> BTreeSet<SocketAddr> {
    let sockets = sockets.as_array().unwrap_or_else(|| panic!("sockets, not {sockets}"));
    let end = |socket: &Value| {
        let ip = socket["local"].as_str().expect("an address").parse().expect("an address");
        SocketAddr::new(ip, u16::try_from(socket["local_port"].as_u64().expect("a port")).expect("a port"))
    };
    sockets.iter().filter(|socket| of(socket)).map(end).collect()
}

pub fn same<T: PartialEq + std::fmt::Debug>(ours: &T, theirs: &T, whose: &str) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("{whose} sees {theirs:?}, Portreeve {ours:?}")) }
}

fn services() -> String {
    let others = (0..SERVICES).map(|number| 32_100 + number);
    services_of(TAKEN.into_iter().chain(others).map(Some))
}

pub fn services_of(node_ports: impl Iterator<Item = Option<u16>>) -> String {
    let service = |(number, port): (usize, Option<u16>)| {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": format!("s{number}"), "namespace": "default", "uid": format!("0b1c2d3e-{number}")},
            "spec": {
                "type": if port.is_some() { "NodePort" } else { "ClusterIP" },
                "clusterIP": "10.96.0.10",
                "ports": [{"name": "http", "port": 80, "nodePort": port, "protocol": "TCP"}],
            },
        })
    };
    let mut items: Vec<Value> = node_ports.enumerate().map(service).collect();
    // Every cluster has this Service, so a complete list of a cluster's Services contains it.
    items.push(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default", "uid": "0b1c2d3e"},
        "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.1", "ports": [{"port": 443, "protocol": "TCP"}]},
    }));
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

impl World {
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).expect("a file");
        path
    }
}
