//! `portreeve guard` changes the kernel's real list of reserved ports. Each test has its own network namespace.

use std::{
    collections::BTreeSet,
    fs::{self, File, Permissions},
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::{FileExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, SystemTime},
};

use nix::{
    sys::{
        ptrace,
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use portreeve_facts::PortSet;
use serde_json::{Value, json};

use crate::{
    agent::{exchange_with, until},
    stage::{Stage, portreeve, sysctl},
    unprivileged::nobody,
};

const LIST: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
const PLACE: &str = "127.0.0.1:29518";
const RANGE: &str = "20000 60999";

/// The kernel returns the list only to the first read after the file was opened.
fn list() -> String {
    let mut bytes = vec![0; 1 << 18];
    let length = File::open(LIST).and_then(|mut file| file.read(&mut bytes)).expect("a list");
    String::from_utf8_lossy(&bytes[..length]).trim().to_owned()
}

fn set_list(ports: &str) {
    sysctl("net.ipv4.ip_local_reserved_ports", ports);
}

/// A node whose ephemeral range includes the NodePorts. The node has reserved port 2703 for another program.
fn overlapping() -> Stage {
    sysctl_range(Stage::new().service("web", "TCP", 30080, "").document(POD))
}

fn sysctl_range(stage: Stage) -> Stage {
    sysctl("net.ipv4.ip_local_port_range", RANGE);
    set_list("2703");
    stage
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: storage, namespace: default, uid: uid-storage}\nspec:\n  \
                   nodeName: n1\n  hostNetwork: true\n  containers:\n  - name: storage\n    ports: [{containerPort: 27000}]";

fn command(stage: &Stage, arguments: &[&str]) -> Command {
    let mut command = stage.command("guard");
    command.arg("--state").arg(state(stage)).args(arguments);
    command
}

fn state(stage: &Stage) -> PathBuf {
    stage.path("run/guard.json")
}

/// Returns the exit code, standard output and standard error.
fn guard(stage: &Stage, arguments: &[&str]) -> (i32, String, String) {
    output(&mut command(stage, arguments))
}

fn with_services(stage: &Stage, services: &Path, argument: &str) -> (i32, String, String) {
    let mut command = portreeve();
    command.args(["guard", argument, "--node", "n1", "--services"]).arg(services);
    output(command.arg("--state").arg(state(stage)))
}

fn output(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().expect("portreeve runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// If this value is dropped, the guard ends.
struct Running(Child);

impl Running {
    fn start(stage: &Stage) -> Self {
        Self::with(stage, &[])
    }

    fn with(stage: &Stage, arguments: &[&str]) -> Self {
        let mut command = command(stage, &[&["--listen", PLACE], arguments].concat());
        let log = File::create(stage.path("log")).expect("a log");
        Self(command.stderr(log).spawn().expect("portreeve runs"))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).expect("a pid")), signal).expect("it is ours");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn logged(stage: &Stage, words: &str) -> Vec<String> {
    let log = fs::read_to_string(stage.path("log")).expect("a log");
    log.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
}

#[track_caller]
fn wait_for_line(stage: &Stage, words: &str) -> String {
    until(|| logged(stage, words).into_iter().next()).unwrap_or_else(|| panic!("no {words}: {:?}", logged(stage, "")))
}

#[track_caller]
fn wait_for_metric(name: &str, wanted: f64) {
    until(|| metric(name).filter(|value| *value == wanted))
        .unwrap_or_else(|| panic!("{name} is {:?} and not {wanted}", metric(name)));
}

#[track_caller]
fn wait_for_list(wanted: &str) {
    until(|| (list() == wanted).then_some(())).unwrap_or_else(|| panic!("{} is not {wanted}", list()));
}

fn metric(name: &str) -> Option<f64> {
    let (_, text) = exchange_with(PLACE, "GET", "/metrics", "")?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[test]
fn what_the_node_needs_is_reserved_with_its_reason_and_given_back() {
    let stage = overlapping();
    let (code, plan, _) = guard(&stage, &["--dry-run"]);
    assert_eq!(code, 0, "{plan}");
    assert!(plan.contains("add     27000  port of hostNetwork pod default/storage"), "{plan}");
    assert!(plan.contains("add     30080  NodePort of Service default/web"), "{plan}");
    assert_eq!(list(), "2703", "a dry run changes nothing");
    assert!(!state(&stage).exists(), "a dry run writes no file");
    let (code, out, err) = guard(&stage, &["--once"]);
    assert_eq!((code, list().as_str()), (0, "2703,27000,30080"), "{out}{err}");
    let (code, out, _) = guard(&stage, &["--once"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("reserved: 2 ports that this node needs; added none"), "{out}");
    let (code, out, _) = guard(&stage, &["--release"]);
    assert_eq!((code, list().as_str()), (0, "2703"), "{out}");
    assert!(out.starts_with("removed: 27000,30080\n"), "{out}");
    let (code, out, _) = guard(&stage, &["--release"]);
    assert_eq!((code, list().as_str()), (0, "2703"), "{out}");
}

#[test]
fn a_dry_run_prints_each_change_and_a_guard_may_run_beside_it() {
    let stage = overlapping();
    guard(&stage, &["--once"]);
    let (code, plan, _) = guard(&stage, &["--dry-run", "--leave", "40999"]);
    let room = "remove  27000  more important ports need the room\n\
                no room 27000  port of hostNetwork pod default/storage\n";
    assert_eq!((code, plan.as_str()), (0, room));
    let (_, plan, _) = guard(&stage, &["--dry-run", "--leave", "41000"]);
    let places: Vec<_> = ["no room 30080", "no room 27000"].iter().map(|line| plan.find(line)).collect();
    assert!(places[0].is_some() && places[0] < places[1], "NodePorts first: {plan}");
    let other = stage.path("other.yaml");
    let manifest = fs::read_to_string(stage.manifest()).expect("a manifest");
    fs::write(&other, manifest.replace("30080", "30090")).expect("a manifest");
    let (code, plan, _) = with_services(&stage, &other, "--dry-run");
    let moved = "add     30090  NodePort of Service default/web\nremove  30080  this node no longer needs it\n";
    assert_eq!((code, plan.as_str()), (0, moved));
    let (code, plan, err) = with_services(&stage, Path::new("/nonexistent"), "--dry-run");
    assert!(
        code == 2 && plan.starts_with("nothing to change: ") && err.contains("not all input was read"),
        "{plan}{err}"
    );
    let _running = Running::start(&stage);
    wait_for_metric("portreeve_guard_reserved_ports{reason=\"node_port\"}", 1.0);
    let (code, plan, _) = guard(&stage, &["--dry-run"]);
    assert_eq!((code, plan.as_str()), (0, "nothing to change: 2 ports that this node needs are reserved\n"));
    assert_eq!(list(), "2703,27000,30080", "a dry run changes nothing");
}

#[test]
fn a_dry_run_names_the_range_if_it_has_no_port_of_the_node() {
    let stage = overlapping();
    sysctl("net.ipv4.ip_local_port_range", "32768 60999");
    let (code, plan, err) = guard(&stage, &["--dry-run"]);
    let none = "nothing to change: no known port that this node needs is in ip_local_port_range 32768-60999\n";
    assert_eq!((code, plan.as_str()), (0, none), "{err}");
}

#[test]
fn an_entry_that_was_there_before_or_that_another_program_writes_too_stays() {
    let stage = overlapping();
    set_list("2703,30080");
    guard(&stage, &["--once"]);
    guard(&stage, &["--release"]);
    assert_eq!(list(), "2703,30080", "it was there before");
    set_list("2703");
    guard(&stage, &["--once"]);
    set_list("2703,30000-30100");
    let (_, _, err) = guard(&stage, &["--once"]);
    assert!(err.contains("these ports stay until the next boot: 30080"), "{err}");
    guard(&stage, &["--release"]);
    assert_eq!(list(), "2703,30000-30100", "no hole in the list of another program");

    set_list("2703");
    guard(&stage, &["--once"]);
    set_list("2703,30000-30100");
    let (code, _, err) = guard(&stage, &["--release"]);
    assert_eq!((code, list().as_str()), (2, "2703,30000-30100"), "{err}");
    assert!(err.contains("not every port of the guard was removed"), "{err}");
}

#[test]
fn other_programs_lose_no_entry_while_the_guard_adds() {
    let stage = overlapping();
    // Another program adds as many entries as a busy machine allows, while guards write.
    let others: BTreeSet<u16> = (40000..40400).step_by(2).collect();
    let file = File::options().write(true).open(LIST).expect("the list");
    let mut guards: Vec<Child> = Vec::new();
    for (index, port) in others.iter().enumerate() {
        if index % 50 == 0 {
            let mut command = command(&stage, &["--once"]);
            guards.push(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("portreeve runs"));
        }
        sleep(Duration::from_millis(1));
        file.write_at(format!("{port}\n").as_bytes(), 1).expect("the kernel takes it");
    }
    for guard in &mut guards {
        // If several guards run at the same time, one guard gets the lock, and the other guards end.
        guard.wait().expect("it ends");
    }
    guard(&stage, &["--once"]);
    let all: BTreeSet<u16> = list().parse::<PortSet>().expect("ports").iter().collect();
    assert!(others.is_subset(&all), "{:?} are gone", others.difference(&all).collect::<Vec<_>>());
    assert!([2703, 27000, 30080].iter().all(|port| all.contains(port)), "{all:?}");
    guard(&stage, &["--release"]);
    let all: BTreeSet<u16> = list().parse::<PortSet>().expect("ports").iter().collect();
    assert!(others.is_subset(&all) && all.contains(&2703), "{all:?}");
}

#[test]
fn of_two_guards_with_different_records_one_leaves_and_the_ports_of_the_other_one_stay() {
    let stage = overlapping();
    let other = stage.path("other.yaml");
    let manifest = fs::read_to_string(stage.manifest()).expect("a manifest");
    fs::write(&other, manifest.replace("30080", "30090")).expect("a manifest");
    let second = |argument: &str| {
        let mut command = portreeve();
        command.args(["guard", argument, "--node", "n1", "--services"]).arg(&other);
        output(command.arg("--state").arg(stage.path("run/second.json")))
    };
    let both = || {
        assert_eq!(guard(&stage, &["--once"]).0, 0);
        let (code, out, err) = second("--once");
        assert_eq!((code, list().as_str()), (0, "2703,27000,30080,30090"), "{out}{err}");
    };
    both();
    assert_eq!((second("--release").0, list().as_str()), (0, "2703,27000,30080"), "27000 is of the first one");
    assert_eq!((guard(&stage, &["--release"]).0, list().as_str()), (0, "2703"));
    // The first guard does not know who wrote the second guard's ports. Another program may have overwritten the whole
    // list.
    both();
    let (code, _, err) = guard(&stage, &["--release"]);
    assert_eq!((code, list().as_str()), (2, "2703,27000,30080,30090"), "{err}");
    assert_eq!((second("--release").0, list().as_str()), (0, "2703,27000,30080"));
}

/// All that a guard changes: the list, the record (its state file), and the record's new file.
fn changed(stage: &Stage) -> (String, Option<Vec<u8>>, Option<Vec<u8>>) {
    let state = state(stage);
    (list(), fs::read(&state).ok(), fs::read(format!("{}.new", state.display())).ok())
}

/// Runs a guard, and calls `step` before and after each of its system calls. Kills the guard if `step` returns false.
/// Otherwise returns the guard's exit code.
#[allow(clippy::zombie_processes, reason = "waitpid sees its stops and its end")]
fn traced(stage: &Stage, argument: &str, mut step: impl FnMut() -> bool) -> Option<i32> {
    let guard = command(stage, &[argument]);
    let mut waiting = Command::new("sh");
    waiting.args(["-c", "read -r _; exec \"$@\"", "sh"]).arg(guard.get_program()).args(guard.get_args());
    waiting.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nonexistent");
    let log = File::create(stage.path("log")).expect("a log");
    waiting.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
    let mut child = waiting.spawn().expect("sh runs");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACESYSGOOD).expect("root may trace");
    ptrace::interrupt(pid).expect("it is traced");
    child.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
    loop {
        match waitpid(pid, Some(WaitPidFlag::__WALL)).expect("a child") {
            WaitStatus::Exited(_, code) => return Some(code),
            WaitStatus::Signaled(_, signal, _) => panic!("{signal}"),
            WaitStatus::Stopped(_, signal) if signal != Signal::SIGTRAP => {
                ptrace::syscall(pid, signal).expect("it is stopped");
                continue;
            }
            _ => {}
        }
        if !step() {
            kill(pid, Signal::SIGKILL).expect("it is ours");
            while !matches!(waitpid(pid, None).expect("a child"), WaitStatus::Signaled(..)) {}
            return None;
        }
        ptrace::syscall(pid, None).expect("it is stopped");
    }
}

/// Kills the guard after `changes` changes. Returns false if the guard ends before `changes` changes.
fn killed_after(stage: &Stage, changes: usize, argument: &str) -> bool {
    let (mut seen, mut last) = (0, changed(stage));
    let step = || {
        let now = changed(stage);
        if now != last {
            (seen, last) = (seen + 1, now);
        }
        seen < changes
    };
    traced(stage, argument, step).is_none()
}

#[test]
fn an_entry_that_another_program_adds_at_any_system_call_of_a_write_stays() {
    let stage = overlapping();
    let file = File::options().write(true).open(LIST).expect("the list");
    // The record has the state before the write, until the guard has confirmed the write.
    let is_writing = || fs::read_to_string(state(&stage)).is_ok_and(|record| record.contains("\"before\""));
    // In each run, the test adds one entry, one system call later than in the last run. If every attempt of the guard
    // met a new entry, the guard would give up.
    for at in 0.. {
        let (mut calls, port) = (0, 40_000 + 2 * at);
        let code = traced(&stage, "--once", || {
            if is_writing() {
                if calls == at {
                    file.write_at(format!("{port}\n").as_bytes(), 1).expect("the kernel takes it");
                }
                calls += 1;
            }
            true
        });
        let all = list();
        let wanted = if calls > at { format!("2703,27000,30080,{port}") } else { "2703,27000,30080".to_owned() };
        assert_eq!((code, all), (Some(0), wanted), "after {at} system calls: {:?}", logged(&stage, ""));
        guard(&stage, &["--release"]);
        let left: PortSet = list().parse().expect("ports");
        assert!(left.contains(2703) && left.contains(port) == (calls > at), "after {at} system calls: {left}");
        set_list("2703");
        if calls <= at {
            assert!(at > 10, "{at} system calls");
            break;
        }
    }
}

#[test]
fn one_run_puts_a_list_back_once_and_then_names_what_another_program_removes_again() {
    let stage = overlapping();
    let mut removals = 0;
    let code = traced(&stage, "--once", || {
        if list() != "2703" {
            removals += 1;
            set_list("2703");
        }
        true
    });
    let log = logged(&stage, "");
    assert_eq!((code, removals, list().as_str()), (Some(2), 2, "2703"), "{log:?}");
    let last = log.last().cloned().unwrap_or_default();
    assert_eq!(last, "error: another program removes these ports again: 27000,30080", "{log:?}");
    let (code, out, err) = guard(&stage, &["--once"]);
    assert_eq!((code, list().as_str()), (0, "2703,27000,30080"), "{out}{err}");
}

#[test]
fn a_guard_that_is_killed_at_any_step_leaves_the_entries_of_others_and_its_own_go_in_the_end() {
    let stage = overlapping();
    let mut steps = 0;
    // Each change is one step: the guard creates, writes and renames the record, writes the list, and writes the record
    // again.
    for changes in 1.. {
        if !killed_after(&stage, changes, "--once") {
            break;
        }
        steps = changes;
        let all = list();
        assert!(all == "2703" || all == "2703,27000,30080", "after {changes} changes: {all}");
        if changes % 2 == 0 {
            let (code, out, err) = guard(&stage, &["--once"]);
            assert_eq!((code, list().as_str()), (0, "2703,27000,30080"), "{out}{err}");
        }
        guard(&stage, &["--release"]);
        assert_eq!(list(), "2703", "killed after {changes} changes");
    }
    assert!(steps >= 6, "it was killed at {steps} steps only");
    let mut steps = 0;
    for changes in 1.. {
        guard(&stage, &["--once"]);
        assert_eq!(list(), "2703,27000,30080");
        if !killed_after(&stage, changes, "--release") {
            break;
        }
        steps = changes;
        guard(&stage, &["--release"]);
        assert_eq!(list(), "2703", "a release killed after {changes} changes");
    }
    assert!(steps >= 4, "a release was killed at {steps} steps only");
}

#[test]
fn a_long_removal_that_is_killed_in_the_middle_loses_no_entry() {
    let stage = sysctl_range(Stage::new().document(POD));
    // The entries of the other programs are too long for one write. The entries of the guard are also too long for one
    // write.
    let file = File::options().write(true).open(LIST).expect("the list");
    for first in [50001u16, 51001, 52001] {
        let part: Vec<String> = (0..500).map(|index| (first + 2 * index).to_string()).collect();
        file.write_at(part.join(",").as_bytes(), 1).expect("the kernel takes it");
    }
    let before = list();
    let many = (0..900u16).map(|index| 22000 + 2 * index);
    let stage = many.fold(stage, |stage, port| stage.service(&format!("s{port}"), "TCP", port, ""));
    let (code, out, err) = guard(&stage, &["--once"]);
    assert_eq!(code, 0, "{out}{err}");
    let (whole, mut halves) = (list(), 0);
    for changes in 1.. {
        if !killed_after(&stage, changes, "--release") {
            break;
        }
        let left = list();
        halves += usize::from(left != whole && left != before);
        guard(&stage, &["--once"]);
        assert_eq!(list(), whole, "after {changes} changes");
    }
    assert!(halves > 0, "it was killed within a write");
    guard(&stage, &["--release"]);
    assert_eq!(list(), before);
}

#[test]
fn a_service_that_appears_is_reserved_and_a_stopped_guard_leaves_the_reservation() {
    let stage = overlapping();
    let mut running = Running::start(&stage);
    wait_for_list("2703,27000,30080");
    for second in [&["--once"][..], &["--listen", "127.0.0.1:29519"]] {
        let (code, _, err) = guard(&stage, second);
        assert_eq!(code, 2);
        assert!(err.contains("another guard runs on this node") && err.lines().count() == 1, "{err}");
    }
    let stage = stage.service("new", "TCP", 30090, "");
    stage.manifest();
    wait_for_list("2703,27000,30080,30090");
    // The guard writes the list first, and changes the metric later.
    let two = || metric("portreeve_guard_reserved_ports{reason=\"node_port\"}").filter(|count| *count == 2.0);
    until(two).expect("both NodePorts are counted");
    assert_eq!(exchange_with(PLACE, "GET", "/healthz", "").map(|it| it.1), Some("ok\n".to_owned()));
    running.signal(Signal::SIGTERM);
    assert!(running.0.wait().expect("it ends").success());
    assert_eq!(list(), "2703,27000,30080,30090", "a restart opens no hole");
    let (code, ..) = guard(&stage, &["--release"]);
    assert_eq!((code, list().as_str()), (0, "2703"));
}

#[test]
fn a_list_that_another_program_overwrites_is_put_back_and_counted() {
    let stage = overlapping();
    let _running = Running::start(&stage);
    wait_for_list("2703,27000,30080");
    set_list("2703,9999");
    // If the cluster changes, the guard reads the list at once.
    let stage = stage.service("new", "TCP", 30090, "");
    stage.manifest();
    wait_for_list("2703,9999,27000,30080,30090");
    until(|| (metric("portreeve_guard_overwritten_total")? >= 1.0).then_some(())).expect("it is counted");
}

#[test]
fn a_list_that_is_overwritten_without_end_is_put_back_once_a_minute() {
    let mut stage = overlapping();
    let _running = Running::start(&stage);
    wait_for_list("2703,27000,30080");
    let (mut put_back, mut overwritten) = (0, 0.0);
    for tenth in 0..300 {
        // If the cluster changes, the guard reads the list.
        if tenth % 15 == 0 {
            stage = stage.service(&format!("s{tenth}"), "TCP", 30100 + tenth, "");
            stage.manifest();
        }
        let all: PortSet = list().parse().expect("ports");
        put_back += usize::from(tenth > 0 && all.contains(30080));
        set_list("2703");
        overwritten = metric("portreeve_guard_overwritten_total").unwrap_or_default();
        if overwritten >= 3.0 {
            break;
        }
        sleep(Duration::from_millis(100));
    }
    assert!(overwritten >= 3.0, "{overwritten} runs found ports removed");
    assert_eq!(put_back, 1, "at once the first time");
    assert!(metric("portreeve_guard_missing_ports").is_some_and(|missing| missing >= 2.0));
}

#[test]
fn a_boot_makes_every_entry_one_of_other_programs() {
    let stage = overlapping();
    let record_of_the_last_boot = || {
        let text = fs::read_to_string(state(&stage)).expect("a record");
        let mut record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        record["bootId"] = "another".into();
        fs::write(state(&stage), record.to_string()).expect("a file");
    };
    guard(&stage, &["--once"]);
    record_of_the_last_boot();
    let (code, out, err) = guard(&stage, &["--release"]);
    assert_eq!((code, list().as_str()), (0, "2703,27000,30080"), "the boot wrote it: {out}{err}");
    assert!(out.starts_with("removed: none\n") && !state(&stage).exists(), "{out}{err}");

    set_list("2703");
    guard(&stage, &["--once"]);
    record_of_the_last_boot();
    set_list("2703,27000");
    let (code, out, err) = guard(&stage, &["--once"]);
    assert_eq!((code, list().as_str()), (0, "2703,27000,30080"), "{out}{err}");
    let (code, ..) = guard(&stage, &["--release"]);
    assert_eq!((code, list().as_str()), (0, "2703,27000"), "what this boot added alone");
}

/// Makes a connection from `port`: for a moment, the ephemeral port range has only this port.
fn connection_on(port: u16, server: &TcpListener) -> (TcpStream, TcpStream) {
    sysctl("net.ipv4.ip_local_port_range", &format!("{port} {port}"));
    let client = TcpStream::connect(server.local_addr().expect("an address")).expect("it listens");
    assert_eq!(client.local_addr().expect("an address").port(), port);
    sysctl("net.ipv4.ip_local_port_range", RANGE);
    (client, server.accept().expect("a connection").0)
}

#[test]
fn connections_that_have_the_port_already_are_named_and_counted_until_they_end() {
    let stage = overlapping();
    let server = TcpListener::bind("127.0.0.1:19999").expect("the port is free");
    let of_the_pod = TcpListener::bind("127.0.0.1:27000").expect("the port is free");
    let outgoing = connection_on(30080, &server);
    let _accepted = connection_on(40000, &of_the_pod);
    let (code, out, err) = guard(&stage, &["--once"]);
    assert_eq!((code, list().as_str()), (0, "2703,27000,30080"), "{out}{err}");
    let words = "outgoing connections keep 1 of these ports until they end: 30080/tcp to 127.0.0.1:19999\n";
    assert!(err.contains(words), "{err}");
    guard(&stage, &["--release"]);

    let mut running = Running::start(&stage);
    let line = wait_for_line(&stage, "outgoing connections have reserved ports, and keep them until they end");
    assert!(line.contains("ports=1") && line.contains("30080/tcp to 127.0.0.1:19999"), "{line}");
    wait_for_metric("portreeve_guard_connection_ports", 1.0);
    // A guard that starts again adds no port, but finds the connection.
    running.signal(Signal::SIGTERM);
    assert!(running.0.wait().expect("it ends").success());
    let _running = Running::start(&stage);
    wait_for_metric("portreeve_guard_connection_ports", 1.0);
    drop(outgoing);
    // If a port is new, the guard searches for connections again.
    let stage = stage.service("new", "TCP", 30090, "");
    stage.manifest();
    wait_for_metric("portreeve_guard_connection_ports", 0.0);
    assert_eq!(logged(&stage, "outgoing connections have").len(), 1, "each connection is named once");
}

#[test]
fn a_running_guard_that_cannot_write_says_so_once_and_records_nothing() {
    let stage = overlapping();
    let at = read_only_sysctls(&stage);
    let _running = Running::with(&stage, &["--sysctls", &at]);
    wait_for_line(&stage, "wanted a writable file and the user root");
    let last_success = "portreeve_guard_last_success_timestamp_seconds";
    wait_for_metric(last_success, 0.0);
    // If the cluster changes, the guard tries again to write.
    let stage = stage.service("new", "TCP", 30090, "");
    stage.manifest();
    sleep(Duration::from_secs(3));
    assert_eq!(logged(&stage, "wanted a writable file").len(), 1, "{:?}", logged(&stage, ""));
    assert_eq!((list().as_str(), metric(last_success)), ("2703", Some(0.0)));
    assert!(!state(&stage).exists(), "nothing is half done");
    mount(&["-o", "remount,bind,rw", &at]);
    let stage = stage.service("newer", "TCP", 30091, "");
    stage.manifest();
    wait_for_list("2703,27000,30080,30090-30091");
    until(|| metric(last_success).filter(|at| *at > 0.0)).expect("it is counted");
    unmount(&at);
}

#[test]
fn a_running_guard_counts_and_names_the_ports_that_do_not_fit() {
    let stage = overlapping();
    let _running = Running::with(&stage, &["--leave", "40999"]);
    wait_for_list("2703,30080");
    wait_for_metric("portreeve_guard_left_out_ports", 1.0);
    let line = wait_for_line(&stage, "not reserved: too few ports would stay for outgoing connections");
    assert!(line.contains("27000 (port of hostNetwork pod default/storage)"), "{line}");
}

fn mount(arguments: &[&str]) {
    assert!(Command::new("mount").args(arguments).status().expect("mount runs").success());
}

fn unmount(at: &str) {
    assert!(Command::new("umount").args(["--lazy", at]).status().expect("umount runs").success());
}

fn read_only_sysctls(stage: &Stage) -> String {
    let folder = stage.path("sys");
    fs::create_dir(&folder).expect("a directory");
    let at = folder.to_str().expect("UTF-8").to_owned();
    mount(&["--bind", "/proc/sys/net", &at]);
    mount(&["-o", "remount,bind,ro", &at]);
    at
}

#[test]
fn what_the_guard_cannot_do_is_one_clear_line_and_changes_nothing() {
    let stage = overlapping();
    let line = |arguments: &[&str], wanted: &str| {
        let (code, out, err) = guard(&stage, arguments);
        let last = err.lines().last().unwrap_or_default();
        assert!(code == 2 && last.starts_with("error: ") && last.contains(wanted), "{arguments:?}: {code} {out}{err}");
        assert_eq!(list(), "2703", "{arguments:?}");
    };
    line(&["--once", "--sysctls", "/nonexistent"], "it cannot reserve ports");
    let at = read_only_sysctls(&stage);
    line(&["--once", "--sysctls", &at], "wanted a writable file and the user root");
    unmount(&at);
    assert!(!state(&stage).exists(), "nothing is half done");
    let left_out =
        "too few ports would stay for outgoing connections: 30080 (NodePort of Service default/web), 27000 (";
    line(&["--once", "--leave", "41000"], left_out);
    let write = |text: &str| {
        fs::write(state(&stage), text).expect("a file");
        fs::set_permissions(state(&stage), Permissions::from_mode(0o644)).expect("it is ours");
    };
    write("{");
    let (code, _, err) = guard(&stage, &["--dry-run"]);
    assert!(code == 0 && err.contains("the guard's record is malformed (EOF"), "{code} {err}");
    let (code, _, err) = guard(&stage, &["--release"]);
    assert_eq!((code, list().as_str()), (2, "2703"));
    assert!(err.contains("the guard's record is malformed (EOF"), "{err}");
    assert!(err.contains("guard.json.malformed"), "{err}");
    assert!(err.contains("not every port of the guard was removed"), "{err}");
    assert_eq!(fs::read_to_string(stage.path("run/guard.json.malformed")).expect("it is kept"), "{");
    write("{}");
    chown(state(&stage), Some(1001), None).expect("root may do this");
    for argument in ["--once", "--dry-run", "--release"] {
        line(
            &[argument],
            "guard.json: it belongs to user 1001 and has mode 644; wanted a file that only root can write",
        );
    }
    fs::remove_file(state(&stage)).expect("removed");
    let lock = stage.path("run/guard.json.lock");
    chown(&lock, Some(1001), None).expect("root may do this");
    line(&["--once"], "guard.json.lock: it belongs to user 1001");
    fs::remove_file(&lock).expect("removed");
    let with_all = command(&stage, &["--once"]);
    let mut without = Command::new("setpriv");
    without.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(with_all.get_program()).args(with_all.get_args());
    let (code, out, err) = output(without.env_remove("KUBECONFIG"));
    assert_eq!((code, list().as_str()), (0, "2703,27000,30080"), "root needs no capability: {out}{err}");
    let (code, _, err) = output(portreeve().args(["guard", "--dry-run", "--snapshot", "x.json"]));
    assert_eq!(code, 64, "{err}");
    let (code, _, err) = guard(&stage, &["--once", "--allow=system.slice"]);
    assert!(code == 64 && err.contains("add --bind=report or --bind=refuse"), "{code} {err}");
}

#[cfg(not(feature = "bind-hook"))]
#[test]
fn a_build_without_the_bind_hook_names_the_build_that_has_one_and_reserves() {
    let stage = overlapping();
    let _running = Running::with(&stage, &["--bind=refuse"]);
    wait_for_list("2703,27000,30080");
    let lines = logged(&stage, "bind hook");
    assert!(lines.len() == 1 && lines[0].contains("or build with --features bind-hook"), "{lines:?}");
    assert_eq!(metric("portreeve_guard_bind_hook{mode=\"refuse\"}"), Some(0.0));
    for other in ["--once", "--dry-run", "--release"] {
        let (code, _, err) = guard(&stage, &["--bind=report", other]);
        assert!(code == 64 && err.contains("cannot be used with"), "{other}: {code} {err}");
    }
}

#[test]
fn unread_services_shrink_nothing() {
    let stage = overlapping();
    guard(&stage, &["--once"]);
    assert_eq!(list(), "2703,27000,30080");
    let (code, _, err) = with_services(&stage, Path::new("/nonexistent"), "--once");
    assert_eq!((code, list().as_str()), (2, "2703,27000,30080"), "{err}");
    assert!(err.contains("not all input was read"), "{err}");
}

#[test]
fn no_port_of_a_pod_is_removed_if_this_host_may_not_be_the_named_node() {
    let stage = overlapping();
    guard(&stage, &["--once"]);
    assert_eq!(list(), "2703,27000,30080");
    let mut of_another_node = portreeve();
    of_another_node.args(["guard", "--once", "--node", "n2", "--services"]).arg(stage.manifest());
    let (code, _, err) = output(of_another_node.arg("--state").arg(state(&stage)));
    assert_eq!((code, list().as_str()), (2, "2703,27000,30080"), "{err}");
    assert!(err.contains("this host may be another node"), "{err}");
}

/// Another program adds the NodePort of the guard. This changes no port of the list.
fn another_program_adds_the_node_port() {
    let file = File::options().write(true).open(LIST).expect("the list");
    file.write_at(b"30080\n", 1).expect("the kernel takes it");
}

#[test]
fn a_port_that_another_program_adds_too_while_no_guard_runs_leaves_with_the_guard() {
    let stage = overlapping();
    guard(&stage, &["--once"]);
    another_program_adds_the_node_port();
    assert_eq!((guard(&stage, &["--release"]).0, list().as_str()), (0, "2703"));
}

#[test]
fn a_port_that_another_program_adds_too_while_a_guard_runs_stays() {
    let stage = overlapping();
    let node_ports = "portreeve_guard_reserved_ports{reason=\"node_port\"}";
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let mut running = Running::start(&stage);
        // The guard changes the metric after it has written the list and has begun to watch it.
        wait_for_metric(node_ports, 1.0);
        another_program_adds_the_node_port();
        running.signal(signal);
        assert!(running.0.wait().expect("it ends").success(), "{signal}");
        let (code, out, err) = guard(&stage, &["--release"]);
        assert_eq!((code, list().as_str()), (0, "2703,27000,30080"), "recorded at the end, {signal}: {out}{err}");
        set_list("2703");
    }

    let running = Running::start(&stage);
    wait_for_metric(node_ports, 1.0);
    another_program_adds_the_node_port();
    let stage = stage.service("new", "TCP", 30090, "");
    stage.manifest();
    wait_for_line(&stage, "another program wrote the list; these ports stay reserved until the next boot");
    wait_for_metric(node_ports, 2.0);
    drop(running);
    assert_eq!(list(), "2703,27000,30080,30090");
    let (code, out, err) = guard(&stage, &["--release"]);
    assert_eq!((code, list().as_str()), (0, "2703,27000,30080"), "recorded in a run: {out}{err}");
}

#[test]
fn a_guard_that_nohup_started_stays_after_a_hangup() {
    let stage = overlapping();
    let guard = command(&stage, &["--listen", PLACE]);
    let mut nohup = Command::new("nohup");
    nohup.arg(guard.get_program()).args(guard.get_args()).stdin(Stdio::null()).stdout(Stdio::null());
    let log = File::create(stage.path("log")).expect("a log");
    let running = Running(nohup.stderr(log).spawn().expect("the program nohup"));
    let node_ports = "portreeve_guard_reserved_ports{reason=\"node_port\"}";
    wait_for_metric(node_ports, 1.0);
    running.signal(Signal::SIGHUP);
    let stage = stage.service("new", "TCP", 30090, "");
    stage.manifest();
    wait_for_metric(node_ports, 2.0);
    running.signal(Signal::SIGTERM);
}

#[test]
fn a_node_whose_guard_runs_is_covered_by_the_node_ports_of_its_services() {
    let stage = Stage::new().service("web", "TCP", 30080, "").document(POD).node_port_range("30000-32767");
    let stage = sysctl_range(stage);
    // If `--state` names no file, a guard has its record in `/run`.
    assert!(Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]).status().expect("mount runs").success());
    let check = || {
        let (code, out, err) = output(stage.command("reserve").args(["--check", "-o", "json"]));
        let document: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
        let node = document["nodes"][0].clone();
        (code, document["covered"].clone(), node["guard"].clone(), node["notReserved"].clone())
    };
    assert_eq!((check().0, check().2), (1, Value::Null), "no guard");
    let guard = |arguments: &[&str]| {
        let mut command = stage.command("guard");
        command.args(arguments);
        command
    };
    assert_eq!(output(&mut guard(&["--once"])).0, 0);
    assert_eq!(list(), "2703,27000,30080");
    let ours = json!([{"first": 27000, "last": 27000}, {"first": 30080, "last": 30080}]);
    let (code, covered, known, _) = check();
    let ended = json!({"running": false, "source": "record", "reserved": ours});
    assert_eq!((code, covered, known), (1, json!(false), ended), "it ended");
    let running = Running(guard(&[]).stderr(Stdio::null()).spawn().expect("portreeve runs"));
    until(|| (check().2["running"] == true).then_some(())).expect("it runs");
    let (code, covered, known, lacks) = check();
    assert_eq!((code, covered, lacks), (0, json!(true), json!([])));
    assert_eq!(known, json!({"running": true, "source": "record", "reserved": ours}));
    let (_, text, _) = output(stage.command("reserve").arg("--check"));
    assert!(text.starts_with("covered  node n1\n"), "{text}");
    assert!(text.contains("\n  guard                    runs; it reserved 2 of the reserved ports\n"), "{text}");
    let (mut nobody, _place) = nobody(&stage, "reserve");
    let (code, text, _) = output(nobody.arg("--check"));
    assert!(
        code == 2 && text.starts_with("perhaps not covered  node n1\n"),
        "only root can read the lock: {code} {text}"
    );
    // A guard that is stopped with SIGSTOP cannot put a port back.
    running.signal(Signal::SIGSTOP);
    set_list("2703,27000");
    let (code, covered, _, lacks) = check();
    assert_eq!((code, covered, lacks), (1, json!(false), json!([{"first": 30080, "last": 30080}])));
    set_list("2703,27000,30080");
    assert_eq!(check().0, 0, "a pause of three minutes is possible");
    let lock = File::open("/run/portreeve/guard.json.lock").expect("a lock");
    lock.set_modified(SystemTime::now() - Duration::from_secs(600)).expect("it is ours");
    assert_eq!((check().0, check().2["running"].clone()), (1, json!(false)), "nobody follows new Services");
    let (_, text, _) = output(stage.command("reserve").arg("--check"));
    let words = "holds its lock but has had no successful run for 10 minutes; it reserved";
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_list_that_no_single_write_takes_is_read_and_compared_as_a_whole() {
    let stage = sysctl_range(Stage::new().document(POD).node_port_range("30000-32767"));
    let reserve = |arguments: &[&str]| output(stage.command("reserve").args(arguments));
    let file = File::options().write(true).open(LIST).expect("the list");
    // The kernel's text of the list first needs one page of memory, and in the end more than ten pages.
    for (first, entries) in [(50_001u16, 683), (40_001, 683), (33_001, 3400), (20_001, 3400)] {
        for part in (0..entries).collect::<Vec<u16>>().chunks(600) {
            let part: Vec<String> = part.iter().map(|index| (first + 2 * index).to_string()).collect();
            file.write_at(part.join(",").as_bytes(), 1).expect("the kernel takes it");
        }
        let (code, out, err) = reserve(&["--check", "-o", "json"]);
        assert_eq!(code, 1, "{err}");
        let document: Value = serde_json::from_str(&out).expect("JSON");
        let ranges = document["nodes"][0]["ipLocalReservedPorts"].as_array().expect("ranges");
        assert_eq!(ranges.len(), list().split(',').count());
        let (code, out, err) = reserve(&[]);
        assert!(code == 2 && out.is_empty() && err.contains("the kernel takes at most 4094 at once"), "{out}{err}");
    }
    file.write_at(b"27000,30000-32767", 1).expect("the kernel takes it");
    let (code, out, err) = reserve(&["--check"]);
    assert!(code == 0 && out.starts_with("covered  node n1\n"), "{out}{err}");
}

#[test]
fn a_guard_of_another_network_namespace_leaves_the_record_to_this_one() {
    let stage = overlapping();
    assert_eq!(guard(&stage, &["--once"]).0, 0);
    let record = fs::read(state(&stage)).expect("a record");
    for argument in ["--once", "--dry-run", "--release"] {
        let elsewhere = command(&stage, &[argument]);
        let mut unshare = Command::new("unshare");
        unshare.arg("--net").arg(elsewhere.get_program()).args(elsewhere.get_args()).env_remove("KUBECONFIG");
        let (code, out, err) = output(&mut unshare);
        assert!(code == 2 && err.contains("is of network namespace net:["), "{argument}: {code} {out}{err}");
        assert_eq!(fs::read(state(&stage)).expect("a record"), record, "{argument}");
    }
    assert_eq!((guard(&stage, &["--release"]).0, list().as_str()), (0, "2703"));
}

#[test]
fn a_running_guard_takes_its_lock_again_if_the_file_was_deleted_and_no_second_one_writes() {
    let stage = overlapping();
    let lock = stage.path("run/guard.json.lock");
    let _running = Running::start(&stage);
    wait_for_list("2703,27000,30080");
    fs::remove_file(&lock).expect("removed");
    let stage = stage.service("new", "TCP", 30090, "");
    stage.manifest();
    wait_for_list("2703,27000,30080,30090");
    let (code, _, err) = guard(&stage, &["--once"]);
    assert!(code == 2 && err.contains("another guard runs on this node"), "{code} {err}");

    // A second guard gets the lock of the new file first.
    fs::remove_file(&lock).expect("removed");
    let second = portreeve_guard::Files::lock(state(&stage)).expect("the lock of a new file");
    let stage = stage.service("newer", "TCP", 30091, "");
    stage.manifest();
    wait_for_line(&stage, "another guard runs on this node");
    assert_eq!(list(), "2703,27000,30080,30090", "it writes no more");
    drop(second);
    let stage = stage.service("newest", "TCP", 30092, "");
    stage.manifest();
    wait_for_list("2703,27000,30080,30090-30092");
}

/// Makes connections, and returns how many of them have a client port in `ports`. The kernel chooses each client port.
fn on(ports: &BTreeSet<u16>, connections: usize) -> usize {
    let server = TcpListener::bind("127.0.0.1:19999").expect("the port is free");
    let place = server.local_addr().expect("an address");
    let held: Vec<_> = (0..connections)
        .map(|_| {
            let client = TcpStream::connect(place).expect("it listens");
            let (accepted, _) = server.accept().expect("a connection");
            (client, accepted)
        })
        .collect();
    held.iter().filter(|(client, _)| ports.contains(&client.local_addr().expect("an address").port())).count()
}

#[test]
fn no_connection_that_began_after_the_reservation_has_a_node_port() {
    let stage = Stage::new().document(POD);
    sysctl("net.ipv4.ip_local_port_range", "30000 30799");
    let ports: BTreeSet<u16> = (0..200).map(|index| 30000 + 4 * index).collect();
    let stage = ports.iter().fold(stage, |stage, port| stage.service(&format!("s{port}"), "TCP", *port, ""));
    let without = on(&ports, 300);
    assert!(without > 30, "{without} of 300: the range overlaps");
    let (code, out, err) = guard(&stage, &["--once", "--leave", "100"]);
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(on(&ports, 300), 0);
    assert!(Path::new(&state(&stage)).exists());
}
