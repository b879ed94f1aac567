//! Watches over credential plug-ins: one that writes for ever, or that nobody waits for any more, is ended. They are the
//! only programs that this one starts.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    select, task,
    time::{sleep, timeout},
};

/// The most that a plug-in may write, in bytes: a token, and what it keeps in files.
const OUTPUT: u64 = 16 << 20;
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// The most processes of a plug-in that are looked at.
const PROCESSES: usize = 256;

/// Why work that starts plug-ins has no result.
#[derive(Debug)]
pub enum Ended {
    /// Its time was over.
    TimedOut,
    /// It panicked, with these words.
    Panicked(String),
}

/// Does work that may start plug-ins, on a thread of its own. What it has started is ended when its time is over, and when
/// nobody waits for the result any more.
pub async fn bounded<T: Send + 'static>(
    within: Duration,
    work: impl FnOnce(&PluginGuard) -> T + Send + 'static,
) -> Result<T, Ended> {
    let guard = PluginGuard::default();
    let _ends = EndOnDrop(guard.clone());
    let done = task::spawn_blocking({
        let guard = guard.clone();
        move || {
            guard.thread.store(thread(), Ordering::Relaxed);
            let done = work(&guard);
            // From now on its children are of no concern.
            guard.thread.store(0, Ordering::Relaxed);
            done
        }
    });
    let done = async {
        select! { done = done => done, never = guard.watch() => never }
    };
    match timeout(within, done).await {
        Err(_) => Err(Ended::TimedOut),
        Ok(done) => done.map_err(|panicked| Ended::Panicked(panicked.to_string())),
    }
}

/// Ends the plug-ins when the work is done or given up.
struct EndOnDrop(PluginGuard);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.left.store(true, Ordering::SeqCst);
        self.0.end();
    }
}

/// The plug-ins that one thread starts.
#[derive(Clone, Debug, Default)]
pub struct PluginGuard {
    thread: Arc<AtomicI32>,
    /// Nobody waits for them any more.
    left: Arc<AtomicBool>,
}

impl PluginGuard {
    /// Ends them all, where nobody waits for them any more.
    pub fn end_if_left(&self) {
        if self.left.load(Ordering::SeqCst) {
            self.end();
        }
    }

    /// Ends plug-ins that write too much, for as long as this is waited for.
    async fn watch(&self) -> ! {
        loop {
            sleep(LOOK).await;
            if self.processes().iter().map(|process| written(*process)).sum::<u64>() > OUTPUT {
                self.end();
            }
        }
    }

    /// Ends them all.
    fn end(&self) {
        for process in self.processes() {
            // One that has ended by itself is fine too.
            kill(Pid::from_raw(process), Signal::SIGKILL).ok();
        }
    }

    /// The children of the thread, and theirs.
    fn processes(&self) -> Vec<i32> {
        let thread = self.thread.load(Ordering::Relaxed);
        if thread == 0 {
            return Vec::new();
        }
        let mut all = children(&format!("/proc/self/task/{thread}/children"));
        let mut next = 0;
        while let Some(process) = all.get(next).copied().filter(|_| all.len() < PROCESSES) {
            all.extend(children(&format!("/proc/{process}/task/{process}/children")));
            next += 1;
        }
        all
    }
}

/// The number of the calling thread; 0 where its children are not listed.
fn thread() -> i32 {
    #[cfg(target_os = "linux")]
    return nix::unistd::gettid().as_raw();
    #[cfg(not(target_os = "linux"))]
    return 0;
}

/// The processes that a file of `/proc` lists; none where there is no such file.
fn children(path: &str) -> Vec<i32> {
    let listed = fs::read_to_string(path).unwrap_or_default();
    listed.split_ascii_whitespace().filter_map(|process| process.parse().ok()).take(PROCESSES).collect()
}

/// How much a process has written, in bytes.
fn written(process: i32) -> u64 {
    let counters = fs::read_to_string(format!("/proc/{process}/io")).unwrap_or_default();
    let written = counters.lines().find_map(|line| line.strip_prefix("wchar: "));
    written.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or_default()
}
