//! The kernel hides or changes facts, and processes end while the agent reads these processes.

use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::{Incident, MODE, SQUATTED, after_scans, finds_it, web};
use crate::{
    agent::{Agent, wait_for},
    proxy::Squatter,
    stage::{Stage, sysctl},
    unprivileged::nobody,
};

const OVERLAP: &str = "portreeve_finding_info{rule=\"ephemeral-range-overlap\"";

fn after(mounts: &str, command: &Command) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--", "sh", "-ec", &format!("{mounts}; exec \"$@\""), "sh"]);
    unshare.arg(command.get_program()).args(command.get_args());
    unshare.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nonexistent");
    unshare
}

#[track_caller]
fn finds_and_clears(command: Command, stage: Stage, says: &str) {
    let incident = Incident::with(Agent::of(command, &stage, &MODE), stage);
    assert!(finds_it());
    let findings = wait_for("/findings", |text| text.contains("30080"));
    assert!(findings.contains(says), "{says}: {findings}");
    drop(incident.squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
}

#[track_caller]
fn unmount(agent: &Agent, place: &str) {
    let target = format!("--target={}", agent.pid());
    let umount = Command::new("nsenter").args([&target, "--mount", "--", "umount", place]).status();
    assert!(umount.expect("nsenter of util-linux is installed").success());
}

/// Fault (kernel): /proc hides the processes of other users (hidepid=2), and the agent runs as nobody
/// Does: finds listeners; the owners of listeners are unread
/// Right again: with a start as root
/// Lost: names of processes
#[test]
fn listeners_are_found_even_if_proc_hides_processes() {
    let stage = web();
    let (nobody, _place) = nobody(&stage, "agent");
    let sockets = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(stage.path(""), sockets).expect("access for its socket");
    let scan = {
        let _squatter = Squatter::on("0.0.0.0:30080");
        stage.check(&MODE).finding("listener-on-node-port/loses", "web").evidence()
    };
    assert!(scan.contains("perl"), "root sees it: {scan}");
    finds_and_clears(after("mount -t proc -o hidepid=2 proc /proc", &nobody), stage, "\"source\": \"processes\"");
}

/// Fault (kernel): no hierarchy of control groups is visible
/// Does: finds listeners, and finds processes by descriptors
/// Right again: always
/// Lost: names of pods, if the agent may not read their processes
#[test]
fn listeners_are_found_even_if_control_groups_are_hidden() {
    let stage = web();
    let agent = stage.command("agent");
    finds_and_clears(after("mount -t tmpfs nothing /sys/fs/cgroup", &agent), stage, "perl");
}

/// Fault (kernel): a file in /proc/sys is empty
/// Does: reports the setting as unread, and rules that need the setting as unknown; finds listeners
/// Right again: with the next scan after the value can be read
/// Lost: facts that depend on the value
#[test]
fn listeners_are_found_even_if_a_setting_cannot_be_read() {
    let stage = web();
    let agent = stage.command("agent");
    let incident = {
        let blind = after("mount --bind /dev/null /proc/sys/net/ipv4/ip_local_port_range", &agent);
        Incident::with(Agent::of(blind, &stage, &MODE), stage)
    };
    let metrics = after_scans(1);
    let gap = "portreeve_unknown{rule=\"ephemeral-range-overlap\",source=\"sysctls\"";
    assert!(metrics.contains(gap) && !metrics.contains("portreeve_ephemeral_port_first "), "{metrics}");
    unmount(&incident.agent, "/proc/sys/net/ipv4/ip_local_port_range");
    let metrics = after_scans(1);
    assert!(!metrics.contains(gap) && metrics.contains("portreeve_ephemeral_port_first "), "{metrics}");
    drop(incident.squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
}

/// Fault (kernel): a program changes a setting in /proc/sys, and changes the setting back
/// Does: raises the finding, then clears the finding
/// Right again: within four scans
/// Lost: nothing
#[test]
fn a_changed_setting_is_reported_within_four_scans() {
    let stage = web().node_port_range("30000-32767");
    let _agent = Agent::start(&stage, &MODE);
    wait_for("/metrics", |text| text.contains("portreeve_ephemeral_port_first 32768"));
    assert!(!after_scans(1).contains(OVERLAP));
    sysctl("net.ipv4.ip_local_port_range", "20000 60999");
    assert!(after_scans(4).contains(OVERLAP));
    sysctl("net.ipv4.ip_local_port_range", "32768 60999");
    assert!(!after_scans(4).contains(OVERLAP));
}

/// Fault (kernel): processes with sockets in the range start and end while the agent reads processes
/// Does: reports the other processes, without a panic
/// Right again: always
/// Lost: processes that end within a scan
#[test]
fn processes_that_end_while_they_are_read_hide_no_other_process() {
    // Each of these processes listens on a hundred ports, and then ends at once.
    let script =
        "use IO::Socket::INET; my @all = map { IO::Socket::INET->new(Listen => 1, LocalPort => $_) } 31000..31099";
    let Incident { agent: _agent, squatter, stage: _stage } = Incident::start(&["--interval", "100ms"]);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let ended = Command::new("perl").args(["-e", script]).stdin(Stdio::null()).status();
                assert!(ended.expect("perl runs").success());
            }
        });
        let finds = (0..20).all(|_| after_scans(1).contains(SQUATTED));
        is_over.store(true, Ordering::Relaxed);
        assert!(finds, "every scan finds the process that stays");
    });
    let metrics = after_scans(1);
    assert!(
        !metrics.lines().any(|line| line.starts_with("portreeve_panics_total{") && !line.ends_with(" 0.0")),
        "{metrics}"
    );
    drop(squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
}
