//! Liveness: the event loop runs, and the scanner is not stuck. Whether the API server answers does not matter.
//!
//! Another process may have the agent's port, so an exec probe cannot use HTTP. It reads a file instead. The agent
//! writes into it until when, on the clock since boot, it counts as alive.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::PoisonError,
    time::Duration,
};

use nix::{fcntl::OFlag, unistd::geteuid};
use tokio::time::interval;
use tracing::warn;

use super::scanner::Busy;

/// How long one reading of the node may take.
const STUCK: Duration = Duration::from_secs(60);
/// How often the file is written.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a heartbeat is valid, in seconds.
const VALID: u64 = 30;

/// Why a probe fails.
#[derive(Debug, thiserror::Error)]
pub enum NotAlive {
    /// The file cannot be read: no agent has written it.
    #[error("reading the heartbeat {path}: {error}")]
    Unread {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The last heartbeat is too old.
    #[error("the last heartbeat in {path} is too old")]
    TooOld {
        /// The file.
        path: PathBuf,
    },
}

/// Succeeds when the agent that writes its heartbeat to `path` is alive.
///
/// # Errors
/// When it is not alive, or the file cannot be read.
pub fn probe(path: &Path) -> Result<(), NotAlive> {
    let read = || -> io::Result<(u64, u64)> {
        let mut text = String::new();
        let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
        own(file)?.take(64).read_to_string(&mut text)?;
        Ok((text.trim().parse().map_err(io::Error::other)?, since_boot()?))
    };
    match read() {
        Ok((valid_until, now)) if now <= valid_until && valid_until <= now + VALID => Ok(()),
        Ok(_) => Err(NotAlive::TooOld { path: path.to_owned() }),
        Err(error) => Err(NotAlive::Unread { path: path.to_owned(), error }),
    }
}

/// Whether the scanner waits for work, or has been reading for an acceptable time.
pub(super) fn is_alive(busy: &Busy) -> bool {
    busy.lock().unwrap_or_else(PoisonError::into_inner).is_none_or(|since| since.elapsed() < STUCK)
}

/// Writes heartbeats as long as the loop runs and the scanner is not stuck.
pub(super) async fn write_heartbeats(path: PathBuf, busy: Busy) {
    let mut ticks = interval(WRITE_INTERVAL);
    let mut failing = false;
    loop {
        ticks.tick().await;
        if !is_alive(&busy) {
            continue;
        }
        match write(&path) {
            Ok(()) => failing = false,
            Err(error) if !failing => {
                warn!(path = %path.display(), %error, "the heartbeat cannot be written");
                failing = true;
            }
            Err(_) => {}
        }
    }
}

/// Writes a line of one length in place, so that no reader sees half of it.
fn write(path: &Path) -> io::Result<()> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).custom_flags(flags).open(path)?;
    own(file)?.write_all(format!("{:020}\n", since_boot()? + VALID).as_bytes())
}

/// A pipe in place of the file would keep its reader, or its writer, waiting. Into a file of somebody else anybody may write that
/// the agent is alive.
fn own(file: fs::File) -> io::Result<fs::File> {
    let seen = file.metadata()?;
    let user = geteuid().as_raw();
    if !seen.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if ![user, 0].contains(&seen.uid()) || seen.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!(
            "user {} made it, with mode {:o}: wanted a file of user {user} into which nobody else may write",
            seen.uid(),
            seen.mode() & 0o777
        )));
    }
    Ok(file)
}

/// Seconds since boot: one clock for all processes, which cannot be set.
fn since_boot() -> io::Result<u64> {
    let uptime = fs::read_to_string("/proc/uptime")?;
    uptime.split('.').next().unwrap_or("").parse().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_heartbeat_means_alive_and_an_old_or_missing_one_does_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("heartbeat");
        assert!(matches!(probe(&path), Err(NotAlive::Unread { .. })));
        write(&path).expect("a heartbeat");
        probe(&path).expect("it is alive");
        fs::write(&path, format!("{:020}\n", 0)).expect("an old heartbeat");
        assert!(matches!(probe(&path), Err(NotAlive::TooOld { .. })));
    }

    #[test]
    fn a_heartbeat_is_never_written_through_a_symbolic_link() {
        let directory = tempfile::tempdir().expect("a directory");
        let (link, target) = (directory.path().join("heartbeat"), directory.path().join("precious"));
        fs::write(&target, "precious").expect("a file");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        assert!(write(&link).is_err());
        assert_eq!(fs::read_to_string(&target).expect("a file"), "precious");
    }

    #[test]
    fn a_pipe_in_place_of_the_heartbeat_keeps_nobody_waiting() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("heartbeat");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert!(matches!(probe(&path), Err(NotAlive::Unread { .. })));
        assert!(write(&path).is_err(), "nobody reads it");
        let _reader = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&path);
        assert!(write(&path).is_err(), "somebody reads it");
    }

    #[test]
    fn a_heartbeat_that_somebody_else_may_write_is_none() {
        use std::os::unix::fs::{PermissionsExt as _, chown};

        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("heartbeat");
        write(&path).expect("a heartbeat");
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its owner may");
        mode(0o666);
        let said = probe(&path).expect_err("anybody may write it").to_string();
        assert!(said.contains("with mode 666"), "{said}");
        mode(0o644);
        probe(&path).expect("it is alive");
        if geteuid().is_root() {
            chown(&path, Some(65534), None).expect("root may");
            assert!(probe(&path).is_err() && write(&path).is_err(), "it is another user's");
        }
    }

    #[test]
    fn a_stuck_scanner_is_not_alive() {
        let busy = Busy::default();
        assert!(is_alive(&busy));
        let long_ago = std::time::Instant::now().checked_sub(2 * STUCK);
        *busy.lock().expect("a lock") = long_ago;
        assert!(long_ago.is_none() || !is_alive(&busy));
    }
}
