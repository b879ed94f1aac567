//! Reads the network namespaces of pods from outside.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::DirEntryExt,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use portreeve_facts::{Owner, PodQuery, Reading, Why};
use portreeve_kernel::{Known, pod_namespaces};

use crate::{
    namespace::Namespace,
    process::{self, ControlGroup, eventually},
};

const CONTAINER: &str = "5f7bb1c1d5b0cd8ba6bd0d2d3c1b1cd6a1c0a3b1e5e2b97bb0e2ad9c4d5e6f70";

#[test]
fn a_pods_own_namespace_is_counted_from_outside() {
    // No pod of a parallel test has this uid.
    let uid = "7d1f9c52-93ab-4a5e-9f0e-6b2a8c4d1e3f";
    let cgroup = ControlGroup::make("pod", &format!("kubepods/besteffort/pod{uid}/{CONTAINER}"));
    let script = r#"
        my $listener = IO::Socket::INET->new(Listen => 64, LocalAddr => "127.0.0.1", LocalPort => 443) or die;
        my @kept = map { (IO::Socket::INET->new("127.0.0.1:443") or die, $listener->accept()) } 1..50;
        $| = 1; print "ready\n"; <STDIN>;"#;
    let pod = thread::scope(|scope| {
        let start = || {
            let _inside = Namespace::enter();
            process::Process::start(Some(&cgroup), script)
        };
        scope.spawn(start).join().expect("started")
    });
    let _outside = Namespace::enter();
    let mut known = Known::default();
    let mut ours = |worth_walking| {
        let pods = BTreeMap::new();
        let namespaces = pod_namespaces(Path::new("/proc"), worth_walking, &pods, &mut known).expect("root sees them");
        namespaces.into_iter().find(|namespace| namespace.pod_uid == uid).map(|namespace| namespace.ephemeral)
    };
    let Some(Reading::Seen(used)) = eventually(|| ours(100)) else { panic!("not read") };
    let told: Vec<_> = used.busiest.iter().map(|one| (one.port, one.used)).collect();
    assert_eq!((used.at_most, told), (50, vec![(443, 50)]));
    let Owner::Held(holder) = &used.busiest[0].owner else { panic!("not held: {used:?}") };
    assert_eq!(holder.cgroup.seen().and_then(|cgroup| cgroup.pod.clone()).expect("a pod").pod_uid, uid);
    for _ in 0..4 {
        let Some(Reading::Seen(quiet)) = ours(102) else { panic!("not read") };
        assert_eq!((quiet.at_most, quiet.busiest), (101, vec![]));
    }
    // A count far below `worth_walking` includes sockets of every kind. After the kernel has freed perl's other
    // sockets, the count includes only the listener and the connections.
    let far = eventually(|| match ours(900) {
        Some(Reading::Seen(far)) => Some((far.at_most, far.busiest)).filter(|far| *far == (101, vec![])),
        _ => panic!("not read"),
    });
    assert_eq!(far, Some((101, vec![])));
    drop(pod);
    assert_eq!(eventually(|| ours(102).is_none().then_some(())), Some(()), "the pod ended");
}

fn pod(cgroup: &ControlGroup, script: &str) -> process::Process {
    let start = || {
        let _inside = Namespace::enter();
        process::Process::start(Some(cgroup), script)
    };
    thread::scope(|scope| scope.spawn(start).join().expect("started"))
}

#[test]
fn a_pod_with_its_own_range_is_counted_in_that_range() {
    let uid = "8d1f9c52-93ab-4a5e-9f0e-6b2a8c4d1e40";
    let cgroup = ControlGroup::make("range", &format!("kubepods/besteffort/pod{uid}/{CONTAINER}"));
    let script = r#"
        open(my $range, ">", "/proc/sys/net/ipv4/ip_local_port_range") or die; print $range "40000 40099\n"; close $range or die;
        my $listener = IO::Socket::INET->new(Listen => 64, LocalAddr => "127.0.0.1", LocalPort => 443) or die;
        my @kept = map { (IO::Socket::INET->new("127.0.0.1:443") or die, $listener->accept()) } 1..30;
        $| = 1; print "ready\n"; <STDIN>;"#;
    let _pod = pod(&cgroup, script);
    let _outside = Namespace::enter();
    let mut known = Known::default();
    let mut scan = |ephemeral: Option<&str>| {
        let ephemeral = ephemeral.map(|ports| ports.parse().expect("ports"));
        let pods = [(uid.to_owned(), PodQuery { ephemeral, ..PodQuery::default() })].into();
        let found = pod_namespaces(Path::new("/proc"), 3_200, &pods, &mut known).expect("root sees them");
        let own = found.into_iter().find(|namespace| namespace.pod_uid == uid)?;
        let used = own.ephemeral.seen()?.busiest.iter().map(|one| (one.port, one.used)).collect::<Vec<_>>();
        Some((used, own.listening))
    };
    assert_eq!(eventually(|| scan(Some("40000-40099"))), Some((vec![(443, 30)], "443".parse().ok())));
    assert_eq!(scan(None), Some((vec![], None)), "far below half of the default range");
    assert_eq!(scan(Some("40000-40199")), Some((vec![], None)), "less than half of this range");
}

#[test]
fn a_connection_that_has_the_port_of_a_pods_server_is_found_with_its_process() {
    let uid = "9d1f9c52-93ab-4a5e-9f0e-6b2a8c4d1e41";
    let cgroup = ControlGroup::make("blocked", &format!("kubepods/besteffort/pod{uid}/{CONTAINER}"));
    let script = r#"
        my $listener = IO::Socket::INET->new(Listen => 64, LocalAddr => "127.0.0.1", LocalPort => 8080) or die;
        my @kept = map { (IO::Socket::INET->new(PeerAddr => "127.0.0.1:8080", LocalPort => $_) or die, $listener->accept()) } 46580, 46590;
        $| = 1; print "ready\n"; <STDIN>;"#;
    let pod = pod(&cgroup, script);
    let _outside = Namespace::enter();
    let mut known = Known::default();
    let mut scan = |needed: &str| {
        let needed = needed.parse().expect("ports");
        let pods = [(uid.to_owned(), PodQuery { needed, ..PodQuery::default() })].into();
        let found = pod_namespaces(Path::new("/proc"), 14_116, &pods, &mut known).expect("root sees them");
        Some(found.into_iter().find(|namespace| namespace.pod_uid == uid)?.needed)
    };
    let found = eventually(|| scan("46580"));
    let Some(Reading::Seen(sockets)) = found else { panic!("not read: {found:?}") };
    let told: Vec<_> = sockets.iter().map(|socket| (socket.local_port, socket.remote_port)).collect();
    assert_eq!(told, [(46580, 8080), (46590, 8080)], "the connection, and another connection to the same peer");
    let Owner::Held(holder) = &sockets[0].owner else { panic!("not held: {sockets:?}") };
    assert_eq!(holder.process.seen().map(|process| process.pid), Some(pod.pid()));
    let container = holder.cgroup.seen().and_then(|cgroup| cgroup.pod.as_ref()?.container.clone());
    assert_eq!(container.as_deref(), Some(CONTAINER));
    assert_eq!(
        scan("8080").and_then(|it| it.seen().map(Vec::len)),
        Some(3),
        "a listener, and its accepted connections"
    );
    assert_eq!(scan("46581"), Some(Reading::Seen(vec![])));
    assert_eq!(scan("").and_then(|it| it.gap().map(|gap| gap.why)), Some(Why::NotRequested));
}

/// A shell script. For each line of input, the script ends its last process and starts a new process with pid 501 in
/// its pid namespace.
const SAME_PID_AGAIN: &str = r#"
    while read -r _; do
        if [ -n "$last" ]; then kill "$last"; wait "$last"; fi
        echo 500 > /proc/sys/kernel/ns_last_pid
        sleep 60 &
        last=$!
        echo "$last"
    done 2> /dev/null
    kill "$last""#;

/// Fault (kernel): a new process gets the pid of an earlier process
/// Does: forgets the facts of the earlier process
/// Right again: at once
/// Lost: nothing
#[test]
fn a_later_process_of_the_same_pid_has_a_directory_with_another_inode() {
    // The inode of the directory in `/proc` shows whether known facts are about this process.
    let mut namespace = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "bash", "-c", SAME_PID_AGAIN])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare and bash are installed");
    let mut orders = namespace.stdin.take().expect("a pipe");
    let mut answers = BufReader::new(namespace.stdout.take().expect("a pipe")).lines();
    let proc = Path::new("/proc").join(namespace.id().to_string()).join("root").join("proc");
    let mut inode = || {
        writeln!(orders).expect("the shell reads");
        assert_eq!(answers.next().expect("an answer").expect("a line"), "501");
        let mut entries = fs::read_dir(&proc).expect("a directory").map(|entry| entry.expect("an entry"));
        entries.find(|entry| entry.file_name() == "501").expect("the process").ino()
    };
    let inodes: HashSet<u64> = (0..5).map(|_| inode()).collect();
    assert_eq!(inodes.len(), 5);
    drop(orders);
    assert!(namespace.wait().expect("the namespace ended").success());
}
