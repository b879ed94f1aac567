//! Liveness: the event loop runs, and the scanner is not stuck. Whether the API server answers does not matter.
//!
//! Another process may have the agent's port. So the probe asks at the agent's socket in the file tree.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::PoisonError,
    time::Duration,
};

use tokio::{runtime::Handle, time::timeout};

use super::{scanner::Busy, socket};

/// How long one reading of the node may take.
const STUCK: Duration = Duration::from_secs(60);
/// How long the event loop may take until it does something else. Its longest piece of work is one judging.
const LOOP_STUCK: Duration = Duration::from_secs(10);
/// How long the probe waits for its answer; whoever started it may have less patience.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest answer that is read, in bytes.
const LONGEST: u64 = 4096;

/// Why a probe fails.
#[derive(Debug, thiserror::Error)]
pub enum NotAlive {
    /// Nobody answers at the socket.
    #[error("asking at the socket {path}: {error}")]
    Silent {
        /// The socket's file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The agent says that it is not alive.
    #[error("the agent at {path} says: {answer}")]
    Stuck {
        /// The socket's file.
        path: PathBuf,
        /// What it says.
        answer: String,
    },
}

/// Succeeds when the agent that answers at the socket `path` says that it is alive.
///
/// # Errors
/// When it does not say so, or nobody answers, or the socket is of another user.
pub fn probe(path: &Path) -> Result<(), NotAlive> {
    let asked = || -> io::Result<String> {
        // Anybody may answer at a socket of somebody else.
        socket::own(path)?;
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(LONGEST).read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = asked().map_err(|error| NotAlive::Silent { path: path.to_owned(), error })?;
    match answer.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(NotAlive::Stuck {
            path: path.to_owned(),
            answer: answer.lines().last().unwrap_or("nothing").to_owned(),
        }),
    }
}

/// Whether the event loop does what it is asked to, and the scanner waits for work or has been reading for an acceptable
/// time.
///
/// # Errors
/// Which of the two is stuck, in a line.
pub(super) async fn check(event_loop: &Handle, busy: &Busy) -> Result<(), &'static str> {
    let since = *busy.lock().unwrap_or_else(PoisonError::into_inner);
    if since.is_some_and(|since| since.elapsed() >= STUCK) {
        return Err("the reader of the node is stuck\n");
    }
    if runs(event_loop, LOOP_STUCK).await { Ok(()) } else { Err("the event loop is stuck\n") }
}

/// Whether the loop does something within this time.
async fn runs(event_loop: &Handle, patience: Duration) -> bool {
    timeout(patience, event_loop.spawn(async {})).await.is_ok_and(|done| done.is_ok())
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread, time::Instant};

    use tokio::runtime::Builder;

    use super::*;

    /// What a probe says to this answer.
    fn probed(answer: &'static str) -> Result<(), NotAlive> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let answering = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 64];
            assert!(stream.read(&mut request).expect("a request") > 0);
            stream.write_all(answer.as_bytes()).expect("it reads");
        });
        let probed = probe(&path);
        answering.join().expect("no panic");
        probed
    }

    #[test]
    fn an_agent_is_alive_that_says_so_and_every_other_answer_is_told() {
        probed("HTTP/1.0 200 OK\r\n\r\nok\n").expect("it is alive");
        for wrong in ["HTTP/1.0 503 Service Unavailable\r\n\r\nthe event loop is stuck\n", "HTTP/1.0 404 Not Found", ""]
        {
            let said = probed(wrong).expect_err("it does not say that it is alive").to_string();
            assert!(said.ends_with(wrong.trim_end().lines().last().unwrap_or("nothing")), "{said}");
        }
    }

    #[test]
    fn without_a_socket_or_at_a_file_nobody_is_alive() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        assert!(matches!(probe(&path), Err(NotAlive::Silent { .. })));
        drop(UnixListener::bind(&path).expect("a socket"));
        assert!(matches!(probe(&path), Err(NotAlive::Silent { .. })), "its agent was killed");
        std::fs::remove_file(&path).expect("it is there");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let said = probe(&path).expect_err("a pipe").to_string();
        assert!(said.contains("no socket"), "{said}");
    }

    #[test]
    fn a_socket_of_another_user_is_not_asked() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("a socket");
        socket::own(&path).expect("it is ours");
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).expect("root may");
            let said = probe(&path).expect_err("it is another user's").to_string();
            assert!(said.contains("another user"), "{said}");
        }
    }

    #[tokio::test]
    async fn a_stuck_scanner_and_a_stuck_loop_are_not_alive() {
        let (busy, event_loop) = (Busy::default(), Handle::current());
        check(&event_loop, &busy).await.expect("it is alive");
        // Nobody runs it.
        let stuck = Builder::new_current_thread().build().expect("a runtime");
        assert!(!runs(stuck.handle(), Duration::from_millis(100)).await);
        stuck.shutdown_background();
        *busy.lock().expect("a lock") = Instant::now().checked_sub(2 * STUCK);
        assert_eq!(check(&event_loop, &busy).await, Err("the reader of the node is stuck\n"));
    }
}
