//! Processes below `/proc`, and the sockets that they own. A later process with an equal pid has another start time.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::unix::fs::DirEntryExt,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

use crate::{
    cgroup::cgroup_of_process,
    proc_net::why,
    root::{read_unsized, read_unsized_text},
};
use portreeve_facts::{Cgroup, FdUse, Gap, Process, Source, Why, text};

/// The longest name of a command, in bytes. The kernel keeps 15 bytes for a process, and 63 bytes for a kernel thread.
const COMMAND: usize = 64;
const COMMAND_LINE: usize = 512;
/// The greatest length of a file, in bytes: `ONE_LINE` for a file with one line, `ONE_FILE` for other files.
const ONE_LINE: u64 = 4096;
const ONE_FILE: u64 = 64 * 1024;
/// The kubectl plugin also compiles on macOS, which has another name for this clock.
#[cfg(target_os = "linux")]
const SINCE_BOOT: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(target_os = "linux"))]
const SINCE_BOOT: ClockId = ClockId::CLOCK_MONOTONIC;
/// The search for socket owners reads at most `DESCRIPTORS` descriptors in a scan, and `DESCRIPTORS_OF_ONE` in a
/// process. readlink(2) takes about a microsecond, and a process may have a million open files.
const DESCRIPTORS: usize = 1_000_000;
const DESCRIPTORS_OF_ONE: usize = 250_000;
/// The longest time to wait for command lines in a scan, for all processes together.
const SLOW_MEMORY: Duration = Duration::from_secs(2);
/// The inode of the initial pid namespace (include/linux/proc_ns.h `PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The processes below one `/proc`.
pub struct Processes<'a> {
    proc: &'a Path,
    command_lines: bool,
    /// Processes whose descriptors were read, or whose descriptors could not be read.
    searched: HashSet<u32>,
    denied: u32,
    /// The number of descriptors that may still be read in this scan.
    left: usize,
    /// The number of processes with some unread descriptors.
    cut: u32,
    /// The time that may still be spent waiting for command lines.
    patience: Duration,
}

impl<'a> Processes<'a> {
    /// The processes below `proc`. If `command_lines` is true, the command lines of the processes are also read.
    pub fn new(proc: &'a Path, command_lines: bool) -> Self {
        Self {
            proc,
            command_lines,
            searched: HashSet::new(),
            denied: 0,
            left: DESCRIPTORS,
            cut: 0,
            patience: SLOW_MEMORY,
        }
    }

    /// Every visible pid.
    pub fn every_pid(&self) -> Result<Vec<u32>, Gap> {
        pids(self.proc)
            .map(|pids| pids.into_iter().map(|(pid, _)| pid).collect())
            .map_err(|error| Gap::new(Source::Processes, why(&error), format!("{}: {error}", self.proc.display())))
    }

    /// Searches `pids` for the owners of the `missing` sockets. If several processes have a socket, its owner is the
    /// oldest of these processes. Sockets that were found are removed from `missing`.
    pub fn owners(&mut self, mut pids: Vec<u32>, missing: &mut HashSet<u64>) -> HashMap<u64, Process> {
        pids.retain(|pid| self.searched.insert(*pid));
        let mut by_age = Vec::with_capacity(pids.len());
        for pid in pids {
            match self.started(pid) {
                Ok(started) => by_age.push((started, pid)),
                Err(error) => self.denied += u32::from(!is_gone(&error)),
            }
        }
        by_age.sort_unstable();
        let mut found = HashMap::new();
        for (started, pid) in by_age {
            if missing.is_empty() {
                break;
            }
            let held = self.sockets(pid, missing).unwrap_or_else(|error| {
                self.denied += u32::from(!is_gone(&error));
                HashSet::new()
            });
            if held.is_empty() {
                continue;
            }
            match self.describe(pid, started) {
                Ok(Some(process)) => {
                    for inode in held {
                        missing.remove(&inode);
                        found.insert(inode, process.clone());
                    }
                }
                Ok(None) => {}
                Err(error) => self.denied += u32::from(!is_gone(&error)),
            }
        }
        found
    }

    /// The reason why an owner may have been overlooked. `None` if every process was searched.
    pub fn overlooked(&self) -> Option<Gap> {
        let cut = || format!("{} processes have too many descriptors to read them all", self.cut);
        let detail = if self.denied > 0 {
            let also = if self.cut > 0 { format!("; {}", cut()) } else { String::new() };
            format!("{} processes do not show their descriptors: this needs CAP_SYS_PTRACE{also}", self.denied)
        } else if self.cut > 0 {
            return Some(Gap::new(Source::Processes, Why::TooMuch, cut()));
        } else if !sees_the_node(self.proc) {
            "only processes of this pid namespace are visible (no hostPID)".to_owned()
        } else {
            return None;
        };
        Some(Gap::new(Source::Processes, Why::NotPermitted, detail))
    }

    fn path(&self, pid: u32, file: &str) -> PathBuf {
        self.proc.join(pid.to_string()).join(file)
    }

    /// The start time of a process, in clock ticks since boot.
    fn started(&self, pid: u32) -> io::Result<u64> {
        let stat = read_unsized_text(&self.path(pid, "stat"), ONE_LINE)?;
        started(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn sockets(&mut self, pid: u32, wanted: &HashSet<u64>) -> io::Result<HashSet<u64>> {
        let fds = self.path(pid, "fd");
        // The set may be large: a process may listen on one port at thousands of addresses.
        let mut held = HashSet::new();
        let mut of_process = DESCRIPTORS_OF_ONE.min(self.left);
        let mut scan = |fd: &Path| -> io::Result<bool> {
            let Some(fewer) = of_process.checked_sub(1) else {
                self.cut += 1;
                return Ok(true);
            };
            of_process = fewer;
            self.left -= 1;
            let target = fs::read_link(fds.join(fd))?;
            let inode = target.to_str().and_then(socket_inode).filter(|inode| wanted.contains(inode));
            held.extend(inode);
            Ok(held.len() == wanted.len())
        };
        // Listeners usually have low descriptor numbers, so low numbers are tried first. A list of all descriptors
        // would take long if the process has thousands of connections.
        let mut next = 0_u32;
        loop {
            match scan(next.to_string().as_ref()) {
                Ok(true) => return Ok(held),
                Ok(false) => next += 1,
                // The process has no descriptor with this number.
                Err(error) if is_gone(&error) => break,
                Err(error) => return Err(error),
            }
        }
        for entry in fs::read_dir(&fds)? {
            let fd = entry?.file_name();
            if fd.to_str().and_then(|fd| fd.parse().ok()).is_some_and(|fd: u32| fd < next) {
                continue;
            }
            match scan(fd.as_ref()) {
                Ok(true) => break,
                Ok(false) => {}
                // A descriptor that was closed during the scan has no socket.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(held)
    }

    /// Describes a process. `None` if the process ended, or if another process now has the pid.
    fn describe(&mut self, pid: u32, started: u64) -> io::Result<Option<Process>> {
        let command = read_unsized(&self.path(pid, "comm"), ONE_LINE)?;
        let command_line = if self.command_lines { self.command_line(pid)? } else { None };
        Ok((self.started(pid)? == started).then(|| Process {
            pid,
            command: text::clean(&String::from_utf8_lossy(&command), COMMAND),
            command_line: command_line.map(|line| text::clean(&arguments(&line), COMMAND_LINE)),
            started,
        }))
    }

    /// The command line of a process. `None` if the command line does not arrive in time. The kernel reads the command
    /// line from the memory of the process. The memory of a process may be a file on a file system that never answers.
    /// A process can also make its command line terabytes long (prctl(2) `PR_SET_MM`). The total time to wait for
    /// command lines is limited, and at most one thread continues to wait.
    fn command_line(&mut self, pid: u32) -> io::Result<Option<Vec<u8>>> {
        let path = self.path(pid, "cmdline");
        if self.patience.is_zero() {
            return Ok(None);
        }
        let began = Instant::now();
        let read = in_time(self.patience, move || read_unsized(&path, ONE_LINE));
        self.patience = self.patience.saturating_sub(began.elapsed());
        match read {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            read => read.map(Some),
        }
    }
}

/// The result of `read`, if it arrives within `limit`. Another process may delay the result forever. So `read` runs on
/// a separate thread, which may continue to wait.
///
/// # Errors
/// An error of `read`, or a panic of `read`. [`io::ErrorKind::TimedOut`] if the result did not arrive: the thread stays
/// until the kernel releases it. Also `TimedOut` if no thread could be made.
fn in_time<T: Send + 'static>(limit: Duration, read: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let (answer, answered) = mpsc::sync_channel(1);
    let never = || Err(io::ErrorKind::TimedOut.into());
    if thread::Builder::new().name("read".to_owned()).spawn(move || answer.send(read())).is_err() {
        return never();
    }
    match answered.recv_timeout(limit) {
        Ok(answer) => answer,
        Err(RecvTimeoutError::Timeout) => never(),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the reader panicked")),
    }
}

/// The cgroup of a process, if the cgroup can be read and the pid still belongs to this process.
pub fn cgroup_of(proc: &Path, process: &Process) -> Option<Cgroup> {
    let directory = proc.join(process.pid.to_string());
    let text = read_unsized_text(&directory.join("cgroup"), ONE_FILE).ok()?;
    let stat = read_unsized_text(&directory.join("stat"), ONE_LINE).ok()?;
    cgroup_of_process(&text).filter(|_| started(&stat) == Some(process.started))
}

/// The number of open descriptors of a process, and its soft limit. `proc` is the mount of the host's `/proc`.
///
/// # Errors
/// A [`Gap`] of [`Source::ProxyProcess`] with the file that could not be read.
pub fn fds_of(proc: &Path, pid: u32) -> Result<FdUse, Gap> {
    let directory = proc.join(pid.to_string());
    let unread = |file: &Path, error: &io::Error| {
        let why = if is_gone(error) { Why::Stale } else { why(error) };
        Gap::new(Source::ProxyProcess, why, format!("{}: {error}", file.display()))
    };
    let fds = directory.join("fd");
    let open = fs::read_dir(&fds).map_err(|error| unread(&fds, &error))?.count();
    let file = directory.join("limits");
    let limits = read_unsized_text(&file, ONE_FILE).map_err(|error| unread(&file, &error))?;
    let limit = open_files_limit(&limits).ok_or_else(|| {
        Gap::new(Source::ProxyProcess, Why::Malformed, format!("{}: wanted `Max open files`", file.display()))
    })?;
    Ok(FdUse { open: u64::try_from(open).unwrap_or(u64::MAX), limit })
}

/// Each pid below `proc`, with the inode of its directory.
pub fn pids(proc: &Path) -> io::Result<Vec<(u32, u64)>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        pids.extend(entry.file_name().to_str().and_then(|name| Some((name.parse().ok()?, entry.ino()))));
    }
    Ok(pids)
}

/// Whether `proc` shows every process that can have a socket of the node. The function returns true in three cases.
/// First, `proc` shows the initial pid namespace. Second, `proc` shows a pid namespace outside of this process's own
/// namespace. Third, the node itself is a container that runs systemd (kind).
pub fn sees_the_node(proc: &Path) -> bool {
    let own = proc.join("thread-self");
    let read = |path: PathBuf| read_unsized_text(&path, ONE_FILE).unwrap_or_default();
    let (first, ours) = (read(proc.join("1/cgroup")), read(own.join("cgroup")));
    let initial = fs::read_link(own.join("ns/pid")).is_ok_and(|link| link.as_os_str() == INITIAL_PID_NAMESPACE);
    // With the mount option hidepid, even the process with pid 1 is hidden.
    !first.is_empty()
        && (initial
            || is_outside(&read(own.join("status")))
            || first != ours && first.lines().any(|line| line.starts_with("0::") && line.ends_with("/init.scope")))
}

/// Whether the status is from a pid namespace outside of this process's own namespace. `NSpid` begins with the pid in
/// the namespace of the `/proc` mount. Each further number is the pid in an inner namespace.
pub fn is_outside(status: &str) -> bool {
    // `Status` of `procfs_core` needs a dozen other lines, which a sandbox may leave out. So the line is parsed here.
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    pids.is_some_and(|pids| pids.split_ascii_whitespace().count() > 1)
}

/// Whether an error means that the process ended. A process that ended has no sockets.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32)
}

/// The inode in a link such as `socket:[4711]`.
pub fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Field 22 of `/proc/<pid>/stat`. Field 2, the command, may contain anything, including parentheses. `Stat` of
/// `procfs_core` would panic on a line with misplaced parentheses, and this line is read for every process of a node.
pub fn started(stat: &str) -> Option<u64> {
    let (_, behind_command) = stat.rsplit_once(')')?;
    behind_command.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The time at which this node booted, by the current clock. `/proc/stat` also has the boot time, but the kernel counts
/// all interrupts for each read of `/proc/stat`.
pub fn booted() -> Option<Timestamp> {
    let since_boot = clock_gettime(SINCE_BOOT).ok()?;
    Timestamp::now().checked_sub(Duration::from(since_boot)).ok()
}

/// A command line, with spaces between its arguments. Line breaks and tabs in an argument become one space, because
/// `text::clean` would join the words around them. A long line is cut first.
pub fn arguments(line: &[u8]) -> String {
    let line = line.get(..COMMAND_LINE * 4).unwrap_or(line);
    let in_one_line = |argument: &[u8]| {
        let text = String::from_utf8_lossy(argument);
        text.split(['\n', '\r', '\t']).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    };
    let arguments: Vec<_> = line.split(|byte| *byte == 0).map(in_one_line).collect();
    arguments.join(" ").trim_end().to_owned()
}

/// The soft limit in `Max open files  1024  524288  files`. `Limits` of `procfs_core` has three problems: `Limits`
/// ignores a read error, needs all sixteen limits, and can overflow on a line with few words.
pub fn open_files_limit(limits: &str) -> Option<u64> {
    let numbers = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match numbers.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests;
