//! The kernel hides or changes what is read, and processes end while it is read.

use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::{Incident, MODE, SQUATTED, after_looks, finds_it, web};
use crate::{
    agent::{Agent, wait_for},
    proxy::Squatter,
    stage::{Stage, sysctl},
    unprivileged::nobody,
};

/// The finding about both ranges.
const OVERLAP: &str = "portreeve_finding_info{rule=\"ephemeral-range-overlap\"";

/// The same program with the same arguments, in a mount namespace in which a shell has done this before.
fn after(mounts: &str, command: &Command) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--", "sh", "-ec", &format!("{mounts}; exec \"$@\""), "sh"]);
    unshare.arg(command.get_program()).args(command.get_args());
    unshare.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nonexistent");
    unshare
}

/// An agent that can see this much finds the squatter, of which it says this, and its end.
#[track_caller]
fn finds_and_clears(command: Command, stage: Stage, says: &str) {
    let incident = Incident::with(Agent::of(command, &stage, &MODE), stage);
    assert!(finds_it());
    let findings = wait_for("/findings", |text| text.contains("30080"));
    assert!(findings.contains(says), "{says}: {findings}");
    drop(incident.squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
}

/// Takes the uppermost mount of a place away from an agent.
#[track_caller]
fn unmount(agent: &Agent, place: &str) {
    let target = format!("--target={}", agent.pid());
    let umount = Command::new("nsenter").args([&target, "--mount", "--", "umount", place]).status();
    assert!(umount.expect("nsenter of util-linux is installed").success());
}

/// Fault (kernel): /proc hides the processes of others (hidepid=2), and the agent is nobody
/// Does: finds listeners; whose they are is a gap
/// Right again: with a start as root
/// Lost: names of processes
#[test]
fn where_proc_hides_processes_listeners_are_found_all_the_same() {
    let stage = web();
    let (nobody, _place) = nobody(&stage, "agent");
    let sockets = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(stage.path(""), sockets).expect("opened to its socket");
    let look = {
        let _squatter = Squatter::on("0.0.0.0:30080");
        stage.check(&MODE).finding("listener-on-node-port/loses", "web").evidence()
    };
    assert!(look.contains("perl"), "root is told: {look}");
    finds_and_clears(after("mount -t proc -o hidepid=2 proc /proc", &nobody), stage, "\"source\": \"processes\"");
}

/// Fault (kernel): no hierarchy of control groups can be seen
/// Does: finds listeners, and their processes by their descriptors
/// Right again: all the time
/// Lost: names of pods, where it may not look into their processes
#[test]
fn where_control_groups_are_hidden_listeners_are_found_all_the_same() {
    let stage = web();
    let agent = stage.command("agent");
    finds_and_clears(after("mount -t tmpfs nothing /sys/fs/cgroup", &agent), stage, "perl");
}

/// Fault (kernel): a value below /proc/sys is empty
/// Does: it is a gap, and rules that need it are unknown; listeners are found
/// Right again: with the look after it can be read
/// Lost: what hangs on the value
#[test]
fn where_a_setting_cannot_be_read_listeners_are_found_all_the_same() {
    let stage = web();
    let agent = stage.command("agent");
    let incident = {
        let blind = after("mount --bind /dev/null /proc/sys/net/ipv4/ip_local_port_range", &agent);
        Incident::with(Agent::of(blind, &stage, &MODE), stage)
    };
    let metrics = after_looks(1);
    let gap = "portreeve_unknown{rule=\"ephemeral-range-overlap\",source=\"sysctls\"";
    assert!(metrics.contains(gap) && !metrics.contains("portreeve_ephemeral_port_first "), "{metrics}");
    unmount(&incident.agent, "/proc/sys/net/ipv4/ip_local_port_range");
    let metrics = after_looks(1);
    assert!(!metrics.contains(gap) && metrics.contains("portreeve_ephemeral_port_first "), "{metrics}");
    drop(incident.squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
}

/// Fault (kernel): a value below /proc/sys is changed, and changed back
/// Does: raises the finding, and clears it
/// Right again: within four looks
/// Lost: nothing
#[test]
fn a_setting_that_changes_is_seen_within_four_looks() {
    let stage = web().node_port_range("30000-32767");
    let _agent = Agent::start(&stage, &MODE);
    wait_for("/metrics", |text| text.contains("portreeve_ephemeral_port_first 32768"));
    assert!(!after_looks(1).contains(OVERLAP));
    sysctl("net.ipv4.ip_local_port_range", "20000 60999");
    assert!(after_looks(4).contains(OVERLAP));
    sysctl("net.ipv4.ip_local_port_range", "32768 60999");
    assert!(!after_looks(4).contains(OVERLAP));
}

/// Fault (kernel): processes with sockets in the range come and end while they are read
/// Does: counts no panic, holds and reports the others
/// Right again: all the time
/// Lost: those that lived shorter than a look
#[test]
fn processes_that_end_while_they_are_read_hide_none_that_stays() {
    // Each lives as long as it takes to listen on a hundred ports.
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
        let finds = (0..20).all(|_| after_looks(1).contains(SQUATTED));
        is_over.store(true, Ordering::Relaxed);
        assert!(finds, "the one that stays is found by every look");
    });
    let metrics = after_looks(1);
    assert!(
        !metrics.lines().any(|line| line.starts_with("portreeve_panics_total{") && !line.ends_with(" 0.0")),
        "{metrics}"
    );
    drop(squatter);
    wait_for("/metrics", |text| !text.contains(SQUATTED));
}
