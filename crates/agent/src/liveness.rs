//! The liveness check: the event loop must run, and the reader of the node must not be stuck. An agent whose API server
//! does not answer is still alive.
//!
//! Another process may have taken the agent's port. So the probe connects to the agent's Unix socket.

use std::{
    io::{self, Read as _, Write as _},
    path::Path,
    sync::PoisonError,
    time::{Duration, Instant},
};

use anyhow::{anyhow, ensure};
use tokio::{runtime::Handle, time::timeout};

use super::{scanner::Busy, socket};

/// If a reading of the node takes longer than this time, the scanner is stuck.
const STUCK: Duration = Duration::from_secs(60);
/// If the event loop is busy for longer than this time, the event loop is stuck. The longest work of the event loop is
/// one run of all rules.
const LOOP_STUCK: Duration = Duration::from_secs(10);
/// How long the probe waits for its connection and for the answer together. This time is longer than [`LOOP_STUCK`], so
/// that the agent can still answer that its event loop is stuck.
const PATIENCE: Duration = Duration::from_secs(15);
const LONGEST: usize = 4096;

/// Succeeds if an agent listens at the socket `path` and reports that it is alive.
///
/// # Errors
/// Fails if the agent gives another answer, if no answer comes in time, or if the socket belongs to another user.
pub fn probe(path: &Path) -> anyhow::Result<()> {
    probe_within(path, PATIENCE)
}

fn probe_within(path: &Path, patience: Duration) -> anyhow::Result<()> {
    let socket = path.display();
    let answer =
        request(path, patience).map_err(|error| anyhow!("no agent answers at the socket {socket}: {error}"))?;
    let last = answer.lines().last().unwrap_or("nothing");
    ensure!(answer.split(' ').nth(1) == Some("200"), "the agent at the socket {socket} is not alive: {last}");
    Ok(())
}

fn request(path: &Path, patience: Duration) -> io::Result<String> {
    let until = Instant::now() + patience;
    // Another user's socket could give any answer.
    socket::own(path)?;
    let mut stream = socket::connect(path, patience)?;
    stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    let late =
        || io::Error::new(io::ErrorKind::TimedOut, format!("no complete answer in {} s", patience.as_secs_f32()));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 512];
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            Err(error) => return Err(error),
        }
        if answer.len() >= LONGEST {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Checks that the event loop runs, and that the scanner has not been reading for too long.
///
/// # Errors
/// One line that names the stuck part.
pub(super) async fn check(event_loop: &Handle, busy: &Busy) -> Result<(), &'static str> {
    let since = *busy.lock().unwrap_or_else(PoisonError::into_inner);
    if since.is_some_and(|since| since.elapsed() >= STUCK) {
        return Err("the reader of the node is stuck\n");
    }
    if runs(event_loop, LOOP_STUCK).await { Ok(()) } else { Err("the event loop is stuck\n") }
}

async fn runs(event_loop: &Handle, patience: Duration) -> bool {
    timeout(patience, event_loop.spawn(async {})).await.is_ok_and(|done| done.is_ok())
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread, time::Instant};

    use tokio::runtime::Builder;

    use super::*;

    fn probed(answer: &'static str) -> anyhow::Result<()> {
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
    fn only_the_status_200_is_alive_and_every_other_answer_is_in_the_error() {
        probed("HTTP/1.0 200 OK\r\n\r\nok\n").expect("it is alive");
        for wrong in ["HTTP/1.0 503 Service Unavailable\r\n\r\nthe event loop is stuck\n", "HTTP/1.0 404 Not Found", ""]
        {
            let error = probed(wrong).expect_err("the status is not 200").to_string();
            assert!(error.ends_with(wrong.trim_end().lines().last().unwrap_or("nothing")), "{error}");
        }
    }

    #[test]
    fn a_missing_socket_a_socket_without_listener_and_another_file_are_not_alive() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let is_silent = || probe(&path).is_err_and(|error| error.to_string().starts_with("no agent answers"));
        assert!(is_silent());
        drop(UnixListener::bind(&path).expect("a socket"));
        assert!(is_silent(), "its agent was killed");
        std::fs::remove_file(&path).expect("it is there");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let error = probe(&path).expect_err("a pipe").to_string();
        assert!(error.contains("not a socket"), "{error}");
    }

    #[test]
    fn a_socket_of_another_user_is_not_asked() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("a socket");
        socket::own(&path).expect("it is ours");
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).expect("root may");
            let error = probe(&path).expect_err("it is another user's").to_string();
            assert!(error.contains("another user"), "{error}");
        }
    }

    #[test]
    fn a_stopped_agent_is_not_alive_whether_its_queue_is_full_or_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, patience) = (directory.path().join("socket"), Duration::from_millis(200));
        let (_listener, mut queued) = socket::stopped(&path);
        let error = probe_within(&path, patience).expect_err("no process accepts").to_string();
        assert!(error.ends_with("the queue of connections was full for 0.2 s"), "{error}");
        queued.clear();
        let path = directory.path().join("free");
        let _listener = UnixListener::bind(&path).expect("a socket");
        let error = probe_within(&path, patience).expect_err("no process answers").to_string();
        assert!(error.ends_with("no complete answer in 0.2 s"), "{error}");
    }

    #[tokio::test]
    async fn a_stuck_scanner_and_a_stuck_loop_are_not_alive() {
        let (busy, event_loop) = (Busy::default(), Handle::current());
        check(&event_loop, &busy).await.expect("it is alive");
        // No thread runs this event loop.
        let stuck = Builder::new_current_thread().build().expect("a runtime");
        assert!(!runs(stuck.handle(), Duration::from_millis(100)).await);
        stuck.shutdown_background();
        *busy.lock().expect("a lock") = Instant::now().checked_sub(2 * STUCK);
        assert_eq!(check(&event_loop, &busy).await, Err("the reader of the node is stuck\n"));
    }
}
