//! Whether the agent lives: the event loop runs, the scanner is not stuck. Never whether the API server answers.
//!
//! The port may be somebody else's, so that an exec probe cannot ask over HTTP. It reads a file into which the agent
//! writes until when, on the clock since boot, it certainly lives.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::PoisonError,
    time::Duration,
};

use nix::fcntl::OFlag;
use tokio::time::interval;
use tracing::warn;

use super::scanner::Busy;

/// How long one reading of the node may take.
const STUCK: Duration = Duration::from_secs(60);
/// How often the file is written.
const BEAT: Duration = Duration::from_secs(5);
/// How long a beat is good for, in seconds.
const GOOD: u64 = 30;

/// Why a probe fails.
#[derive(Debug, thiserror::Error)]
pub enum Dead {
    /// The file cannot be read: no agent has written it.
    #[error("reading the heartbeat {path}: {error}")]
    Unread {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The agent has not beaten for too long.
    #[error("the last heartbeat in {path} is too old")]
    Silent {
        /// The file.
        path: PathBuf,
    },
}

/// Whether the agent that beats into `path` lives.
///
/// # Errors
/// When it does not, or nobody can tell.
pub fn probe(path: &Path) -> Result<(), Dead> {
    let read = || -> io::Result<(u64, u64)> {
        let mut beat = String::new();
        fs::File::open(path)?.take(64).read_to_string(&mut beat)?;
        Ok((beat.trim().parse().map_err(io::Error::other)?, since_boot()?))
    };
    match read() {
        Ok((good, now)) if now <= good && good <= now + GOOD => Ok(()),
        Ok(_) => Err(Dead::Silent { path: path.to_owned() }),
        Err(error) => Err(Dead::Unread { path: path.to_owned(), error }),
    }
}

/// Whether the scanner is waiting, or has not been reading for too long.
pub(super) fn is_alive(busy: &Busy) -> bool {
    busy.lock().unwrap_or_else(PoisonError::into_inner).is_none_or(|since| since.elapsed() < STUCK)
}

/// Beats as long as the loop runs and the scanner is not stuck.
pub(super) async fn beat(path: PathBuf, busy: Busy) {
    let mut ticks = interval(BEAT);
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
    let flags = OFlag::O_NOFOLLOW.bits();
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).custom_flags(flags).open(path)?;
    file.write_all(format!("{:020}\n", since_boot()? + GOOD).as_bytes())
}

/// Seconds since boot: one clock for every process, which nobody sets.
fn since_boot() -> io::Result<u64> {
    let uptime = fs::read_to_string("/proc/uptime")?;
    uptime.split('.').next().unwrap_or("").parse().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_beat_is_life_and_an_old_or_missing_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("heartbeat");
        assert!(matches!(probe(&path), Err(Dead::Unread { .. })));
        write(&path).expect("a beat");
        probe(&path).expect("it lives");
        fs::write(&path, format!("{:020}\n", 0)).expect("an old beat");
        assert!(matches!(probe(&path), Err(Dead::Silent { .. })));
    }

    #[test]
    fn a_beat_never_follows_a_link_that_somebody_laid_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let (link, target) = (directory.path().join("heartbeat"), directory.path().join("precious"));
        fs::write(&target, "precious").expect("a file");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        assert!(write(&link).is_err());
        assert_eq!(fs::read_to_string(&target).expect("a file"), "precious");
    }

    #[test]
    fn a_scanner_that_is_stuck_is_no_life() {
        let busy = Busy::default();
        assert!(is_alive(&busy));
        let long_ago = std::time::Instant::now().checked_sub(2 * STUCK);
        *busy.lock().expect("a lock") = long_ago;
        assert!(long_ago.is_none() || !is_alive(&busy));
    }
}
