//! A test machine without virtualization: a set of processes with their own mounts and control groups.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, id},
    sync::atomic::{AtomicU32, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use super::{directory::Directory, namespace::Namespace, process::Process};

/// The time limit for the kernel to remove killed processes.
const PATIENCE: Duration = Duration::from_secs(90);

/// The script of the machine's first process. The process is bash, which reaps orphaned processes. The process is in
/// the control group `init.scope`, like systemd in a container. From this group, Portreeve concludes that it sees a
/// whole node.
///
/// `/run` and `/dev/shm` are new and empty, so the machine has its own sockets, locks and shared memory. `/var/lib` and
/// `/var/log` are in the machine's directory, so that a failed test can keep them.
const INIT: &str = r#"
set -eu
echo 0 > "$1/init.scope/cgroup.procs"
mount -t tmpfs run /run
mount -t tmpfs shm /dev/shm
for folder in lib log; do
    mkdir "$2/$folder"
    mount --bind "$2/$folder" "/var/$folder"
done
touch "$2/ready"
sleep infinity & wait
"#;

/// A test machine with its own processes and mounts. The machine's network namespace is the namespace of the thread
/// that starts the machine, or a given namespace.
///
/// Dropping the value kills all processes of the machine.
pub struct Machine {
    first: Process,
    /// This field is dropped after `first`, because only the end of `first` kills the children of these programs. A
    /// dropped program waits until its control group is empty.
    programs: Vec<Process>,
    cgroup: ControlGroup,
    directory: Directory,
}

impl Machine {
    #[track_caller]
    pub fn start() -> Self {
        Self::start_by(&[])
    }

    #[track_caller]
    pub fn start_in(namespace: &Namespace) -> Self {
        Self::start_by(&["nsenter".to_owned(), format!("--net={}", namespace.path()), "--".to_owned()])
    }

    #[track_caller]
    fn start_by(command: &[String]) -> Self {
        let directory = Directory::new();
        let cgroup = ControlGroup::new();
        fs::create_dir(cgroup.unified().join("init.scope")).expect("control groups can be made");
        let arguments = ["-c", INIT, "bash", path(&cgroup.unified()), path(directory.path())].map(str::to_owned);
        let alone = ["unshare", "--pid", "--kill-child", "--mount-proc", "--"].map(str::to_owned);
        let mut first = Process::start_by(&[command, &alone].concat(), "/bin/bash", &arguments, directory.path());
        first.wait_for("machine", || directory.path().join("ready").exists().then_some(()));
        Self { first, programs: Vec::new(), cgroup, directory }
    }

    /// A command that runs a program on the machine. The caller appends the program and its arguments. If the command
    /// ends, the program ends too.
    pub fn command(&self) -> Vec<String> {
        let pid = self.first.pid();
        let (mounts, processes) = (format!("--target={pid}"), format!("--pid=/proc/{pid}/ns/pid_for_children"));
        let enter = ["nsenter", &mounts, "--mount", "--net", &processes, "--", "setpriv", "--pdeathsig", "KILL", "--"];
        enter.map(str::to_owned).to_vec()
    }

    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        let command = self.command();
        let output = Command::new(&command[0]).args(&command[1..]).args(arguments).output().expect("nsenter runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// The program runs until the machine ends.
    #[track_caller]
    pub fn start_program(&mut self, program: &str, arguments: &[String]) -> &mut Process {
        let process = Process::start_by(&self.command(), program, arguments, self.directory.path());
        self.programs.push(process);
        self.programs.last_mut().expect("one was added")
    }

    pub fn file(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.first.pid()))
    }

    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The command lines of all processes of the machine, by their pids in the machine's pid namespace.
    pub fn processes(&self) -> Vec<(u32, Vec<String>)> {
        // The `/proc` of the first process. The `/proc` of `unshare` would show the processes of the host.
        let proc = self.file("/proc");
        let entries = fs::read_dir(&proc).expect("a machine has /proc").map(|entry| entry.expect("an entry"));
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Leaves out a process that has ended, because it has no command line.
        let line = |pid: u32| Some((pid, fs::read(proc.join(format!("{pid}/cmdline"))).ok()?));
        let words = |line: Vec<u8>| {
            line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
        };
        pids.filter_map(line).map(|(pid, line)| (pid, words(line))).collect()
    }

    /// The control group in which the kubelet makes its groups, as a path from the root of each hierarchy.
    pub fn cgroup(&self) -> &str {
        &self.cgroup.0
    }

    pub fn pods(&self) -> Vec<PathBuf> {
        let groups = self.cgroup.hierarchies().into_iter().flat_map(|root| below(&root));
        let is_pod =
            |group: &PathBuf| group.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"pod"));
        groups.filter(is_pod).collect()
    }
}

/// A control group in each hierarchy of the host on which the tests run. When a test drops the value, these groups and
/// all groups below them are removed.
struct ControlGroup(String);

impl ControlGroup {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let made = Self(format!("portreeve-lab-{}-machine-{}", id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        for place in made.hierarchies() {
            fs::create_dir(&place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
        }
        made
    }

    fn hierarchies(&self) -> Vec<PathBuf> {
        let mount = Path::new("/sys/fs/cgroup");
        if mount.join("cgroup.controllers").exists() {
            return vec![mount.join(&self.0)];
        }
        let entries = fs::read_dir(mount).expect("control groups are mounted").map(|entry| entry.expect("an entry"));
        let real = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        real.map(|entry| entry.path().join(&self.0)).collect()
    }

    fn unified(&self) -> PathBuf {
        let is_unified = |it: &PathBuf| it.parent().is_some_and(|root| root.join("cgroup.controllers").exists());
        self.hierarchies().into_iter().find(is_unified).expect("a cgroup2 hierarchy is mounted")
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        for place in self.hierarchies() {
            for group in below(&place).into_iter().rev().chain([place]) {
                // A killed process leaves its control groups a moment later, so the removal is repeated.
                while let Err(error) = fs::remove_dir(&group) {
                    assert!(Instant::now() < end, "{}: {error}", group.display());
                    sleep(Duration::from_millis(5));
                }
            }
        }
    }
}

/// Lists the directories below `directory`. Each directory comes before its subdirectories.
fn below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // Ignores errors, because the directory may be removed during the walk.
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            let deeper = below(&path);
            found.push(path);
            found.extend(deeper);
        }
    }
    found
}

fn path(path: &Path) -> &str {
    path.to_str().expect("the lab's paths are UTF-8")
}
