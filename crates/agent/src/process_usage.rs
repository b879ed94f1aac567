//! What this process uses: processor time, memory, file descriptors.

use std::{fs, time::Duration};

use jiff::Timestamp;
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};

use crate::metrics::ProcessUse;

/// Reads the usage of this process, which began at `started`.
pub(super) fn usage(started: Timestamp) -> ProcessUse {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |field: &str| {
        Some(
            1024 * status
                .lines()
                .find_map(|line| line.strip_prefix(field))?
                .trim()
                .strip_suffix(" kB")?
                .parse::<u64>()
                .ok()?,
        )
    };
    let cpu = getrusage(UsageWho::RUSAGE_SELF).map(|usage| {
        let seconds = |it: nix::sys::time::TimeVal| {
            Duration::new(it.tv_sec().unsigned_abs(), 1000 * u32::try_from(it.tv_usec()).unwrap_or(0)).as_secs_f64()
        };
        seconds(usage.user_time()) + seconds(usage.system_time())
    });
    ProcessUse {
        cpu_seconds: cpu.ok(),
        resident_bytes: bytes("VmRSS:"),
        virtual_bytes: bytes("VmSize:"),
        open_fds: fs::read_dir("/proc/self/fd").ok().map(|fds| fds.count() as u64),
        max_fds: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
        started: Some(started),
    }
}
