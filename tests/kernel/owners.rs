//! The owner of a socket: a control group, a pod, a process, or the kernel itself.

use std::{
    collections::HashSet,
    fs,
    io::IoSlice,
    net::TcpListener,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt as _, chown, symlink},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::{
        resource::{Resource, getrlimit},
        socket::{ControlMessage, MsgFlags, sendmsg},
    },
    unistd::{Uid, setfsuid},
};
use portreeve_facts::{Holder, Owner, Socket, Why};
use portreeve_kernel::{Cgroups, Claim, Owners, Sockets, fds_of};

use crate::{
    namespace::Namespace,
    process::{self, ControlGroup},
};

const POD: &str = "0e6a3a0c-5a0b-4b1e-8d6e-3f2b1c0d9e8f";
const CONTAINER: &str = "5f7bb1c1d5b0cd8ba6bd0d2d3c1b1cd6a1c0a3b1e5e2b97bb0e2ad9c4d5e6f70";
const LISTEN: &str = r#"
    my $listener = IO::Socket::INET->new(Listen => 1, LocalPort => 30080, ReuseAddr => 1) or die;
    $0 = "evil\e[31m\nname"; $| = 1; print "ready\n"; <STDIN>;"#;

fn listeners() -> Vec<Socket> {
    Sockets::live(Path::new("/proc")).listeners().expect("listeners").sockets
}

fn owner_of_only_listener(owners: &Owners) -> Owner {
    let [listener] = &listeners()[..] else { panic!("not one listener: {:?}", listeners()) };
    owners.of(&[Claim::from(listener)]).remove(0)
}

fn owners(command_lines: bool) -> Owners {
    Owners::live(Path::new("/"), Vec::new(), command_lines)
}

fn holder(owner: Owner) -> Holder {
    let Owner::Held(holder) = owner else { panic!("not held: {owner:?}") };
    holder
}

/// The root directory of a simulated node on which only init and this process run. The test can read init and this
/// process. On the real machine, a process that the test cannot read may own a socket.
fn node_of_this_process() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    let proc = root.path().join("proc");
    fs::create_dir_all(proc.join("1/fd")).expect("made");
    fs::write(proc.join("1/stat"), format!("1 (init) S {}1 0", "0 ".repeat(18))).expect("written");
    fs::write(proc.join("1/cgroup"), "0::/init.scope\n").expect("written");
    let own = std::process::id().to_string();
    for name in ["thread-self", &own] {
        symlink(Path::new("/proc").join(name), proc.join(name)).expect("linked");
    }
    symlink("/sys", root.path().join("sys")).expect("linked");
    root
}

#[test]
fn a_cgroup_that_a_user_owns_names_no_pod() {
    let group = ControlGroup::make("given", &format!("kubepods/besteffort/pod{POD}/{CONTAINER}"));
    let procs = group.procs();
    let directory = procs.parent().expect("a directory");
    let id = fs::metadata(directory).expect("there").ino();
    let scan = || Cgroups::find(Path::new("/")).of(&HashSet::from([id]))[&id].clone().expect("found");
    assert_eq!(scan().pod.expect("a pod").pod_uid, POD);
    chown(directory, Some(65534), None).expect("tests of the kernel run as root");
    assert_eq!((scan().path, scan().pod), (group.name(), None), "its owner chooses its name");
}

#[test]
fn a_listener_of_this_process_is_this_process() {
    let _namespace = Namespace::enter();
    let _listener = TcpListener::bind("127.0.0.1:30080").expect("bound");
    let holder = holder(owner_of_only_listener(&owners(false)));
    let process = holder.process.seen().expect("a process");
    assert_eq!((process.pid, &process.command_line), (std::process::id(), &None));
}

#[test]
fn a_listener_in_a_pods_cgroup_names_pod_container_and_process() {
    let _namespace = Namespace::enter();
    for (name, below) in [
        ("cgroupfs", format!("kubepods/burstable/pod{POD}/{CONTAINER}")),
        (
            "systemd",
            format!(
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-{CONTAINER}.scope",
                POD.replace('-', "_")
            ),
        ),
    ] {
        let cgroup = ControlGroup::make(name, &below);
        let child = process::Process::start(Some(&cgroup), LISTEN);
        let holder = holder(owner_of_only_listener(&owners(true)));
        let found = holder.cgroup.seen().expect("a cgroup");
        assert_eq!(found.path, cgroup.name());
        let pod = found.pod.as_ref().expect("a pod");
        assert_eq!((pod.pod_uid.as_str(), pod.container.as_deref()), (POD, Some(CONTAINER)));
        let process = holder.process.seen().expect("a process");
        assert_eq!((process.pid, process.command.as_str()), (child.pid(), "evil[31mname"));
        assert_eq!(process.command_line.as_deref(), Some("evil[31m name"));
    }
}

/// Control groups of version 1, in a hierarchy that has a name and no controllers. Every kernel supports a hierarchy
/// without controllers. If this value is dropped, the hierarchy ends.
struct NamedHierarchy {
    place: tempfile::TempDir,
    options: String,
}

impl NamedHierarchy {
    const GROUPS: [&str; 3] = ["kubepods", "burstable", "pod0e6a3a0c-5a0b-4b1e-8d6e-3f2b1c0d9e8f"];

    fn mount(name: &str) -> Self {
        unshare(CloneFlags::CLONE_NEWNS).expect("root may");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).expect("private");
        let place = tempfile::tempdir().expect("a directory");
        let made = Self { place, options: format!("none,name=portreeve-{}-{name}", std::process::id()) };
        made.mount_again();
        fs::create_dir_all(made.group()).expect("made");
        made
    }

    fn mount_again(&self) {
        mount(Some("cgroup"), self.place.path(), Some("cgroup"), MsFlags::empty(), Some(self.options.as_str()))
            .expect("a kernel with control groups of version 1");
    }

    fn group(&self) -> PathBuf {
        Self::GROUPS.iter().fold(self.place.path().to_owned(), |path, name| path.join(name)).join(CONTAINER)
    }

    fn is_gone(&self) -> bool {
        let name = self.options.trim_start_matches("none,");
        let own = fs::read_to_string("/proc/thread-self/cgroup").expect("control groups");
        !own.lines().any(|line| line.split(':').nth(1) == Some(name))
    }
}

impl Drop for NamedHierarchy {
    /// The kernel removes a hierarchy without groups a moment after the last unmount. If the kernel does not remove a
    /// hierarchy, the hierarchy exists until the next boot.
    fn drop(&mut self) {
        let group = self.group();
        for directory in group.ancestors().take_while(|it| *it != self.place.path()) {
            process::eventually(|| fs::remove_dir(directory).ok()).expect("a control group without processes");
        }
        umount2(self.place.path(), MntFlags::empty()).expect("no process uses it");
        let ends_by_itself = || {
            (0..100).any(|_| {
                thread::sleep(Duration::from_millis(20));
                self.is_gone()
            })
        };
        let ends = (0..10).any(|_| {
            let is_over = ends_by_itself();
            if !is_over {
                self.mount_again();
                umount2(self.place.path(), MntFlags::empty()).expect("no process uses it");
            }
            is_over
        });
        assert!(ends, "the hierarchy ends");
    }
}

/// Unmounts cgroup2. The calling thread must have its own mount namespace.
fn hide_cgroup2() {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("mounts");
    let of_cgroup2 = mounts.lines().filter(|line| line.contains(" - cgroup2 "));
    for place in of_cgroup2.filter_map(|line| line.split(' ').nth(4)) {
        umount2(place, MntFlags::MNT_DETACH).expect("cgroup2 is mounted");
    }
}

/// Fault (kernel): the node has control groups of version 1 and 2 (hybrid), and version 2 has no pods
/// Does: finds the pod of the process that holds the socket; if processes are unreadable, names no pod
/// Right again: always
/// Lost: nothing
///
/// Fault (kernel): the node has only control groups of version 1
/// Does: finds the pod of the process that holds the socket; if processes are unreadable, the pod is unread
/// Right again: always
/// Lost: nothing
#[test]
fn under_control_groups_of_version_1_pods_are_named_by_their_processes() {
    let _namespace = Namespace::enter();
    let hierarchy = NamedHierarchy::mount("pods");
    let runtime = ControlGroup::make("of-the-runtime", "here");
    // In cgroup2, the process is in the container runtime's group. In version 1, the process is in the pod's group.
    let procs = hierarchy.group().join("cgroup.procs");
    let joining = format!(
        "open my $f, '>', '{}' or die $!; print $f $$ or die $!; close $f or die $!; {LISTEN}",
        procs.display()
    );
    let child = process::Process::start(Some(&runtime), &joining);
    let names_the_pod = |groups: &str| {
        let holder = holder(owner_of_only_listener(&owners(false)));
        assert_eq!(holder.process.seen().map(|it| it.pid), Some(child.pid()), "{groups}");
        let found = holder.cgroup.seen().unwrap_or_else(|| panic!("{groups}: {holder:?}"));
        let pod = found.pod.as_ref().unwrap_or_else(|| panic!("{groups}: {found:?}"));
        assert_eq!((pod.pod_uid.as_str(), pod.container.as_deref()), (POD, Some(CONTAINER)), "{groups}");
    };
    let by_itself = || {
        let [listener] = &listeners()[..] else { panic!("not one listener") };
        let id = listener.cgroup.expect("a cgroup");
        Cgroups::find(Path::new("/")).of(&[id].into())[&id].clone()
    };
    assert_eq!(by_itself().expect("the runtime's").pod, None, "the socket alone shows no pod");
    names_the_pod("hybrid");
    // A second thread unmounts cgroup2 in a mount namespace of its own. The main thread still needs the mount, to
    // remove the groups at the end.
    let alone = thread::scope(|scope| {
        let alone = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("root may");
            hide_cgroup2();
            assert_eq!(by_itself().expect_err("no cgroup2").why, Why::NotSupported, "the socket alone shows no cgroup");
            names_the_pod("version 1 alone");
        });
        alone.join()
    });
    alone.expect("the pod is named");
    drop(child);
}

/// Fault (kernel): a control group is removed while the agent reads sockets
/// Does: keeps the socket; the owner is unread (stale)
/// Right again: with the next scan
/// Lost: the owner’s name
#[test]
fn a_cgroup_is_found_by_its_id_and_one_that_was_removed_is_stale() {
    let _namespace = Namespace::enter();
    let cgroup = ControlGroup::make("removed", "here");
    let child = process::Process::start(Some(&cgroup), LISTEN);
    let [listener] = &listeners()[..] else { panic!("not one listener") };
    let id = listener.cgroup.expect("a cgroup");
    let cgroups = Cgroups::find(Path::new("/"));
    assert_eq!(cgroups.of(&[id].into())[&id].as_ref().map(|cgroup| cgroup.path.clone()), Ok(cgroup.name()));
    drop((child, cgroup));
    assert_eq!(cgroups.of(&[id].into())[&id].as_ref().expect_err("removed").why, Why::Stale);
    assert_eq!(listeners(), [], "its sockets ended too");
}

#[test]
fn the_oldest_of_several_holders_is_named() {
    let _namespace = Namespace::enter();
    let forked = LISTEN.replace("$| = 1;", "$| = 1; if (fork() == 0) { <STDIN>; exit } sleep 0.1;");
    let parent = process::Process::start(None, &format!("$SIG{{TERM}} = 'DEFAULT'; {forked}"));
    let process = holder(owner_of_only_listener(&owners(false))).process;
    assert_eq!(process.seen().map(|process| process.pid), Some(parent.pid()));
}

#[test]
fn a_socket_of_the_kernel_is_recognized_by_its_link_and_by_the_lack_of_a_holder() {
    let namespace = Namespace::enter();
    namespace.ip("link add overlay type vxlan id 7 dstport 8472 local 127.0.0.1");
    // The socket belongs to the control group of the process that sets the link up. On a node, a daemon may set the
    // link up.
    namespace.in_root_cgroup("ip link set overlay up");
    let sockets = listeners();
    let claims: Vec<_> = sockets.iter().map(Claim::from).collect();
    assert!(!claims.is_empty() && claims.iter().all(|claim| claim.local_port == 8472), "{sockets:?}");
    let node = node_of_this_process();
    let owners = |tunnels| Owners::live(node.path(), tunnels, false);
    for (owners, link) in [(owners(vec![(8472, "overlay".to_owned())]), "overlay"), (owners(Vec::new()), "")] {
        for owner in owners.of(&claims) {
            assert_eq!(owner, Owner::Kernel { link: link.to_owned() });
        }
    }
}

#[test]
fn a_socket_that_is_passed_between_processes_belongs_to_its_maker_and_not_to_the_kernel() {
    let _namespace = Namespace::enter();
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    setfsuid(Uid::from_raw(65534));
    let listener = TcpListener::bind("127.0.0.1:30080").expect("bound");
    setfsuid(Uid::from_raw(0));
    let descriptors = [listener.as_raw_fd()];
    let passed = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(ours.as_raw_fd(), &[IoSlice::new(b"x")], &passed, MsgFlags::empty(), None).expect("sent");
    drop(listener);
    let node = node_of_this_process();
    let process = holder(owner_of_only_listener(&Owners::live(node.path(), Vec::new(), false))).process;
    assert!(process.gap().expect("no process").detail.contains("no process has a descriptor"), "{process:?}");
}

/// Fault (kernel): a socket closes before the agent finds its owner
/// Does: reports a closed socket, and not the kernel as owner
/// Right again: with the next scan
/// Lost: nothing
#[test]
fn a_socket_that_closed_meanwhile_is_not_the_kernels() {
    let _namespace = Namespace::enter();
    let listener = TcpListener::bind("127.0.0.1:30080").expect("bound");
    let claims: Vec<_> = listeners().iter().map(Claim::from).collect();
    drop(listener);
    let node = node_of_this_process();
    let process = holder(Owners::live(node.path(), Vec::new(), false).of(&claims).remove(0)).process;
    assert_eq!(process.gap().expect("no process").why, Why::Stale);
    assert_eq!(listeners(), [], "the next scan has no such socket");
}

#[test]
fn fd_use_equals_the_values_in_proc() {
    let _namespace = Namespace::enter();
    let child = process::Process::start(None, LISTEN);
    let open = fs::read_dir(format!("/proc/{}/fd", child.pid())).expect("its descriptors").count();
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let used = fds_of(Path::new("/proc"), child.pid()).expect("readable");
    assert_eq!((used.open, used.limit), (u64::try_from(open).expect("few"), soft));
}
