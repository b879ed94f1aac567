//! The program under seccomp filters, as a container runtime, systemd or a sandbox sets them.

use std::{os::unix::process::ExitStatusExt as _, process::Command};

use nix::{
    errno::Errno,
    libc::{
        AF_NETLINK, NETLINK_NETFILTER, O_CREAT, O_RDWR, O_TRUNC, O_WRONLY, SYS_bind, SYS_listen, SYS_openat, SYS_prctl,
        SYS_recvfrom, SYS_sendto, SYS_socket, c_int, c_long,
    },
    sys::signal::Signal,
};

use crate::{
    agent::PLACE,
    proxy::{Squatter, StandIn},
    stage::{Scan, Stage},
};

/// A perl program that installs the seccomp filter in its first argument, and then runs the other arguments. The
/// numbers are `PR_SET_NO_NEW_PRIVS`, `PR_SET_SECCOMP` and `SECCOMP_MODE_FILTER` (prctl(2)).
const LAUNCHER: &str = r#"
    my ($prctl, $filter) = (shift, pack("H*", shift));
    my $program = pack("S x6 P", length($filter) / 8, $filter);
    syscall($prctl, 38, 1, 0, 0, 0) == 0 or die $!;
    syscall($prctl, 22, 2, $program) == 0 or die $!;
    exec @ARGV or die $!;
"#;

/// The filter's action that ends the program at a call (`SECCOMP_RET_KILL_PROCESS`).
const KILL: u32 = 0x8000_0000;
const TO_WRITE: c_int = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;

#[derive(Clone, Copy)]
enum Argument {
    Any,
    /// The argument with this number has this value.
    Is(u32, c_int),
    /// The argument with this number has at least one of these bits.
    Has(u32, c_int),
}

/// A filter that makes a call fail with an error. With `argument`, only calls with this first argument fail.
fn refusing(call: c_long, argument: Option<c_int>, errno: Errno) -> String {
    filter(call, argument.map_or(Argument::Any, |value| Argument::Is(0, value)), 0x0005_0000 | errno as u32)
}

/// A filter with an action for some calls (seccomp(2), classic BPF over `struct seccomp_data`).
fn filter(call: c_long, argument: Argument, action: u32) -> String {
    let call = u32::try_from(call).expect("a number");
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP_IF_SET: u16 = 0x45;
    const RETURN: u16 = 0x06;
    let mut program = vec![(LOAD, 0, 0, 0)];
    let condition = match argument {
        Argument::Any => None,
        Argument::Is(index, value) => Some((index, JUMP_IF_EQUAL, value)),
        Argument::Has(index, bits) => Some((index, JUMP_IF_SET, bits)),
    };
    match condition {
        None => program.push((JUMP_IF_EQUAL, 0, 1, call)),
        Some((index, jump, value)) => program.extend([
            (JUMP_IF_EQUAL, 0, 3, call),
            (LOAD, 0, 0, 16 + 8 * index),
            (jump, 0, 1, value.cast_unsigned()),
        ]),
    }
    program.extend([(RETURN, 0, 0, action), (RETURN, 0, 0, 0x7fff_0000)]);
    let encoded = program.iter().flat_map(|(code, yes, no, value): &(u16, u8, u8, u32)| {
        [&code.to_ne_bytes()[..], &[*yes, *no], &value.to_ne_bytes()].concat()
    });
    encoded.map(|byte| format!("{byte:02x}")).collect()
}

fn check(stage: &Stage, filter: &str, arguments: &[&str]) -> Scan {
    check_by(&[], stage, filter, arguments)
}

fn check_by(program: &[&str], stage: &Stage, filter: &str, arguments: &[&str]) -> Scan {
    Scan::of(under(filter, program, &stage.command("check")).args(["-o", "json"]).args(arguments))
}

/// The command `unfiltered` under a seccomp filter. If `program` is not empty, `program` starts this command.
fn under(filter: &str, program: &[&str], unfiltered: &Command) -> Command {
    let mut launcher = Command::new("perl");
    launcher.args(["-e", LAUNCHER, &SYS_prctl.to_string(), filter]).args(program).arg(unfiltered.get_program());
    launcher.args(unfiltered.get_args());
    for (name, value) in unfiltered.get_envs() {
        match value {
            Some(value) => launcher.env(name, value),
            None => launcher.env_remove(name),
        };
    }
    launcher
}

fn node() -> Stage {
    Stage::new().service("web", "TCP", 30080, "").endpoints("web", "TCP", Some("n1")).node_port_range("30000-32767")
}

/// Fault (kernel): a seccomp filter refuses netlink sockets
/// Does: reads sockets from /proc; addresses are unread, and `check` exits with 2
/// Right again: with the next `check` that is allowed
/// Lost: addresses, and facts that depend on them
#[test]
fn sockets_come_from_proc_if_netlink_is_refused_and_a_check_without_addresses_fails() {
    let stage = node();
    StandIn::default().start();
    for squatted in [false, true] {
        let _squatter = squatted.then(|| Squatter::on("0.0.0.0:30080"));
        for errno in [Errno::EPERM, Errno::EACCES, Errno::EAFNOSUPPORT] {
            let scan = check(&stage, &refusing(SYS_socket, Some(AF_NETLINK), errno), &[]);
            assert_eq!(scan.code, 2, "{errno}: {:#}", scan.json);
            let unknown = scan.unknown();
            assert!(unknown.contains(&"addresses: not-permitted".to_owned()), "{errno}: {unknown:?}");
            assert!(!unknown.iter().any(|it| it.starts_with("listeners")), "{errno}: {unknown:?}");
            assert_eq!(scan.json["nodes"][0]["proxy"]["mode"], "iptables", "its owner is known without netlink");
        }
        assert_eq!(stage.check(&[]).code, i32::from(squatted), "without the filter");
    }
}

/// Fault (kernel): a seccomp filter refuses socket, bind, sendto or recvfrom
/// Does: addresses are unread, and `check` exits with 2
/// Right again: with the next `check` that is allowed
/// Lost: addresses, and facts that depend on them
#[test]
fn no_check_is_clear_if_calls_of_netlink_are_refused() {
    let stage = node();
    let _squatter = Squatter::on("0.0.0.0:30080");
    for call in [SYS_socket, SYS_bind, SYS_sendto, SYS_recvfrom] {
        for errno in [Errno::EPERM, Errno::ENOSYS] {
            let scan = check(&stage, &refusing(call, None, errno), &["--proxy-mode", "iptables"]);
            assert_eq!(scan.code, 2, "{call} {errno}: {:#}", scan.json);
            assert!(scan.unknown().contains(&"addresses: not-permitted".to_owned()), "{:?}", scan.unknown());
        }
    }
    assert_eq!(stage.check(&["--proxy-mode", "iptables"]).code, 1, "without the filter");
}

/// Even a request to netfilter makes the kernel load nf_tables and the module that lists flows. So the filter kills a
/// program that requests netfilter.
#[test]
fn netfilter_is_not_requested_without_the_capability() {
    let stage = node();
    let deadly = filter(SYS_socket, Argument::Is(2, NETLINK_NETFILTER), KILL);
    let unprivileged = ["setpriv", "--inh-caps=-all", "--bounding-set=-net_admin"];
    let scan = check_by(&unprivileged, &stage, &deadly, &["--proxy-mode", "iptables"]);
    assert!(scan.unknown().contains(&"netfilter: not-permitted".to_owned()), "{:?}", scan.unknown());
}

#[test]
fn a_check_opens_no_port_and_no_file_for_writing() {
    let stage = node();
    StandIn::default().start();
    let _squatter = Squatter::on("0.0.0.0:30080");
    let no_port = filter(SYS_listen, Argument::Any, KILL);
    let no_file = filter(SYS_openat, Argument::Has(2, TO_WRITE), KILL);
    for deadly in [&no_port, &no_file] {
        check(&stage, deadly, &[]).finding("listener-on-node-port/loses", "web");
    }
    // Shows that the filters work: a program that makes one of these calls ends at once.
    let (mut listens, mut writes) = (stage.command("agent"), Command::new("touch"));
    listens.args(["--listen", PLACE]);
    writes.arg(stage.path("file"));
    for (deadly, command) in [(&no_port, listens), (&no_file, writes)] {
        let ended = under(deadly, &[], &command).output().expect("perl runs");
        assert_eq!(ended.status.signal(), Some(Signal::SIGSYS as i32), "{ended:?}");
    }
}

#[test]
fn a_filter_that_refuses_nothing_changes_nothing() {
    let stage = node();
    StandIn::default().start();
    let harmless = refusing(SYS_socket, Some(9), Errno::EPERM);
    let scan = check(&stage, &harmless, &[]);
    assert_eq!((scan.code, scan.unknown()), (0, Vec::new()), "{:#}", scan.json);
    let _squatter = Squatter::on("0.0.0.0:30080");
    check(&stage, &harmless, &[]).finding("listener-on-node-port/loses", "web");
}
