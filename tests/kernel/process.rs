//! Processes and control groups that a test makes and removes.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A perl process that runs a script in the network namespace of the calling thread. If this value is dropped, the
/// process is killed. If a child process of the script waits for `<STDIN>`, the child process ends too.
pub struct Process(Child);

impl Process {
    /// Starts a script, and waits until the script prints a line.
    pub fn start(cgroup: Option<&ControlGroup>, script: &str) -> Self {
        let enter = cgroup.map_or(String::new(), |cgroup| format!("echo $$ > {} && ", cgroup.procs().display()));
        let mut child = Command::new("sh")
            .args(["-c", &format!("{enter}exec perl -MSocket -MIO::Socket::INET -e \"$0\""), script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh and perl are installed");
        let mut ready = String::new();
        let output = child.stdout.as_mut().expect("a pipe");
        BufReader::new(output).read_line(&mut ready).expect("a line");
        let process = Self(child);
        assert!(!ready.is_empty(), "the script ended before it was ready: {script}");
        process
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().expect("a child that can be killed");
        self.0.wait().expect("a child that can be waited for");
    }
}

/// A control group below the cgroup2 mount, and the groups above it. If this value is dropped, all these groups are
/// removed.
pub struct ControlGroup {
    mount: PathBuf,
    path: PathBuf,
}

impl ControlGroup {
    /// `name` must differ between the tests of one run.
    pub fn make(name: &str, below: &str) -> Self {
        let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let mount = places.into_iter().find(|place| place.join("cgroup.controllers").exists());
        let mount = mount.expect("a cgroup2 hierarchy is mounted");
        let path = mount.join(format!("portreeve-{}-{name}", std::process::id())).join(below);
        fs::create_dir_all(&path).expect("cgroups can be made: run these tests as root");
        Self { mount, path }
    }

    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    pub fn name(&self) -> String {
        format!("/{}", self.path.strip_prefix(&self.mount).expect("below the mount").display())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let ours: Vec<&Path> = self.path.ancestors().take_while(|directory| *directory != self.mount).collect();
        for directory in ours {
            // A killed process leaves its control group a moment later, so the removal is repeated.
            eventually(|| fs::remove_dir(directory).ok()).expect("a cgroup without processes can be removed");
        }
    }
}

pub fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match ask() {
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            answer => return answer,
        }
    }
}
