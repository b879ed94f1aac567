//! What two hundred agents ask of one API server: requests, watches, bytes and Events, from start to incident.

use std::{collections::BTreeMap, net::TcpListener, path::Path, process::Command, thread, time::Duration};

use crate::{
    parts::{
        Audit, ControlPlane, Role, audit::Asked, directory::Directory, events, http_get, objects, process::Process,
        until,
    },
    row::{Promise, Row},
    world::{node_ports, run},
};

/// Agents, and how long each part of their life is looked at.
const AGENTS: usize = 200;
const WHILE: Duration = Duration::from_secs(60);
/// Two looks of every agent, wherever it was between two.
const INCIDENT: Duration = Duration::from_secs(75);
/// Services with a NodePort, before one more comes.
const SERVICES: u16 = 200;
const FIRST: u16 = 30_000;
/// Who agents are to the server.
const OBSERVER: &str = "observer";
/// The first port of the agents, one each.
const PLACES: usize = 20_000;
/// The most that an agent may write when nothing happens, in requests a second.
const MOST_WRITES: f64 = 0.02;
/// The most that it may watch then: Services, and the Pods of its node.
const MOST_WATCHES: f64 = 2.0;

/// An API server that notes who asks for what, and agents that each are of another node.
struct Fleet<'a> {
    binary: &'a Path,
    cluster: ControlPlane,
    audit: Audit,
    directory: Directory,
    agents: Vec<Process>,
    size: usize,
    rows: Vec<Row>,
}

/// The rows.
pub fn measure(binary: &Path, small: bool) -> Vec<Row> {
    let (size, wait) = if small { (5, Duration::from_secs(10)) } else { (AGENTS, WHILE) };
    let audit = Audit::new();
    let flags = audit.flags();
    let mut cluster = ControlPlane::with(&flags.each_ref().map(String::as_str));
    Role::of_chart().grant(&mut cluster);
    for number in 0..size {
        cluster.api().create(&objects::node(&name(number), &[&format!("10.7.{}.{}", number / 250, number % 250 + 1)]));
    }
    for number in 0..SERVICES {
        serve(&cluster, FIRST + number);
    }
    let directory = Directory::new();
    let mut fleet = Fleet { binary, cluster, audit, directory, agents: Vec::new(), size, rows: Vec::new() };

    let own = fleet.watches();
    fleet.during("at start", |fleet| {
        fleet.agents = (0..size).map(|number| fleet.agent(number)).collect();
        (0..size).for_each(ready);
    });
    let watches = fleet.watches();
    let each = (watches - own) / size as f64;
    fleet.rows.push(Row::alone("watches of an agent", "watches", [each], Promise::AtMost(MOST_WATCHES)));
    let writes = fleet.during("at rest", |_| thread::sleep(wait));
    let rate = writes / wait.as_secs_f64();
    fleet.rows.push(Row::alone(
        "writes a second of an agent at rest",
        "requests",
        [rate],
        Promise::AtMost(MOST_WRITES),
    ));
    fleet.during("while a Service comes", |fleet| {
        serve(&fleet.cluster, FIRST + SERVICES);
        thread::sleep(wait / 4);
    });
    fleet.during("while all are restarted, one by one", |fleet| {
        for number in 0..size {
            fleet.agents[number] = fleet.agent(number);
            ready(number);
        }
    });
    let before = events(&fleet.cluster).len();
    // Every agent sees the sockets of the namespace that all share: somebody takes a NodePort on each node at once.
    let taken = TcpListener::bind(("0.0.0.0", FIRST)).expect("a free port");
    fleet.during("in an incident on every node", |fleet| {
        thread::sleep(INCIDENT);
        until("Events", || (events(&fleet.cluster).len() > before).then_some(()));
    });
    drop(taken);
    fleet.tell_of_events(before);
    fleet.rows
}

impl Fleet<'_> {
    /// One with the rights of the chart, in the same network namespace as all others.
    fn agent(&self, number: usize) -> Process {
        let arguments = [
            "agent".to_owned(),
            format!("--kubeconfig={}", self.cluster.kubeconfig(OBSERVER).display()),
            format!("--node={}", name(number)),
            "--proxy-mode=iptables".to_owned(),
            format!("--listen={}", place(number)),
            format!("--heartbeat={}/heartbeat-{number}", self.directory.path().display()),
        ];
        Process::start(self.binary.to_str().expect("a path"), &arguments, self.directory.path())
    }

    /// Notes what all of them ask for meanwhile, each on average, and returns the writes of one.
    fn during(&mut self, what: &str, happens: impl FnOnce(&mut Self)) -> f64 {
        let (before, bytes) = (self.audit.of(OBSERVER).len(), self.bytes());
        happens(self);
        let (asked, now) = (self.audit.of(OBSERVER).split_off(before), self.bytes());
        self.tell_of(what, &asked);
        let count = |verbs: &[&str]| {
            let of = asked.iter().filter(|asked| verbs.contains(&asked.verb.as_str()));
            of.count() as f64 / self.size as f64
        };
        let (reads, writes) = (count(&["get", "list"]), count(&["create", "patch", "update", "delete"]));
        let more = now.iter().map(|(end, carried)| carried - bytes.get(end).unwrap_or(&0.0));
        let kib = more.sum::<f64>() / 1024.0 / self.size as f64;
        let told = [
            ("reads", "requests", reads),
            ("watches that ended", "watches", count(&["watch"])),
            ("writes", "requests", writes),
            ("traffic", "KiB", kib),
        ];
        for (of, unit, value) in told {
            self.rows.push(Row::alone(format!("{of} of an agent {what}"), unit, [value], Promise::None));
        }
        writes
    }

    /// Says what was asked for, each as often as one agent did.
    fn tell_of(&self, what: &str, asked: &[Asked]) {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for Asked { verb, uri, code } in asked {
            let path = uri.split('?').next().unwrap_or_default();
            *counts.entry(format!("{verb} {path} {code}")).or_default() += 1;
        }
        eprintln!("{what}, of an agent:");
        for (request, count) in counts {
            eprintln!("{:8.2} {request}", count as f64 / self.size as f64);
        }
    }

    /// Watches that are open; the server has some of its own.
    fn watches(&self) -> f64 {
        let metrics = self.cluster.api().text("/metrics").expect("metrics of the server");
        let open = metrics.lines().filter(|line| {
            let ours = ["services", "endpointslices", "pods", "nodes"];
            line.starts_with("apiserver_longrunning_requests{")
                && line.contains("verb=\"WATCH\"")
                && ours.iter().any(|resource| line.contains(&format!("resource=\"{resource}\"")))
        });
        open.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// What each connection that is open to the server has carried, both ways, encrypted as it is; by its local end.
    fn bytes(&self) -> BTreeMap<String, f64> {
        let output = run(Command::new("ss").args(["-HtinO", "dport = :6443"]));
        let carried = |line: &str| {
            let of = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse::<f64>().ok());
            let end = line.split_whitespace().find(|word| word.contains(':'))?;
            Some((end.to_owned(), of("bytes_acked:").unwrap_or(0.0) + of("bytes_received:").unwrap_or(0.0)))
        };
        String::from_utf8_lossy(&output.stdout).lines().filter_map(carried).collect()
    }

    /// How far apart the Events of one incident come.
    fn tell_of_events(&mut self, before: usize) {
        let all = events(&self.cluster);
        let seconds = |event: &serde_json::Value| -> f64 {
            let at: jiff::Timestamp = event["eventTime"].as_str().expect("a time").parse().expect("a time");
            at.as_duration().as_secs_f64()
        };
        let mut times: Vec<f64> = all[before..].iter().map(seconds).collect();
        times.sort_by(f64::total_cmp);
        let first = times[0];
        let count = times.len() as f64 / self.size as f64;
        self.rows.push(Row::alone("Events of an agent in an incident on every node", "Events", [count], Promise::None));
        let after = times.into_iter().map(|time| time - first);
        self.rows.push(Row::alone("an Event after the first of all agents", "s", after, Promise::None));
    }
}

fn name(number: usize) -> String {
    format!("n{number}")
}

fn place(number: usize) -> String {
    format!("127.0.0.1:{}", PLACES + number)
}

/// Waits until an agent has looked with every Service in view.
fn ready(number: usize) {
    until("view of every Service", || {
        let metrics = http_get(&place(number), "/metrics")?;
        (node_ports(&metrics) >= f64::from(SERVICES)).then_some(())
    });
}

fn serve(cluster: &ControlPlane, port: u16) {
    cluster.api().create(&objects::service(&format!("s{port}"), &[objects::port(80, Some(port))]));
}
