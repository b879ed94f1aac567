//! Tests of the hook in this kernel. Each test has its own control group and network namespace.

#![allow(clippy::disallowed_methods, reason = "makes groups, starts programs, binds sockets and waits")]

use std::{
    env, fs,
    io::{self, BufRead as _, BufReader, ErrorKind},
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    os::{linux::fs::MetadataExt as _, unix::process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use aya::{
    Ebpf, EbpfError,
    maps::MapError,
    programs::{CgroupAttachMode, CgroupSockAddr},
};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrIn6, bind as bind_socket, setsockopt, socket, sockopt::Ipv6V6Only,
    },
};

use super::{
    attached::{OBJECT, lacking, not_linked, not_loaded},
    *,
};

const PORT: u16 = 30080;
const LONG: Duration = Duration::from_secs(3600);
/// This environment variable names the control group. A copy of this program attaches the hook to this group.
const GROUP: &str = "PORTREEVE_HOOK_GROUP";

/// A control group with this process in it. When the test ends, the group is removed.
struct Group {
    path: PathBuf,
    before: PathBuf,
}

impl Group {
    fn empty() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount =
            mounts.find(|mount| mount[2] == "cgroup2").expect("a mount of control groups of version 2")[1].to_owned();
        let own = fs::read_to_string("/proc/self/cgroup").expect("own groups");
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).expect("a group of version 2");
        let path = Path::new(&mount).join(format!("portreeve-bind-hook-{}", std::process::id()));
        fs::create_dir(&path).expect("a new group");
        Self { path, before: Path::new(&mount).join(own) }
    }

    fn new() -> Self {
        let group = Self::empty();
        enter(&group.path);
        group
    }

    fn id(&self) -> u64 {
        fs::metadata(&self.path).expect("a group").st_ino()
    }

    fn attach(&self, mode: Mode) -> Hook {
        Hook::attach(&self.path, mode).expect("a kernel with the hook")
    }

    fn refuse(&self, claims: &[Claim]) -> Hook {
        let mut hook = self.attach(Mode::Refuse);
        hook.claims(claims).expect("claims");
        hook.fresh_for(LONG).expect("fresh");
        hook
    }

    /// Starts a copy of this program that runs only the test `name`. Other runs ignore this test.
    fn copy(&self, program: &[&str], name: &str) -> Child {
        let own = env::current_exe().expect("this program");
        let own = own.to_str().expect("a path");
        let words: Vec<&str> =
            program.iter().copied().chain([own, "--exact", name, "--ignored", "--nocapture"]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env(GROUP, &self.path).stdout(Stdio::piped()).spawn().expect("a copy of this program")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        enter(&self.before);
        // A process that was killed stays in its control group for a moment.
        while let Err(error) = fs::remove_dir(&self.path) {
            assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn enter(group: &Path) {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string()).expect("the process moves");
}

fn claim(protocol: Protocol, address: &str, port: u16, id: u32) -> Claim {
    Claim {
        protocol,
        at: SocketAddr::new(address.parse().expect("an address"), port),
        id: ClaimId(id),
        is_refused: true,
    }
}

/// A claimed address, and the hook's answers to binds of other addresses.
type Row = (&'static str, &'static [(&'static str, Option<Answer>)]);

fn claimed() -> Claim {
    claim(Protocol::Tcp, "0.0.0.0", PORT, 7)
}

fn bind(protocol: Protocol, address: &str, port: u16) -> io::Result<()> {
    let at = SocketAddr::new(address.parse::<IpAddr>().expect("an address"), port);
    match protocol {
        Protocol::Tcp => TcpListener::bind(at).map(drop),
        Protocol::Udp => UdpSocket::bind(at).map(drop),
    }
}

fn bind_claimed() -> io::Result<()> {
    bind(Protocol::Tcp, "0.0.0.0", PORT)
}

fn answer(hook: &mut Hook) -> Option<Answer> {
    let answer = hook.next().map(|bind| bind.answer);
    assert_eq!(hook.next(), None, "one record for each bind");
    answer
}

/// A Perl program that binds the claimed port for 50 ms.
const SQUATTER: &str = r#"
    use Socket;
    $0 = "squatter";
    socket(my $socket, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
    bind($socket, sockaddr_in(30080, INADDR_ANY)) or die "bind: $!";
    select(undef, undef, undef, 0.05);
"#;

#[test]
fn a_squatter_that_lives_50_ms_is_reported_with_its_name() {
    let group = Group::new();
    let mut hook = group.attach(Mode::Report);
    hook.claims(&[claimed()]).expect("claims");
    assert_eq!((hook.next(), hook.refusal()), (None, None));
    let mut squatter = Command::new("perl").args(["-e", SQUATTER]).spawn().expect("perl");
    assert!(squatter.wait().expect("perl").success(), "a bind that is reported succeeds");
    let bind = Bind {
        pid: squatter.id(),
        uid: 0,
        name: "squatter".to_owned(),
        cgroup: group.id(),
        protocol: Protocol::Tcp,
        at: claimed().at,
        claim: ClaimId(7),
        answer: Answer::Allowed,
    };
    assert_eq!((hook.next(), hook.next(), hook.lost().expect("state")), (Some(bind), None, 0));
}

#[test]
fn a_refused_bind_fails_with_the_error_that_the_kernel_lets_a_hook_choose() {
    let group = Group::new();
    let mut hook = group.refuse(&[claimed()]);
    let expected = match hook.refusal() {
        Some(Refusal::AddressInUse) => ErrorKind::AddrInUse,
        Some(Refusal::NotPermitted) => ErrorKind::PermissionDenied,
        None => panic!("this hook refuses"),
    };
    assert_eq!(bind_claimed().expect_err("a refused bind").kind(), expected);
    assert_eq!(answer(&mut hook), Some(Answer::Refused));
}

// Before Linux 5.18, the kernel does not accept programs that choose the error. This test attaches only the programs of
// older kernels.
#[test]
fn where_no_error_can_be_chosen_a_refused_bind_is_not_permitted() {
    let group = Group::new();
    let variants = [(Refusal::AddressInUse, ["missing4", "missing6"]), (Refusal::NotPermitted, ["bind4", "bind6"])];
    let mut hook = Hook::attach_with(&group.path, Mode::Refuse, &variants).expect("a hook");
    assert_eq!(hook.refusal(), Some(Refusal::NotPermitted));
    hook.claims(&[claimed()]).expect("claims");
    hook.fresh_for(LONG).expect("fresh");
    assert_eq!(bind_claimed().expect_err("a refused bind").kind(), ErrorKind::PermissionDenied);
    assert_eq!(answer(&mut hook), Some(Answer::Refused));
}

#[test]
fn nothing_is_refused_by_claims_that_are_old() {
    let group = Group::new();
    let mut hook = group.attach(Mode::Refuse);
    hook.claims(&[claimed()]).expect("claims");
    bind_claimed().expect("nothing has been fresh yet");
    assert_eq!(answer(&mut hook), Some(Answer::TooOld));
    hook.fresh_for(LONG).expect("fresh");
    bind_claimed().expect_err("claims are fresh");
    assert_eq!(answer(&mut hook), Some(Answer::Refused));
    // After this time, the hook refuses nothing.
    hook.fresh_for(Duration::from_millis(50)).expect("fresh");
    while bind_claimed().is_err() {
        thread::sleep(Duration::from_millis(5));
    }
    let answers: Vec<Answer> = std::iter::from_fn(|| hook.next()).map(|bind| bind.answer).collect();
    assert_eq!(answers.last(), Some(&Answer::TooOld));
}

#[test]
fn a_claim_whose_binds_are_never_refused_is_reported_with_its_own_number() {
    let group = Group::new();
    let reported = [Claim { is_refused: false, ..claimed() }];
    let mut hook = group.refuse(&reported);
    bind_claimed().expect("it is reported only");
    assert_eq!(hook.next().map(|bind| (bind.answer, bind.claim)), Some((Answer::Allowed, claimed().id)));
    hook.replace(&[Exempt { who: Who::Cgroup(group.id()), claim: Some(claimed().id) }], &reported).expect("exemptions");
    bind_claimed().expect("it is exempt");
    assert_eq!(answer(&mut hook), None);
}

#[test]
fn a_port_that_the_kernel_chooses_passes() {
    let group = Group::new();
    let mut hook = group.refuse(&[claimed()]);
    fs::write("/proc/sys/net/ipv4/ip_local_port_range", format!("{PORT} {PORT}")).expect("a range");
    let listener = TcpListener::bind("0.0.0.0:0").expect("a chosen port passes");
    assert_eq!(listener.local_addr().expect("an address").port(), PORT);
    assert_eq!(answer(&mut hook), None);
}

#[test]
fn a_bind_meets_a_claim_if_both_would_have_the_same_address() {
    use Answer::{FamilyUnknown, Refused};
    let group = Group::new();
    let table: [Row; 4] = [
        (
            "0.0.0.0",
            &[
                ("0.0.0.0", Some(Refused)),
                ("127.0.0.1", Some(Refused)),
                ("::ffff:127.0.0.1", Some(Refused)),
                ("::ffff:0.0.0.0", Some(Refused)),
                ("::", Some(FamilyUnknown)),
                ("::1", None),
            ],
        ),
        (
            "127.0.0.1",
            &[
                ("0.0.0.0", Some(Refused)),
                ("127.0.0.1", Some(Refused)),
                ("127.0.0.2", None),
                ("::ffff:127.0.0.1", Some(Refused)),
                ("::ffff:127.0.0.2", None),
                ("::ffff:0.0.0.0", Some(Refused)),
                ("::", Some(FamilyUnknown)),
                ("::1", None),
            ],
        ),
        (
            "::",
            &[
                ("::", Some(Refused)),
                ("::1", Some(Refused)),
                ("0.0.0.0", None),
                ("127.0.0.1", None),
                ("::ffff:127.0.0.1", None),
            ],
        ),
        ("::1", &[("::", Some(Refused)), ("::1", Some(Refused)), ("127.0.0.1", None), ("0.0.0.0", None)]),
    ];
    let both = [(Protocol::Tcp, Protocol::Udp), (Protocol::Udp, Protocol::Tcp)];
    for (protocol, other) in both {
        for (claimed, binds) in table {
            let mut hook = group.refuse(&[claim(protocol, claimed, PORT, 7)]);
            for (address, expected) in binds {
                let result = bind(protocol, address, PORT);
                assert_eq!(answer(&mut hook), *expected, "{protocol:?}: {claimed} is claimed, {address} is bound");
                assert_eq!(
                    result.is_err(),
                    *expected == Some(Refused),
                    "{protocol:?}: {claimed}, {address}: {result:?}"
                );
                bind(other, address, PORT).expect("another protocol is not claimed");
                bind(protocol, address, PORT + 1).expect("another port is not claimed");
                assert_eq!(answer(&mut hook), None);
            }
        }
    }
}

// No hook can read the socket option `IPV6_V6ONLY`.
#[test]
fn a_socket_of_ipv6_only_is_not_told_from_one_of_both_families_and_passes() {
    let group = Group::new();
    let mut hook = group.refuse(&[claimed()]);
    let only = socket(AddressFamily::Inet6, SockType::Stream, SockFlag::empty(), None).expect("a socket");
    setsockopt(&only, Ipv6V6Only, &true).expect("an option");
    let at = SockaddrIn6::from(std::net::SocketAddrV6::new(std::net::Ipv6Addr::UNSPECIFIED, PORT, 0, 0));
    bind_socket(std::os::fd::AsRawFd::as_raw_fd(&only), &at).expect("passes");
    let bind = hook.next().expect("a record");
    assert_eq!((bind.at, bind.answer), (SocketAddr::new(IpAddr::from([0; 16]), PORT), Answer::FamilyUnknown));
}

#[test]
fn whoever_is_exempt_is_neither_refused_nor_reported() {
    let group = Group::new();
    let other = claim(Protocol::Tcp, "0.0.0.0", PORT + 1, 8);
    let both = [claimed(), other];
    let mut hook = group.refuse(&both);
    let process = Who::Process(std::process::id());
    for who in [process, Who::Cgroup(group.id())] {
        hook.replace(&[Exempt { who, claim: None }], &both).expect("exempt");
        bind_claimed().unwrap_or_else(|error| panic!("{who:?} is exempt: {error}"));
        bind(Protocol::Tcp, "0.0.0.0", PORT + 1).unwrap_or_else(|error| panic!("{who:?} is exempt: {error}"));
        hook.replace(&[Exempt { who, claim: Some(ClaimId(8)) }], &both).expect("exempt");
        bind(Protocol::Tcp, "0.0.0.0", PORT + 1).unwrap_or_else(|error| panic!("{who:?} is exempt: {error}"));
        assert_eq!(answer(&mut hook), None);
        bind_claimed().expect_err("exempt of another claim only");
        assert_eq!(answer(&mut hook), Some(Answer::Refused));
    }
    // The control group of a container is below the control group of its pod.
    let container = group.path.join("container");
    fs::create_dir(&container).expect("a group");
    enter(&container);
    hook.replace(&[Exempt { who: Who::Cgroup(group.id()), claim: None }], &both).expect("exempt");
    let below = bind_claimed();
    let none = [claim(Protocol::Tcp, "0.0.0.0", PORT, 0)];
    hook.replace(&[], &none).expect_err("0 stands for no claim");
    let kept = bind_claimed();
    hook.replace(&[], &both).expect("exempt");
    let after = bind_claimed();
    enter(&group.path);
    fs::remove_dir(&container).expect("an empty group");
    below.expect("a group is exempt with the groups below it");
    kept.expect("old exemptions stay as long as the claims do");
    after.expect_err("no one is exempt any more");
    assert_eq!(answer(&mut hook), Some(Answer::Refused));
}

#[test]
fn a_group_is_exempt_with_those_below_it_down_to_the_fifteenth_level_of_the_tree() {
    let group = Group::new();
    let mount = fs::metadata(group.path.parent().expect("a mount")).expect("a mount");
    assert_eq!(mount.st_ino(), 1, "the group of this test is at the first level of the tree");
    let below = std::iter::successors(Some(group.path.clone()), |above| Some(above.join("below")));
    let groups: Vec<PathBuf> = below.take(17).collect();
    groups[1..].iter().for_each(|path| fs::create_dir(path).expect("a group"));
    let mut hook = group.refuse(&[claimed()]);
    enter(&groups[16]);
    let passes: Vec<bool> = groups
        .iter()
        .map(|path| {
            let id = fs::metadata(path).expect("a group").st_ino();
            hook.replace(&[Exempt { who: Who::Cgroup(id), claim: None }], &[claimed()]).expect("exempt");
            bind_claimed().is_ok()
        })
        .collect();
    enter(&group.path);
    groups[1..].iter().rev().for_each(|path| fs::remove_dir(path).expect("an empty group"));
    assert_eq!(passes, (1..=17).map(|level| level <= 15).collect::<Vec<_>>());
}

#[test]
fn another_network_namespace_is_not_touched() {
    let group = Group::new();
    let mut hook = group.refuse(&[claimed()]);
    let status = Command::new("unshare").args(["--net", "perl", "-e", SQUATTER]).status().expect("unshare");
    assert!(status.success());
    assert_eq!(answer(&mut hook), None);
    enter(&group.before);
    let outside = bind_claimed();
    enter(&group.path);
    outside.expect("a process outside of the control group");
    assert_eq!(answer(&mut hook), None);
    let status = Command::new("perl").args(["-e", SQUATTER]).stderr(Stdio::null()).status().expect("perl");
    assert!(!status.success(), "this namespace is refused");
}

#[test]
fn binds_that_find_no_room_for_a_record_are_counted() {
    let group = Group::new();
    let mut hook = group.refuse(&[claimed()]);
    for _ in 0..2_000 {
        bind_claimed().expect_err("refused with or without a record");
    }
    let lost = hook.lost().expect("state");
    let reported = std::iter::from_fn(|| hook.next()).count();
    assert_eq!(u64::try_from(reported).expect("a count") + lost, 2_000);
    assert!(lost > 0 && reported > 500, "{reported} reported, {lost} lost");
    bind_claimed().expect_err("refused");
    assert_eq!(answer(&mut hook), Some(Answer::Refused), "there is room again");
}

#[test]
fn claims_are_replaced_as_a_whole() {
    let group = Group::new();
    let [a, b, c] = [0, 1, 2].map(|n| claim(Protocol::Udp, "0.0.0.0", PORT + n, 1 + u32::from(n)));
    let mut hook = group.refuse(&[a, b]);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let binder = scope.spawn(|| {
            let mut passed = 0;
            while !ended.load(Ordering::Relaxed) {
                passed += u32::from(bind(Protocol::Udp, "0.0.0.0", PORT).is_ok());
            }
            passed
        });
        for _ in 0..300 {
            hook.claims(&[a, c]).expect("claims");
            hook.claims(&[b, a]).expect("claims");
        }
        ended.store(true, Ordering::Relaxed);
        assert_eq!(binder.join().expect("a thread"), 0, "it was claimed all the time");
    });
    bind(Protocol::Udp, "0.0.0.0", PORT + 1).expect_err("claimed");
    bind(Protocol::Udp, "0.0.0.0", PORT + 2).expect("claimed no more");
    hook.claims(&[]).expect("claims");
    bind(Protocol::Udp, "0.0.0.0", PORT).expect("claimed no more");
}

#[test]
fn too_many_claims_are_an_error_and_those_before_stay() {
    let group = Group::new();
    let mut hook = group.refuse(&[claimed()]);
    let many: Vec<Claim> = (0..3_u32)
        .flat_map(|n| (1..=u16::MAX).map(move |port| claim(Protocol::Tcp, &format!("127.0.0.{n}"), port, 9)))
        .collect();
    let error = hook.claims(&many).expect_err("more than the map has room for");
    assert!(error.to_string().starts_with("the bind hook's map of claims: "), "{error}");
    bind_claimed().expect_err("claimed as before");
    hook.claims(&[claim(Protocol::Tcp, "0.0.0.0", PORT, 0)]).expect_err("0 stands for no claim");
    hook.claims(&[claim(Protocol::Tcp, "0.0.0.0", PORT, 1 << 31)]).expect_err("a number that is too great");
    hook.claims(&[]).expect("there is room again");
    bind_claimed().expect("claimed no more");
}

#[test]
fn a_hook_ends_with_its_value() {
    let group = Group::new();
    let hook = group.refuse(&[claimed()]);
    bind_claimed().expect_err("refused");
    drop(hook);
    bind_claimed().expect("nothing refuses any more");
}

#[test]
fn a_hook_ends_with_its_process_however_that_ends() {
    let group = Group::new();
    let mut guard = group.copy(&[], "tests::a_guard_that_refuses_until_it_is_killed");
    let mut lines = BufReader::new(guard.stdout.take().expect("a pipe")).lines();
    // The test harness may print the name of the test before the word `refuses` on the same line.
    assert!(lines.any(|line| line.expect("a line").ends_with("refuses")));
    bind_claimed().expect_err("refused");
    guard.kill().expect("killed");
    assert_eq!(guard.wait().expect("ended").signal(), Some(9));
    // The kernel closes the descriptors after the end of the process, and then the links end.
    while bind_claimed().is_err() {
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[ignore = "another test starts it, and kills it"]
fn a_guard_that_refuses_until_it_is_killed() {
    let mut hook = Hook::attach(Path::new(&env::var_os(GROUP).expect("a group")), Mode::Refuse).expect("a hook");
    hook.claims(&[claimed()]).expect("claims");
    hook.fresh_for(LONG).expect("fresh");
    println!("refuses");
    thread::sleep(LONG);
}

#[test]
fn what_keeps_a_hook_off_is_named_in_one_line() {
    let group = Group::empty();
    let message = |path: &Path| Hook::attach(path, Mode::Report).expect_err("no hook").to_string();
    assert_eq!(
        message(Path::new("/missing")),
        "/missing: cannot open the control group: No such file or directory (os error 2)"
    );
    assert_eq!(
        message(Path::new("/proc")),
        "/proc: is no control group of version 2: wanted one below a mount of type cgroup2"
    );
    assert_eq!(
        message(&group.path),
        format!(
            "{}: this process is not below the control group, so its network namespace is unknown to the bind hook",
            group.path.display()
        )
    );
    let missing = [(Refusal::NotPermitted, ["missing4", "missing6"])];
    assert_eq!(
        Hook::attach_with(&group.path, Mode::Refuse, &missing).expect_err("no hook").to_string(),
        "this kernel takes no bind hook, which needs Linux 5.8 with BPF and control groups of version 2: \
         no program of this name: missing4"
    );
    let without = ["setpriv", "--bounding-set", "-bpf,-sys_admin,-net_admin"];
    let output = group.copy(&without, "tests::a_guard_without_a_capability").wait_with_output().expect("ended");
    let output = String::from_utf8_lossy(&output.stdout);
    let expected =
        "the kernel does not permit the bind hook: it needs the capabilities BPF and NET_ADMIN, a seccomp profile";
    assert!(output.lines().any(|line| line.contains(expected)), "{output}");
}

#[test]
fn a_control_group_without_room_for_another_program_takes_the_hook_later() {
    let group = Group::new();
    let mut programs = Ebpf::load(OBJECT).expect("a kernel with the hook");
    let program: &mut CgroupSockAddr = programs.program_mut("bind4").expect("it").try_into().expect("its kind");
    program.load().expect("loaded");
    // The kernel allows 64 programs in a control group (`BPF_CGROUP_MAX_PROGS`).
    for _ in 0..64 {
        program.attach(fs::File::open(&group.path).expect("a group"), CgroupAttachMode::Single).expect("attached");
    }
    let error = Hook::attach(&group.path, Mode::Refuse).expect_err("no room");
    assert!(error.can_pass(), "{error}");
    let expected =
        "the kernel cannot attach the bind hook now: the control group has as many programs as a kernel permits: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    drop(programs);
    group.attach(Mode::Refuse);
}

// These errors are copied from the kernel's source. The test did not run on an old kernel that returns one of these
// errors.
#[test]
fn what_a_kernel_lacks_is_named_by_its_error() {
    let map = |errno: Errno| {
        let (name, io_error) = ("BINDS".to_owned(), io::Error::from(errno));
        not_loaded(&EbpfError::MapError(MapError::CreateError { name, io_error })).to_string()
    };
    let kernel = "this kernel takes no bind hook, which needs Linux 5.8 with BPF and control groups of version 2: ";
    for (error, expected) in [
        // Before Linux 5.8, `find_and_alloc_map` in kernel/bpf/syscall.c returns this error.
        (map(Errno::EINVAL), "no ring buffer: "),
        // A kernel without CONFIG_BPF_SYSCALL returns this error.
        (map(Errno::ENOSYS), "no BPF: "),
        // Without CONFIG_CGROUP_BPF, `find_prog_type` in kernel/bpf/syscall.c returns this error.
        (
            lacking("the program was refused", Some(Errno::EINVAL as i32), &"failed").to_string(),
            "the program was refused: failed: EINVAL",
        ),
    ] {
        assert!(error.starts_with(&format!("{kernel}{expected}")), "{error}");
    }
    assert!(map(Errno::EPERM).starts_with("the kernel does not permit the bind hook"), "{}", map(Errno::EPERM));
    assert!(map(Errno::ENOMEM).starts_with("the kernel cannot attach the bind hook now"), "{}", map(Errno::ENOMEM));
}

#[test]
fn what_can_pass_is_told_from_a_kernel_that_cannot() {
    let can_pass = |errno: Errno| not_linked(Some(errno as i32), &"failed").can_pass();
    for errno in [Errno::EAGAIN, Errno::EBUSY, Errno::ENOMEM, Errno::E2BIG, Errno::EPERM] {
        assert!(can_pass(errno), "{errno}");
    }
    assert!(!can_pass(Errno::EINVAL) && !not_linked(None, &"failed").can_pass());
    let other = not_linked(Some(Errno::EPERM as i32), &"failed").to_string();
    assert!(other.contains("permits no other program"), "the rights were there when it was loaded: {other}");
    let log = "refused. Verifier output: 0: R1=ctx()\n1: call 16\nprogram cannot use 16\nprocessed 2 insns\n";
    let refused = not_linked(Some(Errno::EINVAL as i32), &log).to_string();
    assert!(refused.ends_with("refused.: program cannot use 16: EINVAL: Invalid argument"), "{refused}");
    let attach = |path: &Path| Hook::attach(path, Mode::Report).expect_err("no hook");
    assert!(attach(Path::new("/missing")).can_pass(), "somebody may make the group");
    assert!(!attach(Path::new("/proc")).can_pass());
}

#[test]
#[ignore = "another test starts it without capabilities"]
fn a_guard_without_a_capability() {
    let group = env::var_os(GROUP).expect("a group");
    println!("{}", Hook::attach(Path::new(&group), Mode::Report).expect_err("no capability"));
}

// The chart gives the guard only these capabilities.
#[test]
fn two_capabilities_are_enough_for_a_hook() {
    let group = Group::new();
    let with = ["setpriv", "--bounding-set", "-all,+bpf,+net_admin"];
    let mut guard = group.copy(&with, "tests::a_guard_that_refuses_until_it_is_killed");
    let mut lines = BufReader::new(guard.stdout.take().expect("a pipe")).lines();
    let is_attached = lines.any(|line| line.expect("a line").ends_with("refuses"));
    let refused = bind_claimed().map_err(|error| error.kind());
    guard.kill().expect("killed");
    guard.wait().expect("ended");
    assert_eq!((is_attached, refused), (true, Err(ErrorKind::AddrInUse)), "as with all capabilities");
}

#[test]
fn a_bind_whose_name_the_kernel_does_not_tell_is_reported() {
    let group = Group::new();
    let unnamed = [(Refusal::AddressInUse, ["bind4_unnamed", "bind6_unnamed"])];
    let mut hook = Hook::attach_with(&group.path, Mode::Report, &unnamed).expect("a hook");
    hook.claims(&[claimed()]).expect("claims");
    bind_claimed().expect("it is reported only");
    let bind = hook.next().expect("a record");
    assert_eq!((bind.pid, bind.name.as_str()), (std::process::id(), ""));
}
