//! `portreeve agent`: its findings, its answers, and its reactions to changes and signals.

use crate::named::is_of;
use std::{
    cell::RefCell,
    fs,
    io::{BufRead as _, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    proxy::Squatter,
    stage::{Stage, portreeve},
};

/// The longest time that a test waits for two scans. Even a busy machine needs far less.
const SOON: Duration = Duration::from_secs(60);
pub(crate) const PLACE: &str = "127.0.0.1:29517";

/// The documents that only some users may read. Without an API server, the agent returns these documents only at its
/// socket.
const PRIVATE: [&str; 2] = ["/findings", "/snapshot"];

thread_local! {
    static SOCKET: RefCell<PathBuf> = const { RefCell::new(PathBuf::new()) };
}

/// An agent on the node of this thread. If this value is dropped, the agent ends.
pub(crate) struct Agent {
    pub(crate) child: Child,
    log: BufReader<ChildStderr>,
}

impl Agent {
    pub(crate) fn start(stage: &Stage, arguments: &[&str]) -> Self {
        let command = stage.command("agent");
        stage.manifest_with(arguments);
        Self::of(command, stage, arguments)
    }

    pub(crate) fn of(mut command: Command, stage: &Stage, arguments: &[&str]) -> Self {
        command.env("PORTREEVE_INTERVAL", "300ms").args(["--cpu-percent", "100", "--log-format", "json"]);
        // Each agent of a test has its own socket. The functions below send requests to the newest agent.
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let socket = stage.path(&format!("agent-{}.socket", STARTED.fetch_add(1, Ordering::Relaxed)));
        command.arg("--socket").arg(&socket).args(arguments);
        SOCKET.set(socket);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("portreeve runs");
        let log = BufReader::new(child.stderr.take().expect("a pipe"));
        Self { child, log }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the agent is a child");
    }

    /// Waits until the agent has ended, and sends no signal.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let child = RefCell::new(&mut self.child);
        until(|| child.borrow_mut().try_wait().expect("a child")).expect("the agent ends")
    }

    pub(crate) fn narrow_log(&self) {
        fcntl(self.log.get_ref(), FcntlArg::F_SETPIPE_SZ(4096)).expect("a pipe");
    }

    pub(crate) fn hang_up(&mut self) {
        let nothing = fs::File::open("/dev/null").expect("every system has it");
        self.log = BufReader::new(ChildStderr::from(OwnedFd::from(nothing)));
    }

    #[track_caller]
    pub(crate) fn says(&mut self, words: &str) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).expect("a log") > 0, "no {words:?} in {seen}");
            if line.contains(words) {
                return line;
            }
            seen.push_str(&line);
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Ignores errors, because the agent may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The head and the body of an agent's answer.
pub(crate) fn exchange(method: &str, path: &str, headers: &str) -> Option<(String, String)> {
    match PRIVATE.contains(&path) {
        true => exchange_at_socket(method, path, headers),
        false => exchange_with(PLACE, method, path, headers),
    }
}

pub(crate) fn exchange_at_socket(method: &str, path: &str, headers: &str) -> Option<(String, String)> {
    talk(connect_to_socket()?, method, path, headers)
}

pub(crate) fn socket() -> PathBuf {
    SOCKET.with_borrow(Clone::clone)
}

pub(crate) fn probe(socket: &Path) -> Option<i32> {
    let mut probe = portreeve();
    probe.args(["agent", "--probe", "--socket"]).arg(socket).stderr(Stdio::null());
    probe.status().expect("portreeve runs").code()
}

pub(crate) fn connect_to_socket() -> Option<UnixStream> {
    UnixStream::connect(socket()).ok()
}

pub(crate) fn exchange_with(place: &str, method: &str, path: &str, headers: &str) -> Option<(String, String)> {
    talk(TcpStream::connect(place).ok()?, method, path, headers)
}

fn talk(mut stream: impl Read + Write, method: &str, path: &str, headers: &str) -> Option<(String, String)> {
    // In HTTP 1.0, the server closes the connection after the answer.
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: n1\r\n{headers}\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.to_owned(), body.to_owned()))
}

pub(crate) fn ask(path: &str, headers: &str) -> Option<(u16, String)> {
    let (head, body) = exchange("GET", path, headers)?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body))
}

#[track_caller]
pub(crate) fn wait_for(path: &str, fits: impl Fn(&str) -> bool) -> String {
    let fitting = || ask(path, "").filter(|(status, body)| *status == 200 && fits(body)).map(|(_, body)| body);
    until(fitting).unwrap_or_else(|| panic!("{path} never matched: {:?}", ask(path, "")))
}

pub(crate) fn until<T>(probe: impl Fn() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        match probe() {
            None if begun.elapsed() < SOON => sleep(Duration::from_millis(50)),
            answer => return answer,
        }
    }
}

pub(crate) fn web() -> Stage {
    Stage::new().service("web", "TCP", 30080, "").endpoints("web", "TCP", Some("n1"))
}

pub(crate) const SQUATTED: &str =
    "portreeve_findings{rule=\"listener-on-node-port\",variant=\"loses\",severity=\"critical\"} 1";

#[test]
fn a_squatter_is_found_and_its_finding_ends() {
    let stage = web();
    let mut agent = Agent::start(&stage, &["--proxy-mode", "iptables"]);
    wait_for("/readyz", |_| true);
    assert!(!wait_for("/metrics", |_| true).contains(SQUATTED));
    let squatter = Squatter::on("0.0.0.0:30080");
    wait_for("/metrics", |text| text.contains(SQUATTED));
    let document: Value = serde_json::from_str(&wait_for("/findings", |_| true)).expect("JSON");
    let found = document["findings"].as_array().expect("findings");
    assert!(found.iter().any(|it| is_of(it, "listener-on-node-port/loses") && it["port"] == 30080), "{document:#}");
    let words = document.to_string();
    assert!(words.contains("perl") && !words.contains("IO::Socket::INET"), "its name, and no command line: {words}");
    assert!(agent.says("raised").contains("default/web"));
    assert!(wait_for("/", |_| true).contains("Service default/web"));
    let (_, whole) = exchange_at_socket("GET", "/", "").expect("a page");
    assert!(whole.contains("perl") && whole.contains("<svg"), "{whole}");
    for path in ["/", "/metrics", "/findings", "/snapshot"] {
        let (_, told) = exchange_with(PLACE, "GET", path, "").expect("an answer");
        assert!(!told.contains("perl") && !told.contains("10.244.0.5"), "every user may read this: {told}");
    }
    let snapshot = wait_for("/snapshot", |_| true);
    assert!(!snapshot.contains("IO::Socket::INET"), "a command line");
    assert!(snapshot.contains("portreeve.snapshot/v1"));
    drop(squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
    assert!(agent.says("cleared").contains("default/web"));
}

#[test]
fn the_format_of_metrics_is_negotiated_and_the_health_paths_answer() {
    let stage = web();
    let _agent = Agent::start(&stage, &[]);
    wait_for("/readyz", |_| true);
    let (_, open) = ask("/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n").expect("an answer");
    assert!(open.ends_with("# EOF\n"));
    let (_, plain) = ask("/metrics", "Accept: text/plain\r\n").expect("an answer");
    assert!(!plain.contains("# EOF") && plain.contains("# TYPE portreeve_scans_total counter"));
    wait_for("/livez", |_| true);
    assert_eq!(probe(&socket()), Some(0));
    assert_eq!(probe(&stage.path("nowhere")), Some(2));
}

#[test]
fn a_change_of_the_cluster_starts_a_scan_before_the_interval_is_over() {
    let stage = Stage::new();
    let _squatter = Squatter::on("0.0.0.0:30080");
    let _agent = Agent::start(&stage, &["--proxy-mode", "iptables", "--interval", "1h"]);
    wait_for("/metrics", |text| text.contains("portreeve_scans_total 1.0\n"));
    let stage = stage.service("web", "TCP", 30080, "");
    stage.manifest();
    wait_for("/metrics", |text| text.contains("portreeve_listeners_on_node_ports{protocol=\"tcp\"} 1"));
}

#[test]
fn it_ends_at_a_signal_and_logs_its_state_at_another() {
    let stage = web();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut agent = Agent::start(&stage, &[]);
        wait_for("/readyz", |_| true);
        agent.signal(Signal::SIGUSR1);
        assert!(agent.says("\"state\"").contains("\"scans\""));
        agent.signal(signal);
        agent.says("stopped");
        assert!(agent.child.wait().expect("the agent ends").success());
    }
}

/// Fault (operator): the agent gets SIGTERM while the API server and the proxy never answer
/// Does: ends with exit code 0
/// Right again: at once
/// Lost: nothing
#[test]
fn it_ends_while_no_server_answers() {
    let stage = web();
    let silent = |place| TcpListener::bind(place).expect("the port is free");
    let (server, _proxy) = (silent("127.0.0.1:0"), silent("127.0.0.1:10249"));
    let address = server.local_addr().expect("an address");
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: lab\ncontexts: [{{name: lab, context: {{cluster: lab, user: lab}}}}]\n\
         clusters: [{{name: lab, cluster: {{server: 'http://{address}'}}}}]\nusers: [{{name: lab, user: {{}}}}]\n"
    );
    let path = stage.path("kubeconfig");
    fs::write(&path, kubeconfig).expect("a file");
    let mut command = portreeve();
    command.arg("agent").arg("--kubeconfig").arg(path);
    let mut agent = Agent::of(command, &stage, &["--request-timeout", "1h"]);
    wait_for("/readyz", |_| true);
    agent.signal(Signal::SIGTERM);
    agent.says("stopped");
    let ended = agent.ended();
    assert!(ended.success(), "{ended:?}");
}

#[test]
fn a_steady_node_is_silent_and_every_line_of_the_log_is_json() {
    let stage = web();
    let mut agent = Agent::start(&stage, &[]);
    let scans = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("portreeve_scans_total "));
        line.and_then(|count| count.parse::<f64>().ok()).expect("a count")
    };
    wait_for("/metrics", |text| scans(text) >= 5.0);
    // The agent writes the line `state` after all lines about its start.
    agent.signal(Signal::SIGUSR1);
    let mut line = agent.says("\"state\"");
    let before = scans(&wait_for("/metrics", |_| true));
    wait_for("/metrics", |text| scans(text) >= before + 10.0);
    agent.signal(Signal::SIGTERM);
    let mut rest = String::new();
    agent.log.read_to_string(&mut rest).expect("a log");
    line.push_str(&rest);
    let told: Vec<Value> = line.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let told: Vec<_> =
        told.iter().filter_map(|line| line["message"].as_str()).filter(|it| *it != "open finding").collect();
    assert_eq!(told, ["state", "stopped"]);
}

/// Fault (operator): the agent gets SIGHUP, and its configuration is invalid
/// Does: logs file, line and key; keeps the last valid configuration
/// Right again: when the file is repaired, without a signal
/// Lost: nothing
#[test]
fn a_file_is_read_anew_and_an_invalid_one_changes_nothing() {
    let stage = web();
    let path = stage.path("agent.yaml");
    fs::write(&path, "limits: {band_warning_percent: 70}\n").expect("a file");
    let mut agent = Agent::start(&stage, &["--config", path.to_str().expect("a path")]);
    agent.says("started");
    fs::write(&path, "limits: {band_warning_percnt: 60}\n").expect("a file");
    agent.signal(Signal::SIGHUP);
    let line = agent.says("cannot be used");
    assert!(line.contains("agent.yaml:1: unknown key") && line.contains("band_warning_percent"), "{line}");
    // Replaces the file without a signal, as kubelet does.
    let next = stage.path("next.yaml");
    fs::write(&next, "limits: {band_warning_percent: 60}\n").expect("a file");
    fs::rename(&next, &path).expect("a swap");
    agent.says("the configuration changed");
    wait_for("/readyz", |_| true);
    fs::write(&next, "log-level: debug\n").expect("a file");
    fs::rename(&next, &path).expect("a swap");
    agent.says("scanned");
}

/// Fault (operator): the agent starts with an invalid configuration
/// Does: exits with 2, and names file, line and key
/// Right again: when the configuration is repaired
/// Lost: nothing
#[test]
fn an_invalid_configuration_at_the_start_is_reported_and_nothing_is_started() {
    let stage = web();
    let path = stage.path("agent.yaml");
    fs::write(&path, "node: n1\nintervall: 3s\n").expect("a file");
    let output = stage.command("agent").arg("--config").arg(&path).output().expect("portreeve runs");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{words}");
    assert!(words.contains("agent.yaml:2: unknown key \"intervall\", did you mean \"interval\"?"), "{words}");
}

#[test]
fn settings_come_from_the_environment_too() {
    let stage = web();
    let mut command: Command = stage.command("agent");
    command.env("PORTREEVE_INTERVAL", "never").stderr(Stdio::piped());
    let output = command.output().expect("portreeve runs");
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("never"));
}

/// Fault (node): another process has the agent's port, and frees the port later
/// Does: reports `host-network-port-taken/agent`, and runs without HTTP
/// Right again: when the port is free
/// Lost: scrapes until then
#[test]
fn a_taken_port_is_a_finding_and_the_agent_uses_the_port_when_it_is_free() {
    let stage = web();
    let squatter = TcpListener::bind(PLACE).expect("the port is free");
    let mut agent = Agent::start(&stage, &[]);
    agent.says("cannot listen here");
    assert!(agent.says("raised").contains("host-network-port-taken/agent"));
    drop(squatter);
    wait_for("/findings", |document| !document.contains("host-network-port-taken/agent"));
    assert!(agent.says("cleared").contains("host-network-port-taken/agent"));
}
