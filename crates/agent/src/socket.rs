//! The agent's socket in the file tree of the node. The owner of the socket can read every document without a token.

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::{
            fs::{FileTypeExt as _, MetadataExt as _},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    sys::{
        socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt::SendTimeout},
        stat::{Mode, fchmod},
        time::{TimeVal, TimeValLike as _},
    },
    unistd::geteuid,
};
use tokio::net::{UnixListener, UnixSocket};

const BACKLOG: u32 = 16;
/// How long a new agent waits to connect to an existing socket. If an agent listens at the socket, the new agent does
/// not start, even if the old agent does not answer.
const QUEUE_PATIENCE: Duration = Duration::from_millis(200);
const MODE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// The file of a listening socket. When this value is dropped, the file is removed. A different file with the same path
/// is not removed.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// The device and the inode of the file.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // The code ignores an error: the next agent replaces a leftover file.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Listens at `path`. Only the user who owns this file can connect to the socket. The function replaces the socket of
/// an ended agent of this user. The function refuses other files, and does not follow links.
///
/// # Errors
/// Fails if another file or a listening socket has this path, or if the directory cannot be written to.
pub(super) fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let listener = match bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_left_over(path)?;
            bind(path)?
        }
        bound => bound?,
    };
    Ok((listener, SocketFile { path: path.to_owned(), identity: identity(path)? }))
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    // Linux gives the file the mode of the socket. So other users can never open the file.
    fchmod(socket.as_fd(), MODE)?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}

/// Checks that the file at `path` is a socket of this user.
pub(super) fn own(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() {
        return Err(in_the_way("a file that is not a socket"));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(in_the_way("a socket of another user"));
    }
    Ok(())
}

fn in_the_way(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, format!("there is {what}"))
}

// macOS does not have the flag `SOCK_CLOEXEC`. Only the plugin runs on macOS.
#[cfg(target_os = "linux")]
const CLOSE_ON_EXEC: SockFlag = SockFlag::SOCK_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const CLOSE_ON_EXEC: SockFlag = SockFlag::empty();

/// Connects to the socket `path`. If the listener's queue is full, a plain `connect` waits forever. A stopped agent can
/// have a full queue.
///
/// # Errors
/// As `connect`. The error is [`io::ErrorKind::TimedOut`] if the queue is full for the time `patience`.
pub(super) fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, CLOSE_ON_EXEC, None)?;
    // This time limit of `send` also limits how long `connect` waits for the queue. Zero would mean an unlimited wait.
    let microseconds = i64::try_from(patience.as_micros()).unwrap_or(i64::MAX).max(1);
    socket::setsockopt(&socket, SendTimeout, &TimeVal::microseconds(microseconds))?;
    match socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?) {
        Ok(()) => Ok(socket.into()),
        Err(nix::Error::EAGAIN) => {
            let words = format!("the queue of connections was full for {} s", patience.as_secs_f32());
            Err(io::Error::new(io::ErrorKind::TimedOut, words))
        }
        Err(error) => Err(error.into()),
    }
}

fn remove_left_over(path: &Path) -> io::Result<()> {
    own(path)?;
    match connect(path, QUEUE_PATIENCE) {
        Ok(_) => Err(in_the_way("a socket on which a process listens")),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Err(in_the_way(&format!("a socket on which a process listens and does not answer: {error}")))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|it| (it.dev(), it.ino()))
}

/// The socket of a stopped agent: no process accepts connections, and the queue is full.
#[cfg(test)]
pub(super) fn stopped(path: &Path) -> (std::os::fd::OwnedFd, Vec<UnixStream>) {
    let listener = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).expect("a socket");
    socket::bind(listener.as_raw_fd(), &UnixAddr::new(path).expect("a path")).expect("a file");
    socket::listen(&listener, socket::Backlog::new(1).expect("a length")).expect("it listens");
    let queued = std::iter::from_fn(|| connect(path, Duration::from_millis(1)).ok()).collect();
    (listener, queued)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[tokio::test]
    async fn it_is_for_its_owner_only_and_goes_with_its_listener() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let (listener, file) = listen(&path).expect("a socket");
        let mode = fs::symlink_metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(&path).expect("it listens");
        drop((listener, file));
        assert!(fs::symlink_metadata(&path).is_err(), "it is gone");
    }

    #[tokio::test]
    async fn what_a_killed_agent_left_is_replaced_and_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let (listener, file) = listen(&path).expect("a socket");
        let taken = listen(&path).expect_err("a process listens on this socket");
        assert!(taken.to_string().ends_with("a process listens"), "{taken}");
        drop(listener);
        // A killed agent does not remove its file, and `forget` does not remove this file.
        std::mem::forget(file);
        drop(listen(&path).expect("it was left over"));
        fs::write(&path, "precious").expect("a file");
        assert!(listen(&path).is_err());
        assert_eq!(fs::read_to_string(&path).expect("it stays"), "precious");
        let (link, target) = (directory.path().join("link"), directory.path().join("target"));
        symlink(&target, &link).expect("a link");
        assert!(listen(&link).is_err());
        assert!(fs::symlink_metadata(&target).is_err(), "no link is followed");
    }

    #[tokio::test]
    async fn a_second_agent_leaves_the_socket_of_a_stopped_one_and_does_not_wait_for_ever() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let _stopped = stopped(&path);
        let taken = listen(&path).expect_err("a process listens on this socket").to_string();
        assert!(taken.contains("does not answer: the queue of connections was full"), "{taken}");
        own(&path).expect("its socket stays");
    }

    #[tokio::test]
    async fn a_file_that_took_its_place_is_not_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let (_listener, file) = listen(&path).expect("a socket");
        fs::remove_file(&path).expect("ours");
        fs::write(&path, "another").expect("a file");
        drop(file);
        assert_eq!(fs::read_to_string(&path).expect("it stays"), "another");
    }
}
