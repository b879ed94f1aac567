//! A complete scan as root, a complete scan as an unprivileged user, and a scan of a recorded tree.

use std::{
    collections::BTreeSet,
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

use portreeve_facts::{KernelFacts, Mode, NodeQuery, Owner, PortRange, Reading, Source, State, Why};
use portreeve_kernel::{Host, Known};
use serde_json::Value;

use crate::{
    namespace::Namespace,
    process::{ControlGroup, Process},
    proxy::{kube_proxy, serve},
};

fn wanted() -> NodeQuery {
    NodeQuery {
        owner_ports: PortRange::DEFAULT_NODE_PORTS.into(),
        client_ports: PortRange::DEFAULT_NODE_PORTS.into(),
        command_lines: true,
        // Otherwise, the many connections of parallel tests could make the scan skip clients.
        bound_on_purpose: true,
        ..NodeQuery::default()
    }
}

fn incident() -> (TcpListener, TcpStream) {
    serve("127.0.0.1:10249", kube_proxy("ipvs"));
    let listener = TcpListener::bind("0.0.0.0:30080").expect("a free port in a new namespace");
    let client = TcpStream::connect("127.0.0.1:30080").expect("a connection");
    (listener, client)
}

fn gaps(value: &Value) -> BTreeSet<(String, String)> {
    let word = |value: &Value| value.as_str().expect("a word").to_owned();
    match value {
        Value::Object(fields) => {
            let inner = fields.values().flat_map(gaps);
            let gap = fields.get("gap").map(|gap| (word(&gap["source"]), word(&gap["why"])));
            inner.chain(gap).collect()
        }
        Value::Array(values) => values.iter().flat_map(gaps).collect(),
        _ => BTreeSet::new(),
    }
}

fn json(facts: &KernelFacts) -> Value {
    serde_json::to_value(facts).expect("facts are JSON")
}

#[test]
fn one_scan_of_a_live_host_has_listener_client_holder_and_proxy() {
    let _namespace = Namespace::enter();
    let _incident = incident();
    let (seen, took) = Host::at("/").read_again(&wanted(), &mut Known::default());
    let listeners = seen.listeners.get().expect("listeners");
    let squatter = listeners.iter().find(|socket| socket.local_port == 30080).expect("the listener");
    let Owner::Held(holder) = &squatter.owner else { panic!("{squatter:?}") };
    let process = holder.process.get().expect("root sees the process");
    assert_eq!(process.pid, std::process::id());
    assert!(process.command_line.is_some());
    let clients = seen.clients.get().expect("clients");
    assert!(clients.sockets.iter().any(|socket| socket.local_port == 30080 && socket.state == State::Established));
    assert!(clients.searched.contains(30080) && !clients.searched.contains(8080), "{:?}", clients.searched);
    assert_eq!(seen.socket_source.split(';').next(), Some("sock_diag"));
    assert_eq!(seen.proxy.mode.get().expect("a mode").value, Mode::Ipvs);
    assert_eq!(seen.sysctls.ip_local_port_range, Reading::Seen(PortRange::DEFAULT_EPHEMERAL));
    assert!(seen.sockstat.get().expect("sockstat").tcp >= 3);
    assert!(seen.interfaces.get().expect("links").of("lo").next().is_some());
    assert!(seen.capabilities.contains(&"CAP_NET_ADMIN".to_owned()));
    assert!(!seen.release.is_empty() && seen.release != "unknown");
    let again: KernelFacts = serde_json::from_value(json(&seen)).expect("the facts are read from JSON again");
    assert_eq!(again, seen);
    for source in [Source::Listeners, Source::Clients, Source::Processes, Source::ProxyMode, Source::Addresses] {
        assert!(took.get(&source).is_some_and(|took| !took.wall.is_zero()), "{source:?}: {took:?}");
    }
}

/// `command` must end with the path of the program.
pub fn snapshot(command: &mut Command) -> Value {
    let output = command.arg("snapshot").output().expect("the program runs");
    let snapshot: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    snapshot["kernel"].clone()
}

#[test]
fn an_unprivileged_user_lacks_only_processes_pod_namespaces_and_netfilter() {
    // If a node has no pods, an unprivileged user can read all namespaces. So the test makes a pod.
    let cgroup = ControlGroup::make("nobody", "kubepods/besteffort/pod0e6a3a0c-5a0b-4b1e-8d6e-3f2b1c0d9e90");
    let _pod = {
        let _elsewhere = Namespace::enter();
        Process::start(Some(&cgroup), r#"$| = 1; print "ready\n"; sleep 600;"#)
    };
    let _namespace = Namespace::enter();
    let _incident = incident();
    let program = Path::new(env!("CARGO_BIN_EXE_portreeve"));
    let as_root = snapshot(&mut Command::new(program));

    // Other users may be unable to read the build directory, so they run a copy of the program.
    let place = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).expect("access for other users");
    let copy = place.path().join("portreeve");
    // Another program makes the copy: if this process opened the copy for writing, a child process of a parallel test
    // could inherit the open file. Then the kernel would refuse to run the copy.
    assert!(Command::new("cp").arg(program).arg(&copy).status().expect("the program cp").success());
    let mut setpriv = Command::new("setpriv"); // of the package util-linux
    setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
    let as_nobody = snapshot(setpriv.arg(&copy));

    assert_eq!(as_nobody["capabilities"], Value::Array(Vec::new()));
    let missing: BTreeSet<_> = gaps(&as_nobody).difference(&gaps(&as_root)).cloned().collect();
    let expected = ["netfilter", "pod-namespaces", "processes", "proxy-process"];
    assert_eq!(missing, expected.map(|source| (source.to_owned(), "not-permitted".to_owned())).into());

    let as_nobody: KernelFacts = serde_json::from_value(as_nobody).expect("facts");
    let listeners = as_nobody.listeners.get().expect("listeners");
    let squatter = listeners.iter().find(|socket| socket.local_port == 30080).expect("the listener");
    let Owner::Held(holder) = &squatter.owner else { panic!("{squatter:?}") };
    assert!(holder.cgroup.seen().is_some(), "{holder:?}");
    assert_eq!(as_nobody.proxy.metrics.get().expect("metrics").open_fds, Some(900));
}

fn record(tree: &Path, name: &str, content: &str) {
    let path = tree.join(name);
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    std::fs::write(path, content).expect("written");
}

#[test]
fn a_recorded_tree_is_read_from_its_files_and_not_from_the_kernel() {
    let _namespace = Namespace::enter();
    let _incident = incident();
    let tree = tempfile::tempdir().expect("a directory");
    let tree = tree.path();
    record(tree, "proc/sys/kernel/hostname", "n1\n");
    record(tree, "proc/sys/kernel/osrelease", "5.10.0\n");
    record(tree, "proc/sys/net/ipv4/ip_local_port_range", "1024\t65535\n");
    record(tree, "proc/net/ip_vs", "TCP  0AF40001:7580 rr \n  -> 0AF40002:1F90      Masq    1      0          1\n");
    record(tree, "proc/net/ip_vs_conn", "TCP 0AF40002 1F90 0AF40001 7580 0AF40002 1F90 SYN_RECV         55\n");
    record(tree, "proc/net/sockstat", "TCP: inuse 5 orphan 0 tw 2 alloc 7 mem 1\nUDP: inuse 3 mem 2\n");
    record(tree, "etc/resolv.conf", "nameserver 10.0.0.2\n");
    for table in ["tcp", "udp"] {
        record(tree, &format!("proc/net/{table}"), "  sl  local_address rem_address   st\n");
    }
    let host = Host::at(tree);
    assert!(!host.is_live());
    let seen = host.read(&wanted());
    assert_eq!((seen.hostname.as_str(), seen.release.as_str()), ("n1", "5.10.0"));
    assert_eq!(seen.listeners, Reading::Seen(Vec::new()));
    assert_eq!(seen.sysctls.ip_local_port_range, Reading::Seen(PortRange { first: 1024, last: 65535 }));
    assert_eq!(seen.sysctls.tcp_tw_reuse.gap().expect("not recorded").why, Why::NotSupported);
    assert_eq!(seen.sockstat.get().expect("sockstat").tcp_time_wait, 2);
    assert_eq!(seen.ip_vs.get().expect("servers")[0].port, 30080);
    assert_eq!(seen.ip_vs_connections.get().expect("connections")[0].state, "SYN_RECV");
    assert_eq!(seen.nameservers.get().expect("nameservers").len(), 1);
    for (gap, source) in [
        (seen.interfaces.gap(), Source::Addresses),
        (seen.netfilter.gap(), Source::Netfilter),
        (seen.proxy.mode.gap(), Source::ProxyMode),
        (seen.proxy.config.gap(), Source::ProxyConfig),
        (seen.proxy.metrics.gap(), Source::ProxyMetrics),
        (seen.health_checks.gap(), Source::HealthChecks),
        (seen.pod_namespaces.gap(), Source::PodNamespaces),
    ] {
        let gap = gap.unwrap_or_else(|| panic!("{source:?} was read"));
        assert_eq!((gap.source, gap.why), (source, Why::NotSupported), "{gap:?}");
    }
}

#[test]
fn an_empty_directory_is_unread_and_no_failure() {
    let tree = tempfile::tempdir().expect("a directory");
    let seen = Host::at(tree.path()).read(&wanted());
    assert_eq!((seen.hostname.as_str(), seen.capabilities.len()), ("unknown", 0));
    assert!(seen.listeners.gap().is_some() && seen.clients.gap().is_some() && seen.ephemeral.gap().is_some());
    assert!(seen.sockstat.gap().is_some() && seen.nameservers.gap().is_some() && seen.ip_vs.gap().is_some());
}

#[test]
fn a_mount_of_the_host_is_live() {
    let _namespace = Namespace::enter();
    let _incident = incident();
    // `/proc/self/root` is another path of this process's root directory.
    let host = Host::at("/proc/self/root");
    assert!(host.is_live());
    let seen = host.read(&wanted());
    assert_eq!(seen.proxy.mode.get().expect("a mode").value, Mode::Ipvs);
    let ports: Vec<u16> = seen.listeners.get().expect("listeners").iter().map(|socket| socket.local_port).collect();
    assert_eq!(ports, [10249, 30080]);
}

#[test]
fn the_boot_time_is_the_time_in_proc() {
    let booted = Host::at("/").read(&NodeQuery::default()).booted.expect("a live node booted").as_second();
    let stat = std::fs::read_to_string("/proc/stat").expect("readable");
    let told: i64 =
        stat.lines().find_map(|line| line.strip_prefix("btime ")).expect("a time").parse().expect("seconds");
    // Both times are rounded down to seconds.
    assert!((booted - told).abs() <= 1, "{booted} is not {told}");
}
