//! The socket in the file tree of the node, through which its owner reads everything without a token.

use std::{
    fs, io,
    os::{
        fd::AsFd as _,
        unix::{
            fs::{FileTypeExt as _, MetadataExt as _},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
};

use nix::{
    sys::stat::{Mode, fchmod},
    unistd::geteuid,
};
use tokio::net::{UnixListener, UnixSocket};

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 16;
/// For its owner only.
const MODE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// The file of a socket that listens. It is removed with this value, unless another has taken its place.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // What cannot be removed is in the way of nobody: the next agent takes its place.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Listens at `path`, for its owner only. A socket that an agent of the same user left there is replaced; whatever else is
/// there stays, and nothing is followed.
///
/// # Errors
/// When something else is there, or somebody answers there, or the directory cannot be written to.
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
    // Linux gives the file the mode of the socket, so that there is no moment in which others may open it.
    fchmod(socket.as_fd(), MODE)?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}

/// Whether a socket of this user is at `path`.
///
/// # Errors
/// What is there instead.
pub(super) fn own(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() {
        return Err(in_the_way("something that is no socket"));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(in_the_way("a socket of another user"));
    }
    Ok(())
}

fn in_the_way(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, format!("there is {what}"))
}

fn remove_left_over(path: &Path) -> io::Result<()> {
    own(path)?;
    match UnixStream::connect(path) {
        Ok(_) => Err(in_the_way("a socket on which somebody answers")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|it| (it.dev(), it.ino()))
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
        let taken = listen(&path).expect_err("somebody answers there");
        assert!(taken.to_string().contains("somebody answers"), "{taken}");
        drop(listener);
        // Killed: nothing removes its file.
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
