//! Pods with their own network. Each pod is a process in a control group. The name of the group has kubelet's format.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::{near_misses::expect_silent, stage::Stage, unprivileged::nobody};

/// A uid for each test, because parallel tests see the processes of each other.
const UIDS: [&str; 5] = [
    "5c1f9c52-93ab-4a5e-9f0e-6b2a8c4d1e42",
    "5c1f9c52-93ab-4a5e-9f0e-6b2a8c4d1e43",
    "5c1f9c52-93ab-4a5e-9f0e-6b2a8c4d1e44",
    "5c1f9c52-93ab-4a5e-9f0e-6b2a8c4d1e46",
    "5c1f9c52-93ab-4a5e-9f0e-6b2a8c4d1e47",
];
const CONTAINER: &str = "5f7bb1c1d5b0cd8ba6bd0d2d3c1b1cd6a1c0a3b1e5e2b97bb0e2ad9c4d5e6f70";

/// The status of a container that ends again and again, as kubelet writes it.
const CRASHES: &str =
    "[{name: c, ready: false, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}}]";
const READY: &str = "[{name: c, ready: true, state: {running: {}}}]";

/// A process in a control group. If this value is dropped, the process ends.
pub(crate) struct Grouped {
    process: Child,
    groups: Vec<PathBuf>,
}

impl Grouped {
    /// A sidecar in a pod's own network. The sidecar has two connections to one server: from `port` and from port
    /// 50000.
    fn connected_from(port: u16, uid: &str) -> Self {
        let perl = r#"
            my $server = IO::Socket::INET->new(Listen => 9, LocalAddr => "127.0.0.1", LocalPort => 8080) or die;
            my @kept = map { IO::Socket::INET->new(PeerAddr => "127.0.0.1:8080", LocalPort => $_) or die } @ARGV;
            $| = 1; print "ready\n"; <STDIN>;"#;
        Self::apart(uid, perl, &format!("{port} 50000"))
    }

    /// A program in a pod's own network with `count` connections to one server. The kernel chooses their ports from 250
    /// ports.
    fn with_connections(count: u16, uid: &str) -> Self {
        let perl = r#"
            open(my $range, ">", "/proc/sys/net/ipv4/ip_local_port_range") or die;
            print $range "40000 40249\n"; close $range or die;
            my $server = IO::Socket::INET->new(Listen => 9, LocalAddr => "127.0.0.1", LocalPort => 443) or die;
            my @kept = map { my $c = IO::Socket::INET->new("127.0.0.1:443") or die; ($c, $server->accept()) } 1..$ARGV[0];
            $| = 1; print "ready\n"; <STDIN>;"#;
        Self::apart(uid, perl, &count.to_string())
    }

    fn apart(uid: &str, perl: &str, arguments: &str) -> Self {
        let run = format!("exec perl -MIO::Socket::INET -e \"$0\" {arguments}");
        Self::start(&in_pod(uid), &format!("exec unshare --net sh -c 'ip link set lo up && {run}' \"$0\""), perl)
    }

    /// A listener in the network of the calling thread. `group` is a path below a control group of the test.
    pub(crate) fn listening(address: &str, group: &str) -> Self {
        let perl = r#"
            my $server = IO::Socket::INET->new(Listen => 9, LocalAddr => @ARGV) or die;
            $| = 1; print "ready\n"; <STDIN>;"#;
        Self::start(group, &format!("exec perl -MIO::Socket::INET -e \"$0\" {address}"), perl)
    }

    /// `command` is a shell command with the text of `perl` in `$0`.
    fn start(group: &str, command: &str, perl: &str) -> Self {
        let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let mount = places.into_iter().find(|place| place.join("cgroup.controllers").exists());
        let mount = mount.expect("a cgroup2 hierarchy is mounted");
        let ours = mount.join(format!("portreeve-{}-in-pods", std::process::id()));
        let group = ours.join(group);
        fs::create_dir_all(&group).expect("cgroups can be made: run these tests as root");
        let script = format!("echo $$ > {}/cgroup.procs && {command}", group.display());
        let mut process = Command::new("sh")
            .args(["-c", &script, perl])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh is installed");
        let mut ready = String::new();
        BufReader::new(process.stdout.as_mut().expect("a pipe")).read_line(&mut ready).expect("a line");
        assert_eq!(ready, "ready\n", "unshare, ip and perl are installed");
        let groups = group.ancestors().take_while(|it| *it != mount).map(PathBuf::from).collect();
        Self { process, groups }
    }
}

impl Drop for Grouped {
    fn drop(&mut self) {
        self.process.kill().expect("a child that can be killed");
        self.process.wait().expect("a child that can be waited for");
        for group in &self.groups {
            // A killed process leaves its control group a moment later, so the removal is repeated.
            let removed = (0..500).any(|_| {
                fs::remove_dir(group).is_ok() || {
                    thread::sleep(Duration::from_millis(20));
                    false
                }
            });
            assert!(removed, "{} has processes", group.display());
        }
    }
}

/// The control group of a container of the pod with this uid.
pub(crate) fn in_pod(uid: &str) -> String {
    format!("kubepods/besteffort/pod{uid}/{CONTAINER}")
}

fn server(statuses: &str, uid: &str) -> Stage {
    Stage::new().document(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: api-0, namespace: sky, uid: {uid}}}\nspec:\n  nodeName: n1\n  \
         containers: [{{name: c, ports: [{{containerPort: 46580}}]}}]\n\
         status: {{phase: Running, podIPs: [{{ip: 10.244.0.7}}], containerStatuses: {statuses}}}"
    ))
}

#[test]
fn a_connection_of_a_crashing_pod_with_the_port_of_its_server_is_reported() {
    let (stage, _sidecar) = (server(CRASHES, UIDS[0]), Grouped::connected_from(46580, UIDS[0]));
    let scan = stage.check(&["--proxy-mode", "iptables"]);
    let finding = scan.finding("connection-on-port/blocks-in-pod", "api-0");
    assert_eq!(finding.verdict(), "warning");
    let summary = finding.0["summary"].as_str().expect("a sentence");
    assert!(summary.contains("process perl has an outgoing connection from port 46580/tcp"), "{summary}");
    assert!(finding.evidence().contains(CONTAINER), "{}", finding.evidence());
    assert!(finding.remedy().contains("net.ipv4.ip_local_reserved_ports"), "{}", finding.remedy());
}

#[test]
fn a_connection_of_a_healthy_pod_or_from_another_port_blocks_no_server() {
    let rule = "connection-on-port/blocks-in-pod";
    let (well, sidecar) = (server(READY, UIDS[1]), Grouped::connected_from(46580, UIDS[1]));
    expect_silent(&well.check(&["--proxy-mode", "iptables"]), rule, "the pod is ready");
    drop((well, sidecar));
    let (crashes, _sidecar) = (server(CRASHES, UIDS[1]), Grouped::connected_from(46581, UIDS[1]));
    expect_silent(&crashes.check(&["--proxy-mode", "iptables"]), rule, "a connection has another port");
}

#[test]
fn the_owner_of_a_port_in_a_pod_is_its_listener_or_its_connection_and_unknown_without_the_right() {
    let (well, _sidecar) = (server(READY, UIDS[2]), Grouped::connected_from(46580, UIDS[2]));
    let ask = |mut command: Command, port: &str| {
        command.args([port, "--pod", "sky/api-0", "--proxy-mode", "iptables"]);
        let output = command.output().expect("the binary runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, text, errors) = ask(well.command("owner"), "46580");
    assert_eq!(code, Some(0), "{text}{errors}");
    assert!(
        text.starts_with("46580/tcp in the network of pod sky/api-0\n  no process listens on this port\n"),
        "{text}"
    );
    assert!(text.contains("process perl") && text.contains("-> 127.0.0.1:8080"), "{text}");
    let (code, text, _) = ask(well.command("owner"), "8080/tcp");
    assert!(code == Some(0) && text.contains("1  listener, process perl"), "{text}");
    let (code, text, _) = ask(well.command("owner"), "46581");
    assert!(code == Some(0) && text.contains("no process listens on this port") && !text.contains("perl"), "{text}");
    let (command, _place) = nobody(&well, "owner");
    let (code, _, errors) = ask(command, "46580");
    assert_eq!(code, Some(2));
    assert!(errors.contains("is not known") && errors.contains("CAP_SYS_PTRACE"), "{errors}");
}

fn of_250_ports(uid: &str) -> Stage {
    Stage::new().document(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: crawler, namespace: sky, uid: {uid}}}\nspec:\n  nodeName: n1\n  \
         securityContext: {{sysctls: [{{name: net.ipv4.ip_local_port_range, value: \"40000 40249\"}}]}}\n  \
         containers: [{{name: c}}]\nstatus: {{phase: Running, podIPs: [{{ip: 10.244.0.7}}], containerStatuses: {READY}}}"
    ))
}

#[test]
fn a_pod_that_uses_most_ports_of_its_own_range_is_reported_with_the_range() {
    let (stage, _pod) = (of_250_ports(UIDS[3]), Grouped::with_connections(210, UIDS[3]));
    let scan = stage.check(&["--proxy-mode", "iptables"]);
    let finding = scan.finding("ephemeral-ports-near-exhaustion/pod", "crawler");
    assert_eq!(finding.verdict(), "warning");
    let evidence = finding.evidence();
    assert!(evidence.contains("local ports used = 210 of 250"), "{evidence}");
    assert!(finding.remedy().contains("net.ipv4.ip_local_port_range"), "{}", finding.remedy());
}

#[test]
fn a_pod_that_uses_half_of_its_own_range_is_silent() {
    let (stage, _pod) = (of_250_ports(UIDS[4]), Grouped::with_connections(125, UIDS[4]));
    expect_silent(&stage.check(&["--proxy-mode", "iptables"]), "ephemeral-ports-near-exhaustion/pod", "half of 250");
}
