//! Control groups with limits, in the version that the machine has (1 or 2).

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, id},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::agent::until;

/// The mount of version 2. In version 1, each controller has its own mount below this path.
const ROOT: &str = "/sys/fs/cgroup";

/// All processes of the group must have ended before this value is dropped.
pub(super) struct ControlGroup {
    path: PathBuf,
    is_v1: bool,
}

impl ControlGroup {
    /// Makes a group for one of the controllers `cpu`, `memory` and `pids`.
    #[track_caller]
    pub(super) fn of(controller: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let v1 = Path::new(ROOT).join(controller);
        let is_v1 = v1.is_dir();
        if !is_v1 {
            fs::write(format!("{ROOT}/cgroup.subtree_control"), format!("+{controller}")).expect("root may");
        }
        let place = if is_v1 { v1 } else { ROOT.into() };
        let path = place.join(format!("portreeve-fault-{}-{}", id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&path).expect("control groups can be made: run these tests as root");
        Self { path, is_v1 }
    }

    pub(super) fn within(&self, command: &Command) -> Command {
        let mut within = Command::new("sh");
        within.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.path);
        within.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => within.env(name, value),
                None => within.env_remove(name),
            };
        }
        within
    }

    pub(super) fn limit_processor(&self, percent: u32) {
        let (quota, period) = (percent * 1000, 100_000);
        if self.is_v1 {
            self.write("cpu.cfs_period_us", &period.to_string());
            self.write("cpu.cfs_quota_us", &quota.to_string());
        } else {
            self.write("cpu.max", &format!("{quota} {period}"));
        }
    }

    pub(super) fn limit_memory(&self, mebibytes: u64) {
        let name = if self.is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
        self.write(name, &(mebibytes << 20).to_string());
    }

    pub(super) fn limit_threads(&self, threads: u64) {
        self.write("pids.max", &threads.to_string());
    }

    #[track_caller]
    fn write(&self, name: &str, value: &str) {
        let path = self.path.join(name);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Drop for ControlGroup {
    /// A killed process leaves the group a moment later, so the removal is repeated.
    fn drop(&mut self) {
        assert!(until(|| fs::remove_dir(&self.path).ok()).is_some(), "{} is not empty", self.path.display());
    }
}
