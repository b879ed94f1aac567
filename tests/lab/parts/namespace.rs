//! Network namespaces, each of which exists as long as a thread.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
    sync::mpsc::{Sender, channel},
    thread::{self, JoinHandle},
};

use nix::{
    sched::{CloneFlags, unshare},
    unistd::gettid,
};

/// Moves the calling thread into a new network namespace, which exists until the thread and its children end.
#[track_caller]
pub fn enter() {
    unshare(CloneFlags::CLONE_NEWNET).expect("the lab makes network namespaces: run these tests as root, `make lab`");
    // Without this setting, the kernel would add link-local addresses to the addresses of the lab.
    sysctl("net.ipv6.conf.default.addr_gen_mode", "1");
    ip(&["link set lo up".to_owned()]);
}

#[track_caller]
pub fn ip(commands: &[String]) {
    let mut child =
        Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("`ip` of iproute2 is installed");
    let lines = commands.join("\n") + "\n";
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("ip reads its commands");
    assert!(child.wait().expect("ip ends").success(), "{lines}");
}

#[track_caller]
pub fn sysctl(name: &str, value: &str) {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
}

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace. A separate thread keeps the namespace until this value is dropped.
pub struct Namespace {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    path: String,
}

impl Namespace {
    pub fn new() -> Self {
        let (jobs, to_do) = channel::<Job>();
        let (ready, thread_id) = channel();
        let thread = thread::spawn(move || {
            enter();
            ready.send(gettid()).expect("the maker waits");
            for job in to_do {
                job();
            }
        });
        let thread_id = thread_id.recv().expect("a namespace");
        let path = format!("/proc/{}/task/{thread_id}/ns/net", std::process::id());
        Self { jobs: Some(jobs), thread: Some(thread), path }
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Threads that the closure starts are in the namespace too.
    #[track_caller]
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let job = Box::new(move || done.send(job()).expect("somebody waits"));
        self.jobs.as_ref().expect("it is taken only when dropped").send(job).expect("the thread runs");
        result.recv().expect("what was run in another namespace did not panic")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        let ended = self.thread.take().expect("it is taken only here").join();
        assert!(ended.is_ok() || thread::panicking(), "a thread in another namespace panicked");
    }
}
