//! Measures the load of hundreds of agents on one API server: requests, watches, bytes and Events. The phases are the
//! start, constant changes of Services, an incident, and an outage of the server.

mod incident;

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    memory::processor_time,
    parts::{
        Api, Audit, ControlPlane, Namespace, Relay, Role, audit::Asked, directory::Directory, enter_alone, http_get,
        memory::Memory, objects, process::Process, until_within,
    },
    row::{Promise, Row},
    world::{node_ports, run},
};

const AGENTS: usize = 200;
const AT_ONCE: usize = 500;
const WHILE: Duration = Duration::from_secs(60);
/// One of every `LEFT` nodes is in a second network namespace. On these nodes, an incident goes on after the repair of
/// the other nodes.
const LEFT: usize = 40;
const SERVICES: u16 = 200;
const FIRST: u16 = 30_000;
/// For the time `CHURN`, Services change `CHANGES` times per second.
const CHANGES: u32 = 50;
const CHURN: Duration = Duration::from_secs(60);
/// The number of minutes without an API server. An agent waits longer after each failure, but after two minutes its
/// wait does not grow further. So each later minute costs as much as the last measured minute.
const AWAY: usize = 5;
/// The longest time until hundreds of agents see a change, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
const OBSERVER: &str = "observer";
/// The port of the first agent. Each agent has its own port.
const PLACES: usize = 20_000;
/// The greatest number of writes that an agent may send in a second while nothing happens.
const MOST_WRITES: f64 = 0.02;
/// The greatest number of reads that an agent sends in the time `WHILE`, while nothing happens. An agent reads settings
/// and Nodes only every ten minutes.
const MOST_READS_AT_REST: f64 = 0.39;
/// The greatest number of reads that an agent sends at its start. If many agents start at once, a busy server refuses
/// reads. Then the agents also repeat reads that were not refused.
const MOST_READS: f64 = 11.0;
/// The greatest number of open watches of an agent: one for Services, and one for the Pods of its node.
const MOST_WATCHES: f64 = 2.0;

struct Fleet<'a> {
    binary: &'a Path,
    cluster: ControlPlane,
    audit: Audit,
    directory: Directory,
    agents: Vec<Process>,
    size: usize,
    /// The network namespace of the last nodes, and the relay from this namespace to the API server.
    apart: Namespace,
    _way: Relay,
    services: u16,
    rows: Vec<Row>,
}

/// Measures the requests if all agents start at the same moment.
pub fn start(binary: &Path, small: bool) -> Vec<Row> {
    let mut fleet = Fleet::of(binary, if small { 10 } else { AT_ONCE });
    let what = format!("at start of {} at once", fleet.size);
    fleet.during(&what, Fleet::start);
    fleet.tell_of_memory("after that");
    fleet.rows
}

pub fn measure(binary: &Path, small: bool) -> Vec<Row> {
    let (size, wait, churn, away) =
        if small { (5, Duration::from_secs(10), CHURN / 6, 1) } else { (AGENTS, WHILE, CHURN, AWAY) };
    let mut fleet = Fleet::of(binary, size);

    let own = watches(fleet.cluster.api());
    fleet.during("at start", Fleet::start);
    let each = (watches(fleet.cluster.api()) - own) / size as f64;
    fleet.rows.push(Row::alone("watches of an agent", "watches", [each], Promise::AtMost(MOST_WATCHES)));
    let writes = fleet.during("at rest", |_| thread::sleep(wait));
    fleet.promise_reads("at rest", MOST_READS_AT_REST);
    let rate = writes / wait.as_secs_f64();
    fleet.rows.push(Row::alone(
        "writes a second of an agent at rest",
        "requests",
        [rate],
        Promise::AtMost(MOST_WRITES),
    ));
    fleet.during("while a Service comes", |fleet| {
        fleet.serve();
        thread::sleep(wait / 4);
    });
    fleet.tell_of_memory("at rest");
    fleet.during("while Services change all the time", |fleet| fleet.churn(churn));
    fleet.tell_of_memory("after that");
    fleet.outage(away);
    fleet.tell_of_memory("after an outage");
    let restarts = "while all agents are restarted, one by one";
    fleet.during(restarts, |fleet| {
        for number in 0..size {
            fleet.agents[number] = fleet.agent(number);
            fleet.ready(number);
        }
    });
    fleet.promise_reads(restarts, MOST_READS);
    fleet.incident();
    fleet.rows
}

impl<'a> Fleet<'a> {
    fn of(binary: &'a Path, size: usize) -> Self {
        let audit = Audit::new();
        let flags = audit.flags();
        let mut cluster = ControlPlane::with(&flags.each_ref().map(String::as_str));
        Role::of_chart().grant(&mut cluster);
        for number in 0..size {
            let address = format!("10.7.{}.{}", number / 250, number % 250 + 1);
            cluster.api().create(&objects::node(&name(number), &[&address]));
        }
        let directory = Directory::new();
        let apart = Namespace::new();
        apart.run(enter_alone);
        let way = apart.run(|| TcpListener::bind(ControlPlane::SERVER).expect("a free port"));
        let way = Relay::between(way, ControlPlane::SERVER.into());
        let mut fleet = Self {
            binary,
            cluster,
            audit,
            directory,
            agents: Vec::new(),
            size,
            apart,
            _way: way,
            services: 0,
            rows: Vec::new(),
        };
        (0..SERVICES).for_each(|_| fleet.serve());
        fleet
    }

    fn start(&mut self) {
        self.agents = (0..self.size).map(|number| self.agent(number)).collect();
        (0..self.size).for_each(|number| self.ready(number));
    }

    fn serve(&mut self) {
        let port = FIRST + self.services;
        self.cluster.api().create(&objects::service(&format!("s{port}"), &[objects::port(80, Some(port))]));
        self.services += 1;
    }

    fn ready(&self, number: usize) {
        until_within(PATIENCE, "view of every Service", || {
            let metrics = self.metrics(number)?;
            (node_ports(&metrics) >= f64::from(self.services)).then_some(())
        });
    }

    fn metrics(&self, number: usize) -> Option<String> {
        let get = move || http_get(&place(number), "/metrics");
        if self.is_apart(number) { self.apart.run(get) } else { get() }
    }

    fn is_apart(&self, number: usize) -> bool {
        number >= self.size - self.size.div_ceil(LEFT)
    }

    fn churn(&mut self, lasts: Duration) {
        let spent = self.spent();
        let begun = Instant::now();
        let mut changes = 0;
        while begun.elapsed() < lasts {
            let port = FIRST + (changes % u32::from(SERVICES)) as u16;
            let patch = json!({"metadata": {"annotations": {"example.org/change": changes.to_string()}}});
            let path = format!("/api/v1/namespaces/default/services/s{port}");
            self.cluster.api().send("PATCH", &path, "application/merge-patch+json", &patch).expect("it may be edited");
            changes += 1;
            thread::sleep((Duration::from_secs(1) / CHANGES * changes).saturating_sub(begun.elapsed()));
        }
        let seconds = begun.elapsed().as_secs_f64();
        let taken = 1000.0 * (self.spent() - spent).as_secs_f64() / seconds / self.size as f64;
        self.tell("changes of Services a second then", "changes", [f64::from(changes) / seconds]);
        self.tell("processor time of an agent then", "thousandths of a core", [taken]);
    }

    fn outage(&mut self, minutes: usize) {
        self.cluster.kill();
        let each_minute: Vec<f64> = (0..minutes)
            .map(|_| {
                let before = refused();
                thread::sleep(Duration::from_secs(60));
                (refused() - before) / self.size as f64
            })
            .collect();
        eprintln!("connections that an agent tried in each minute without a server: {each_minute:.1?}");
        self.tell(
            "connections an agent tries in a minute without a server",
            "connections",
            each_minute.last().copied(),
        );
        self.during("when the server is back", |fleet| {
            fleet.cluster.restart();
            fleet.serve();
            let begun = Instant::now();
            (0..fleet.size).for_each(|number| fleet.ready(number));
            fleet.tell("the last agent sees what is new after an outage", "s", [begun.elapsed().as_secs_f64()]);
        });
    }

    fn spent(&self) -> Duration {
        self.agents.iter().map(|agent| processor_time(agent.pid())).sum()
    }

    fn tell_of_memory(&mut self, when: &str) {
        let each: Vec<f64> = self.agents.iter().map(|agent| Memory::of(agent.pid()).resident).collect();
        self.tell(&format!("resident memory of an agent {when}"), "MiB", each);
    }

    fn tell(&mut self, what: &str, unit: &str, values: impl IntoIterator<Item = f64>) {
        self.rows.push(Row::alone(what, unit, values, Promise::None));
    }

    fn agent(&self, number: usize) -> Process {
        let arguments = [
            "agent".to_owned(),
            format!("--kubeconfig={}", self.cluster.kubeconfig(OBSERVER).display()),
            format!("--node={}", name(number)),
            "--proxy-mode=iptables".to_owned(),
            format!("--listen={}", place(number)),
        ];
        let (binary, folder) = (self.binary.display().to_string(), self.directory.path().to_owned());
        let start = move || Process::start(&binary, &arguments, &folder);
        if self.is_apart(number) { self.apart.run(start) } else { start() }
    }

    /// Measures the requests while `happens` runs. Returns the number of writes of one agent.
    fn during(&mut self, what: &str, happens: impl FnOnce(&mut Self)) -> f64 {
        let (before, bytes) = (self.audit.of(OBSERVER).len(), self.bytes());
        happens(self);
        let (asked, now) = (self.audit.of(OBSERVER).split_off(before), self.bytes());
        self.tell_of(what, &asked);
        let of = |verbs: &[&str], answered: &dyn Fn(u64) -> bool| {
            let of = asked.iter().filter(|asked| verbs.contains(&asked.verb.as_str()) && answered(asked.code));
            of.count() as f64 / self.size as f64
        };
        let count = |verbs: &[&str]| of(verbs, &|_| true);
        let is_busy = |code| code == 429 || code >= 500;
        let [reads, refused] = [false, true].map(|busy| of(&["get", "list"], &|code| is_busy(code) == busy));
        let writes = count(&["create", "patch", "update", "delete"]);
        let more = now.iter().map(|(end, carried)| carried - bytes.get(end).unwrap_or(&0.0));
        let kib = more.sum::<f64>() / 1024.0 / self.size as f64;
        let told = [
            ("reads", "requests", reads),
            ("watches that ended", "watches", count(&["watch"])),
            ("reads that a busy server refused", "requests", refused),
            ("writes, looks at Events included,", "requests", writes),
            ("traffic", "KiB", kib),
        ];
        for (of, unit, value) in told {
            self.rows.push(Row::alone(format!("{of} of an agent {what}"), unit, [value], Promise::None));
        }
        writes
    }

    fn promise_reads(&mut self, when: &str, most: f64) {
        let what = format!("reads of an agent {when}");
        let row = self.rows.iter_mut().find(|row| row.what == what);
        row.expect("the row of these reads").promise = Promise::AtMost(most);
    }

    fn tell_of(&self, what: &str, asked: &[Asked]) {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for Asked { verb, uri, code, .. } in asked {
            let path = uri.split('?').next().unwrap_or_default();
            *counts.entry(format!("{verb} {path} {code}")).or_default() += 1;
        }
        eprintln!("{what}, of an agent:");
        for (request, count) in counts {
            eprintln!("{:8.2} {request}", count as f64 / self.size as f64);
        }
    }

    /// The encrypted bytes of each open connection to the server, in both directions, by the connection's local
    /// address.
    fn bytes(&self) -> BTreeMap<String, f64> {
        let output = run(Command::new("ss").args(["-HtinO", "dport = :6443"]));
        let carried = |line: &str| {
            let of = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name)?.parse::<f64>().ok());
            let end = line.split_whitespace().find(|word| word.contains(':'))?;
            Some((end.to_owned(), of("bytes_acked:").unwrap_or(0.0) + of("bytes_received:").unwrap_or(0.0)))
        };
        String::from_utf8_lossy(&output.stdout).lines().filter_map(carried).collect()
    }
}

/// The number of open watches, including the API server's own watches.
pub fn watches(api: &Api) -> f64 {
    let metrics = api.text("/metrics").expect("metrics of the server");
    let open = metrics.lines().filter(|line| {
        let ours = ["services", "endpointslices", "pods", "nodes"];
        line.starts_with("apiserver_longrunning_requests{")
            && line.contains("verb=\"WATCH\"")
            && ours.iter().any(|resource| line.contains(&format!("resource=\"{resource}\"")))
    });
    open.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn name(number: usize) -> String {
    format!("n{number}")
}

fn place(number: usize) -> String {
    format!("127.0.0.1:{}", PLACES + number)
}

fn refused() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/net/snmp").expect("counters of the kernel");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(name, _)| *name == "AttemptFails").and_then(|(_, value)| value.parse().ok()).expect("a counter")
}
