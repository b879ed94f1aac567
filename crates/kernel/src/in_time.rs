//! What another process can keep from ending is done on a thread that may be left behind.

use std::{
    io,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// The answer of `read`, where it comes within `limit`.
///
/// # Errors
/// Those of `read`, and that it panicked; [`io::ErrorKind::TimedOut`], and then the thread stays until the kernel lets it go,
/// or there is none for it.
pub(super) fn in_time<T: Send + 'static>(
    limit: Duration,
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_answers_is_waited_for_no_longer_than_the_limit() {
        let answer = in_time(Duration::from_millis(10), || {
            loop {
                thread::park();
            }
        });
        assert_eq!(answer.map_err(|error: io::Error| error.kind()), Err::<(), _>(io::ErrorKind::TimedOut));
        assert_eq!(in_time(Duration::from_secs(60), || Ok(7)).expect("an answer"), 7);
        let gone = in_time(Duration::from_secs(60), || Err::<(), _>(io::ErrorKind::NotFound.into()));
        assert_eq!(gone.expect_err("gone").kind(), io::ErrorKind::NotFound);
        let panicked = in_time(Duration::from_secs(60), || -> io::Result<()> { panic!("a reader that panics") });
        assert_eq!(panicked.expect_err("it panicked").kind(), io::ErrorKind::Other);
    }
}
