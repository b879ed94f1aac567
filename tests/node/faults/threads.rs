//! Stops one thread of a program, as if a read in this thread never returned.

use std::{cell::Cell, fs, path::Path, thread::sleep, time::Duration};

use nix::{
    libc::SYS_futex,
    sys::{
        ptrace,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

use crate::agent::until;

/// A thread that is stopped until this value is dropped. The other threads of its program run. The thread of the test
/// that made the value must also drop the value.
pub(super) struct Stopped {
    thread: Pid,
    has_ended: Cell<bool>,
}

impl Stopped {
    /// Stops the thread with this name while the thread works. A thread that waits for work is not stopped.
    #[track_caller]
    pub(super) fn at_work(name: &str, program: Pid) -> Self {
        let caught = until(|| {
            let stopped = Self::named(name, program);
            let call =
                fs::read_to_string(format!("/proc/{program}/task/{}/syscall", stopped.thread)).expect("a thread");
            let waits = call.split(' ').next().is_some_and(|call| call == SYS_futex.to_string());
            (!waits).then_some(stopped)
        });
        caught.unwrap_or_else(|| panic!("{name} never works"))
    }

    #[track_caller]
    fn named(name: &str, program: Pid) -> Self {
        let mut threads = fs::read_dir(format!("/proc/{program}/task")).expect("a program");
        let is_it = |path: &Path| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
        let path = threads.find_map(|entry| Some(entry.expect("a thread").path()).filter(|path| is_it(path)));
        let path = path.unwrap_or_else(|| panic!("no thread {name}"));
        let id = path.file_name().and_then(|id| id.to_str()?.parse().ok()).expect("a thread id");
        let thread = Pid::from_raw(id);
        ptrace::seize(thread, ptrace::Options::empty()).expect("root may trace");
        ptrace::interrupt(thread).expect("the thread is traced");
        waitpid(thread, Some(WaitPidFlag::__WALL)).expect("the thread stops");
        Self { thread, has_ended: Cell::new(false) }
    }

    /// Waits until the stopped thread has ended with its program. After this function returns, the parent process can
    /// see the end of the program.
    #[track_caller]
    pub(super) fn until_it_ends(&self) {
        let ended = until(|| {
            let status =
                waitpid(self.thread, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)).expect("the thread is traced");
            matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..)).then_some(())
        });
        ended.expect("its program ends");
        self.has_ended.set(true);
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if !self.has_ended.get() && ptrace::detach(self.thread, None).is_err() {
            // The thread was killed with its program, and `waitpid` removes its entry.
            waitpid(self.thread, Some(WaitPidFlag::__WALL)).ok();
        }
        // Lets the thread run for a moment, because a test may stop the same thread again.
        sleep(Duration::from_millis(1));
    }
}
