//! Processes below `/proc`: which of them own a socket, distinguished from later ones of the same pid.

use std::{
    cell::Cell,
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

/// The longest command, in bytes; the kernel keeps 15 of a process, 63 of a kernel thread.
const COMMAND: usize = 64;
/// The longest command line that is kept, in bytes.
const COMMAND_LINE: usize = 512;
/// What is read of a file of one line, and of one of many, at most, in bytes.
const ONE_LINE: u64 = 4096;
const ONE_FILE: u64 = 64 * 1024;
/// The clock that counts from boot. The plugin of kubectl compiles for macOS, whose clock has another name.
#[cfg(target_os = "linux")]
const SINCE_BOOT: ClockId = ClockId::CLOCK_BOOTTIME;
#[cfg(not(target_os = "linux"))]
const SINCE_BOOT: ClockId = ClockId::CLOCK_MONOTONIC;
/// The most descriptors that are looked at for owners in one look, and of one process: readlink(2) takes about a microsecond,
/// and a process may have a million of them for nothing.
const DESCRIPTORS: usize = 1_000_000;
const DESCRIPTORS_OF_ONE: usize = 250_000;
/// How long command lines are waited for, of all processes together.
const SLOW_MEMORY: Duration = Duration::from_secs(2);
/// The inode of the initial pid namespace (include/linux/proc_ns.h `PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The processes that a `/proc` shows.
pub struct Processes<'a> {
    proc: &'a Path,
    command_lines: bool,
    /// Processes whose descriptors were searched, or could not be.
    searched: HashSet<u32>,
    denied: u32,
    /// So many descriptors may still be looked at.
    left: Cell<usize>,
    /// Processes of which some were not.
    cut: Cell<u32>,
    /// So long command lines may still be waited for.
    patience: Cell<Duration>,
}

impl<'a> Processes<'a> {
    /// Those of a `/proc`; their command lines are read on request.
    pub fn new(proc: &'a Path, command_lines: bool) -> Self {
        Self {
            proc,
            command_lines,
            searched: HashSet::new(),
            denied: 0,
            left: Cell::new(DESCRIPTORS),
            cut: Cell::new(0),
            patience: Cell::new(SLOW_MEMORY),
        }
    }

    /// Every pid that is to be seen.
    pub fn every_pid(&self) -> Result<Vec<u32>, Gap> {
        pids(self.proc)
            .map(|pids| pids.into_iter().map(|(pid, _)| pid).collect())
            .map_err(|error| Gap::new(Source::Processes, why(&error), format!("{}: {error}", self.proc.display())))
    }

    /// The owners among `pids` of the sockets that are `missing`; the oldest process where there are several. What is found
    /// is removed from `missing`.
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

    /// Why an owner may have been overlooked, if one may have been.
    pub fn overlooked(&self) -> Option<Gap> {
        let cut = || format!("{} processes have more descriptors than are looked at", self.cut.get());
        let detail = if self.denied > 0 {
            let also = if self.cut.get() > 0 { format!("; {}", cut()) } else { String::new() };
            format!("{} processes do not show their descriptors: that takes CAP_SYS_PTRACE{also}", self.denied)
        } else if self.cut.get() > 0 {
            return Some(Gap::new(Source::Processes, Why::TooMuch, cut()));
        } else if !sees_the_node(self.proc) {
            "only processes of this pid namespace are to be seen (no hostPID)".to_owned()
        } else {
            return None;
        };
        Some(Gap::new(Source::Processes, Why::NotPermitted, detail))
    }

    fn path(&self, pid: u32, file: &str) -> PathBuf {
        self.proc.join(pid.to_string()).join(file)
    }

    /// When a process started, in clock ticks since boot.
    fn started(&self, pid: u32) -> io::Result<u64> {
        let stat = read_unsized_text(&self.path(pid, "stat"), ONE_LINE)?;
        started(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Those of the wanted inodes that a process holds.
    fn sockets(&self, pid: u32, wanted: &HashSet<u64>) -> io::Result<HashSet<u64>> {
        let fds = self.path(pid, "fd");
        // A process may listen on one port at tens of thousands of addresses.
        let mut held = HashSet::new();
        let mut of_process = DESCRIPTORS_OF_ONE.min(self.left.get());
        let mut look = |fd: &Path| -> io::Result<bool> {
            let Some(fewer) = of_process.checked_sub(1) else {
                self.cut.set(self.cut.get() + 1);
                return Ok(true);
            };
            of_process = fewer;
            self.left.set(self.left.get() - 1);
            let target = fs::read_link(fds.join(fd))?;
            let inode = target.to_str().and_then(socket_inode).filter(|inode| wanted.contains(inode));
            held.extend(inode);
            Ok(held.len() == wanted.len())
        };
        // Listeners have low numbers, and thousands of connections may follow, which take the kernel long to list.
        let mut next = 0_u32;
        loop {
            match look(next.to_string().as_ref()) {
                Ok(true) => return Ok(held),
                Ok(false) => next += 1,
                // A number that is free.
                Err(error) if is_gone(&error) => break,
                Err(error) => return Err(error),
            }
        }
        for entry in fs::read_dir(&fds)? {
            let fd = entry?.file_name();
            if fd.to_str().and_then(|fd| fd.parse().ok()).is_some_and(|fd: u32| fd < next) {
                continue;
            }
            match look(fd.as_ref()) {
                Ok(true) => break,
                Ok(false) => {}
                // A descriptor that was closed meanwhile holds nothing.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(held)
    }

    /// Nothing when the process ended, or the pid has become another one.
    fn describe(&self, pid: u32, started: u64) -> io::Result<Option<Process>> {
        let command = read_unsized(&self.path(pid, "comm"), ONE_LINE)?;
        let command_line = if self.command_lines { self.command_line(pid)? } else { None };
        Ok((self.started(pid)? == started).then(|| Process {
            pid,
            command: text::clean(&String::from_utf8_lossy(&command), COMMAND),
            command_line: command_line.map(|line| text::clean(&arguments(&line), COMMAND_LINE)),
            started,
        }))
    }

    /// The command line of a process; nothing where it does not come in time: it is read from the memory of the process, which
    /// may be a file of a file system of its own that never answers. It may also be made terabytes long (prctl(2)
    /// `PR_SET_MM`). Who makes many such processes is waited for no longer, and keeps one thread.
    fn command_line(&self, pid: u32) -> io::Result<Option<Vec<u8>>> {
        let path = self.path(pid, "cmdline");
        let patience = self.patience.get();
        if patience.is_zero() {
            return Ok(None);
        }
        let began = Instant::now();
        let read = in_time(patience, move || read_unsized(&path, ONE_LINE));
        self.patience.set(patience.saturating_sub(began.elapsed()));
        match read {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            read => read.map(Some),
        }
    }
}

/// The answer of `read`, where it comes within `limit`. What another process can keep from ending is done on a thread that may
/// be left behind.
///
/// # Errors
/// Those of `read`, and that it panicked; [`io::ErrorKind::TimedOut`], and then the thread stays until the kernel lets it go,
/// or there is none for it.
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

/// The cgroup of a process that was described, where it can be read and is still that of this process.
pub fn cgroup_of(proc: &Path, process: &Process) -> Option<Cgroup> {
    let directory = proc.join(process.pid.to_string());
    let text = read_unsized_text(&directory.join("cgroup"), ONE_FILE).ok()?;
    let stat = read_unsized_text(&directory.join("stat"), ONE_LINE).ok()?;
    cgroup_of_process(&text).filter(|_| started(&stat) == Some(process.started))
}

/// The open descriptors of a process and its soft limit; `proc` is where the host's `/proc` is mounted.
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

/// Every pid below a `/proc`, with the inode of its directory.
pub fn pids(proc: &Path) -> io::Result<Vec<(u32, u64)>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        pids.extend(entry.file_name().to_str().and_then(|name| Some((name.parse().ok()?, entry.ino()))));
    }
    Ok(pids)
}

/// Whether a `/proc` shows every process that can hold a socket of the node: it is that of the initial pid namespace,
/// or of one outside this process' own, or of a node that is itself a container and runs systemd (kind).
pub fn sees_the_node(proc: &Path) -> bool {
    let own = proc.join("thread-self");
    let read = |path: PathBuf| read_unsized_text(&path, ONE_FILE).unwrap_or_default();
    let (first, ours) = (read(proc.join("1/cgroup")), read(own.join("cgroup")));
    let initial = fs::read_link(own.join("ns/pid")).is_ok_and(|link| link.as_os_str() == INITIAL_PID_NAMESPACE);
    // With the mount option hidepid not even the first process is to be seen.
    !first.is_empty()
        && (initial
            || is_outside(&read(own.join("status")))
            || first != ours && first.lines().any(|line| line.starts_with("0::") && line.ends_with("/init.scope")))
}

/// Whether a `/proc` is of a pid namespace outside this process' own. `NSpid` begins with the pid in the namespace of that
/// `/proc`: two numbers are two namespaces.
pub fn is_outside(status: &str) -> bool {
    // Not `procfs_core`'s `Status`, which needs a dozen other lines too: a sandbox that leaves one out would hide this one.
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    pids.is_some_and(|pids| pids.split_ascii_whitespace().count() > 1)
}

/// A process that ended holds nothing.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32)
}

/// `socket:[4711]`.
pub fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Field 22 of `/proc/<pid>/stat`; field 2, the command, may hold anything, parentheses too. Not `procfs_core`'s `Stat`:
/// it panics on a line whose parentheses are not where they should be, and this is read of every process of a node.
pub fn started(stat: &str) -> Option<u64> {
    let (_, behind_command) = stat.rsplit_once(')')?;
    behind_command.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// When this node booted, by the clock of now. `/proc/stat` tells the same, at the price of counting all interrupts.
pub fn booted() -> Option<Timestamp> {
    let since_boot = clock_gettime(SINCE_BOOT).ok()?;
    Timestamp::now().checked_sub(Duration::from(since_boot)).ok()
}

/// A command line with its arguments joined by spaces; only the part that can be kept is looked at.
pub fn arguments(line: &[u8]) -> String {
    let line = line.get(..COMMAND_LINE * 4).unwrap_or(line);
    let arguments: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    arguments.join(" ").trim_end().to_owned()
}

/// The soft limit in `Max open files  1024  524288  files`. Not `procfs_core`'s `Limits`: it takes the end of what could be
/// read for the end of the file, needs all sixteen limits for this one, and can overflow on a line with fewer words.
pub fn open_files_limit(limits: &str) -> Option<u64> {
    let numbers = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match numbers.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests;
