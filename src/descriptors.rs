//! Whether this process may open as many files as it takes to run at all.

use std::{
    io::{self, Error},
    os::fd::{AsFd as _, OwnedFd},
};

use anyhow::bail;
use nix::errno::Errno;

/// What one look, its event loop and a connection to the API server have open at once. The event loop of tokio panics where
/// it cannot have its own.
const NEEDED: usize = 16;

/// Says so, in one line, before anything is begun with too few.
pub(super) fn require() -> anyhow::Result<()> {
    let held: Result<Vec<OwnedFd>, Error> = (0..NEEDED).map(|_| io::stderr().as_fd().try_clone_to_owned()).collect();
    let errno = held.err().and_then(|error| error.raw_os_error()).map(Errno::from_raw);
    if matches!(errno, Some(Errno::EMFILE | Errno::ENFILE)) {
        bail!("too few files may be open: {NEEDED} more than at the start are needed (`ulimit -n`)");
    }
    Ok(())
}
