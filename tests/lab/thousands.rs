//! `kubectl portreeve`, a real API server with its pod proxy, and five thousand simulated agents at their own
//! addresses.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{IpAddr, Ipv4Addr, TcpListener, TcpStream},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::parts::{Api, ControlPlane, directory::Directory, enter_alone, ip, until_within};

const AGENTS: u16 = 5_000;
/// The number of agents that report the same mistake.
const AFFECTED: u16 = 31;
const PORT: u16 = 29517;
/// The first two bytes of the agents' addresses. The API server's proxy does not connect to loopback addresses.
const NETWORK: [u8; 2] = [10, 77];
const AT_ONCE: u16 = 8;

type Tokens = Arc<Mutex<Vec<String>>>;

fn address(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(NETWORK[0], NETWORK[1], high, low)
}

fn node(number: u16) -> String {
    format!("n{number:04}")
}

fn answer(number: u16) -> String {
    let finding = json!({
        "rule": "listener-on-node-port", "variant": "loses", "severity": "critical", "scope": "node",
        "subject": {"kind": "Service", "namespace": "shop", "name": "web"}, "port": 30080, "protocol": "tcp",
        "summary": format!("Something listens on {}:30080.", address(number)), "affects": ["remote"],
        "evidence": [{"name": "process", "value": format!("scanner (pid {number})")}],
        "remedy": [], "remedies": [], "since": "2026-11-21T12:00:00Z",
    });
    let findings = if number <= AFFECTED { json!([finding]) } else { json!([]) };
    let unknown = json!([{"source": "netfilter", "why": "not-permitted", "detail": "nft: needs NET_ADMIN"}]);
    let at = jiff::Timestamp::now().to_string();
    let of_node = json!({"node": node(number), "lookedAt": at});
    json!({"schema": "portreeve.findings/v1", "findings": findings, "unknown": unknown, "nodes": [of_node]}).to_string()
}

/// Serves all agents. An agent whose number is at least `hung` accepts connections and sends nothing.
fn serve(hung: Arc<AtomicU16>) -> Tokens {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).expect("the port is free");
    let tokens = Tokens::default();
    let seen = Arc::clone(&tokens);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (seen, hung) = (Arc::clone(&seen), Arc::clone(&hung));
            thread::spawn(move || reply(&stream, &seen, hung.load(Ordering::SeqCst)));
        }
    });
    tokens
}

fn reply(mut stream: &TcpStream, seen: &Tokens, hung: u16) {
    let Ok(IpAddr::V4(own)) = stream.local_addr().map(|it| it.ip()) else { return };
    let [_, _, high, low] = own.octets();
    let number = u16::from_be_bytes([high, low]);
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
    let token = head.iter().find_map(|line| line.strip_prefix("portreeve-token: "));
    if let Some(token) = token {
        seen.lock().expect("no panic").push(token.to_owned());
    }
    if number >= hung {
        thread::sleep(Duration::from_secs(30));
        return;
    }
    let (status, body) = if token.is_some() { (200, answer(number)) } else { (401, "{}".to_owned()) };
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}");
    // Ignores errors, because the client may have closed the connection.
    drop(stream.write_all(format!("{head}\r\nConnection: close\r\n\r\n{body}").as_bytes()));
}

fn cluster() -> ControlPlane {
    enter_alone();
    ip(&[format!("route add local {}.{}.0.0/16 dev lo", NETWORK[0], NETWORK[1])]);
    let mut cluster = ControlPlane::start();
    let object = |version: &str, kind: &str, name: &str, more: Value| {
        let mut object =
            json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "portreeve"}});
        object.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        object
    };
    let rbac = "rbac.authorization.k8s.io";
    let core = |resource: &str, verb: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": [verb]});
    let rules = json!([core("pods", "list"), core("pods/proxy", "get"), core("serviceaccounts/token", "create")]);
    let subjects = json!([{"apiGroup": rbac, "kind": "User", "name": "observer"}]);
    let to_role = json!({"apiGroup": rbac, "kind": "Role", "name": "reader"});
    cluster.api().create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "portreeve"}}));
    for made in [
        object("v1", "ServiceAccount", "portreeve", json!({})),
        object("v1", "ServiceAccount", "portreeve-reader", json!({})),
        object(&format!("{rbac}/v1"), "Role", "reader", json!({"rules": rules})),
        object(&format!("{rbac}/v1"), "RoleBinding", "reader", json!({"roleRef": to_role, "subjects": subjects})),
    ] {
        cluster.api().create(&made);
    }
    let observer = Api::of(&cluster.kubeconfig("observer")).expect("a kubeconfig");
    cluster.wait_for("role in force", || observer.text("/api/v1/namespaces/portreeve/pods?limit=1"));
    let admin = &cluster.kubeconfig("admin");
    thread::scope(|scope| {
        for first in 0..AT_ONCE {
            scope.spawn(move || {
                let api = Api::of(admin).expect("a kubeconfig");
                (first + 1..=AGENTS).step_by(usize::from(AT_ONCE)).for_each(|number| create_pod(&api, number));
            });
        }
    });
    cluster
}

fn create_pod(api: &Api, number: u16) {
    let name = format!("portreeve-{number}");
    api.create(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "portreeve", "labels": {"app.kubernetes.io/name": "portreeve"}},
        "spec": {
            "nodeName": node(number), "hostNetwork": true, "serviceAccountName": "portreeve",
            "automountServiceAccountToken": false,
            "containers": [{"name": "portreeve", "image": "portreeve",
                            "ports": [{"name": "http", "containerPort": PORT, "hostPort": PORT}]}],
        },
    }));
    let own = address(number).to_string();
    let status = json!({"status": {
        "phase": "Running", "podIP": own, "podIPs": [{"ip": own}], "conditions": [{"type": "Ready", "status": "True"}],
    }});
    let path = format!("/api/v1/namespaces/portreeve/pods/{name}/status");
    api.send("PATCH", &path, "application/merge-patch+json", &status).unwrap_or_else(|refusal| panic!("{refusal}"));
}

struct Asking {
    child: Child,
    directory: Directory,
}

impl Asking {
    fn start(cluster: &ControlPlane, words: &[&str]) -> Self {
        let directory = Directory::new();
        let file = |name| Stdio::from(fs::File::create(directory.path().join(name)).expect("a file"));
        let child = Command::new(env!("CARGO_BIN_EXE_portreeve"))
            .arg0("kubectl-portreeve")
            .args(["check", "--kubeconfig"])
            .arg(cluster.kubeconfig("observer"))
            .args(words)
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .expect("the binary runs");
        Self { child, directory }
    }

    /// Returns the exit code, standard output, standard error, and the peak of memory, in the kernel's format.
    fn end(mut self) -> (i32, String, String, String) {
        let status_file = format!("/proc/{}/status", self.child.id());
        let mut most = String::new();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                break status;
            }
            let status = fs::read_to_string(&status_file).unwrap_or_default();
            // A process that has just ended has no line `VmHWM`.
            most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).map_or(most, |it| it.trim().to_owned());
            thread::sleep(Duration::from_millis(20));
        };
        let text = |name| fs::read_to_string(self.directory.path().join(name)).expect("UTF-8");
        (status.code().expect("an exit code"), text("out"), text("err"), most)
    }
}

/// A build without optimization needs about 50 MiB for any number of agents.
#[track_caller]
fn assert_modest(memory: &str) {
    let digits: String = memory.chars().filter(char::is_ascii_digit).collect();
    let kilobytes: u32 = digits.parse().unwrap_or_else(|_| panic!("no number: {memory}"));
    assert!((1024..128 << 10).contains(&kilobytes), "{memory}");
}

#[test]
fn five_thousand_agents_are_asked_through_a_real_api_server_and_told_as_one_incident() {
    let hung = Arc::new(AtomicU16::new(u16::MAX));
    let cluster = cluster();
    let tokens = serve(Arc::clone(&hung));

    let begun = Instant::now();
    let (code, table, stderr, memory) = Asking::start(&cluster, &[]).end();
    eprintln!("{AGENTS} agents in {:.1} s, {memory} at the most", begun.elapsed().as_secs_f64());
    assert_modest(&memory);
    assert_eq!((code, stderr.as_str()), (1, ""), "{table}");
    assert!(table.starts_with("1 critical; 5000 agents queried, oldest scan "), "{table}");
    assert!(table.contains("  31 of 5000 nodes: n0001, n0002, n0003 and 28 more\n"), "{table}");
    let sent: Vec<String> = tokens.lock().expect("no panic").drain(..).collect();
    let different: BTreeSet<&String> = sent.iter().collect();
    assert_eq!((sent.len(), different.len()), (5_000, 5_000), "each is asked once, with a token of its own");

    let begun = Instant::now();
    let (code, json, stderr, memory) = Asking::start(&cluster, &["-o", "json"]).end();
    eprintln!("the same as JSON in {:.1} s, {memory} at the most", begun.elapsed().as_secs_f64());
    assert_modest(&memory);
    let document: Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    assert_eq!(code, 1);
    assert_eq!(document["findings"][0]["nodes"].as_array().map(Vec::len), Some(31));
    assert_eq!(document["nodes"].as_array().map(Vec::len), Some(5_000));

    // The last fifty agents hang. If the user stops the command, the user gets the answers of all other agents.
    hung.store(AGENTS - 49, Ordering::SeqCst);
    tokens.lock().expect("no panic").clear();
    let asking = Asking::start(&cluster, &["--request-timeout", "60s"]);
    let all_sent = || (tokens.lock().expect("no panic").len() == usize::from(AGENTS)).then_some(());
    until_within(Duration::from_secs(180), "requests to all", all_sent);
    kill(Pid::from_raw(i32::try_from(asking.child.id()).expect("a pid")), Signal::SIGINT).expect("it runs");
    let (code, table, stderr, _) = asking.end();
    assert_eq!((code, stderr.as_str()), (1, ""), "{table}");
    assert!(
        table.starts_with("partial: ") && table.contains(" of 5000 agents were queried; you stopped the command\n"),
        "{table}"
    );
    assert!(table.contains("  31 of 4"), "{table}");
}
