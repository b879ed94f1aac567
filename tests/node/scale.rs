//! A file with a hundred thousand Services, and a node with two hundred thousand sockets.

use crate::named::is_of;
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{BufWriter, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::stage::{Stage, portreeve, sysctl};

const SERVICES: u32 = 100_000;
const API_SERVER: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"kubernetes"},"spec":{}}"#;
/// The greatest memory that a check may use, in KiB.
const MEMORY: u64 = 150 * 1024;

fn services(path: &Path, item: impl Fn(u32) -> String, head: &str, tail: &str, between: &str) {
    let mut file = BufWriter::new(File::create(path).expect("a file"));
    file.write_all(head.as_bytes()).expect("writing");
    for n in 0..SERVICES {
        if n > 0 {
            file.write_all(between.as_bytes()).expect("writing");
        }
        file.write_all(item(n).as_bytes()).expect("writing");
    }
    file.write_all(tail.as_bytes()).expect("writing");
    file.flush().expect("writing");
}

fn node_port(n: u32) -> String {
    if n < 2000 { format!("\"nodePort\": {},", 30000 + n) } else { String::new() }
}

fn json(n: u32) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"service-{n}","namespace":"team-{}","uid":"0b1c2d3e-0000-4000-8000-{n:012}","annotations":{{"filler":"{}"}}}},"spec":{{"type":"NodePort","selector":{{"app":"a"}},"clusterIP":"10.{}.{}.{}","ports":[{{"name":"http","port":80,{}"protocol":"TCP"}}]}}}}"#,
        n % 300,
        "x".repeat(300),
        100 + n / 62500,
        n / 250 % 250,
        n % 250 + 1,
        node_port(n),
    )
}

/// Returns the document, and the highest resident memory in KiB.
fn measured(arguments: &[&OsStr]) -> (serde_json::Value, u64) {
    let mut command = portreeve();
    command.args(["check", "--node", "n1", "--proxy-mode", "iptables", "-o", "json"]).args(arguments);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("portreeve runs");
    let status = format!("/proc/{}/status", child.id());
    // The kernel keeps the peak, so the last value before the end is the peak.
    let watcher = std::thread::spawn(move || {
        let mut peak = 0;
        while let Some(now) = fs::read_to_string(&status).ok().as_deref().and_then(resident_peak) {
            peak = now;
            std::thread::sleep(Duration::from_millis(2));
        }
        peak
    });
    let output = child.wait_with_output().expect("the program ends");
    let peak = watcher.join().expect("no panic");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_some_and(|code| code < 2), "{:?}: {stderr}", output.status);
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    (document, peak)
}

/// Returns `None` if the process has ended.
fn resident_peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[test]
fn a_hundred_thousand_services_and_two_hundred_thousand_sockets_fit_into_150_mb() {
    let stage = Stage::new();
    let _squatter = TcpListener::bind("0.0.0.0:31234").expect("the port is free");
    let _crowd = Crowd::of(100_000);
    let directory = tempfile::TempDir::new().expect("a directory");
    let in_json = directory.path().join("services.json");
    let head = format!(r#"{{"apiVersion":"v1","kind":"List","items":[{API_SERVER},"#);
    services(&in_json, json, &head, "]}", ",\n");
    let in_yaml = directory.path().join("services.yaml");
    // A JSON object is also YAML. A YAML list of JSON objects looks like the output of `kubectl get -o yaml`.
    let head = format!("apiVersion: v1\nkind: List\nitems:\n- {API_SERVER}\n");
    services(&in_yaml, |n| format!("- {}", json(n)), &head, "\n", "\n");
    for file in [in_json, in_yaml] {
        let (document, peak) = measured(&[OsStr::new("--services"), file.as_os_str()]);
        let findings = document["findings"].as_array().expect("findings");
        let squatted =
            |finding: &&serde_json::Value| is_of(finding, "listener-on-node-port/loses") && finding["port"] == 31234;
        assert_eq!(findings.iter().filter(squatted).count(), 1, "{document:#}");
        assert!(peak < MEMORY, "{peak} KiB for {}", file.display());
    }
    drop(stage);
}

/// Each connection has 2 sockets. Several worker processes hold the sockets, because a process may have only a limited
/// number of descriptors.
struct Crowd(Vec<std::process::Child>);

impl Crowd {
    fn of(pairs: usize) -> Self {
        sysctl("net.ipv4.ip_local_port_range", "1024 65535");
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("the hard limit");
        let each = usize::try_from(hard).expect("a limit").min(20_000) / 2 - 100;
        let script = r#"
            my ($address, $pairs) = @ARGV; my @keep;
            my $server = IO::Socket::INET->new(Listen => 1024, LocalAddr => $address) or die $!;
            for (1 .. $pairs) {
                push @keep, IO::Socket::INET->new(PeerAddr => $address) || die $!;
                push @keep, $server->accept || die $!;
            }
            $| = 1; print "ready\n"; <STDIN>;
        "#;
        let workers: Vec<_> = (0..pairs.div_ceil(each))
            .map(|worker| {
                let here = each.min(pairs - worker * each);
                Command::new("perl")
                    .args([
                        "-MIO::Socket::INET",
                        "-e",
                        script,
                        &format!("127.0.1.{}:7000", worker + 1),
                        &here.to_string(),
                    ])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("perl, which every Debian has")
            })
            .collect();
        let mut crowd = Self(workers);
        for worker in &mut crowd.0 {
            let mut ready = [0; 6];
            std::io::Read::read_exact(worker.stdout.as_mut().expect("a pipe"), &mut ready).expect("a worker is ready");
        }
        crowd
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            worker.kill().expect("the worker is a child");
            worker.wait().expect("the worker ended");
        }
    }
}

#[test]
fn a_listeners_owner_is_found_beside_many_connections() {
    let stage = Stage::new().service("web", "TCP", 30080, "").endpoints("web", "TCP", Some("n1"));
    let listener = TcpListener::bind("0.0.0.0:30080").expect("the port is free");
    let _pairs: Vec<_> = (0..200)
        .map(|_| {
            (TcpStream::connect("127.0.0.1:30080").expect("a connection"), listener.accept().expect("a connection"))
        })
        .collect();
    let scan = stage.check(&["--proxy-mode", "ipvs"]);
    assert!(
        scan.finding("listener-on-node-port/loses", "web").evidence().contains(&format!("pid {}", std::process::id()))
    );
    assert!(scan.findings("connection-on-port/answers-taken").is_empty(), "accepted connections are no clients");
}
