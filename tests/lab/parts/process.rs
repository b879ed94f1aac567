//! A program that runs until its value is dropped.

use std::{
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{patience::patience, programs};

/// Runs a Go program with fewer garbage collections. A start of kube-apiserver and etcd then needs less processor time.
pub const FEWER_COLLECTIONS: [&str; 2] = ["env", "GOGC=400"];

const PATIENCE: Duration = Duration::from_secs(90);

/// A program in the network namespace of the thread that started it. The program's own control group identifies its
/// sockets. The program is killed when the value is dropped or the thread ends.
pub struct Process {
    child: Child,
    log: PathBuf,
    cgroup: PathBuf,
}

impl Process {
    /// The output goes to `<program>.log` in the directory.
    #[track_caller]
    pub fn start(program: &str, arguments: &[String], directory: &Path) -> Self {
        Self::start_by(&[], program, arguments, directory)
    }

    /// Starts the program through `command`, which gets the program and its arguments.
    #[track_caller]
    pub fn start_by(command: &[String], program: &str, arguments: &[String], directory: &Path) -> Self {
        let path = if program.starts_with('/') { PathBuf::from(program) } else { programs::find(program) };
        let program = path.file_name().and_then(OsStr::to_str).expect("a program has a name");
        let log = directory.join(format!("{program}.log"));
        let output = File::options().create(true).append(true).open(&log).expect("a log");
        let cgroup = own_cgroup(program);
        // The shell joins the control group before the program starts, because a socket belongs to the group in which
        // it was opened.
        let child = Command::new("sh")
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
            .arg(&cgroup)
            .args(["setpriv", "--pdeathsig", "KILL", "--"])
            .args(command)
            .arg(&path)
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output)
            .spawn()
            .expect("setpriv of util-linux is installed");
        Self { child, log, cgroup }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("a pid"));
        kill(pid, signal).expect("a child can be signalled");
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_some()
    }

    /// Waits until `probe` returns a value.
    ///
    /// # Panics
    /// Panics if the program ends, or after 90 seconds (more in a guest). The message contains the end of the program's
    /// log.
    #[track_caller]
    pub fn wait_for<T>(&mut self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        self.wait_within(PATIENCE, what, probe)
    }

    #[track_caller]
    pub fn wait_within<T>(&mut self, usual: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + patience(usual);
        loop {
            if let Some(answer) = probe() {
                return answer;
            }
            let ended = self.child.try_wait().expect("a child can be asked");
            assert!(ended.is_none() && Instant::now() < end, "no {what} ({ended:?}):\n{}", self.end_of_log());
            thread::sleep(Duration::from_millis(30));
        }
    }

    #[track_caller]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }

    fn end_of_log(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Process {
    /// Sends SIGKILL, because after SIGTERM kube-apiserver needs a minute to end.
    fn drop(&mut self) {
        self.child.kill().expect("a child that can be killed");
        self.child.wait().expect("a child that can be waited for");
        // A killed process leaves its control group a moment later, so the removal is repeated.
        let end = Instant::now() + patience(PATIENCE);
        while let Err(error) = fs::remove_dir(&self.cgroup) {
            assert!(Instant::now() < end, "{}: {error}", self.cgroup.display());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn own_cgroup(program: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let mount = places.into_iter().find(|place| place.join("cgroup.controllers").exists());
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("portreeve-lab-{}-{number}-{program}", std::process::id());
    let cgroup = mount.expect("a cgroup2 hierarchy is mounted").join(name);
    fs::create_dir(&cgroup).expect("cgroups can be made: run these tests as root");
    cgroup
}
