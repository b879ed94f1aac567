//! The way to the API server, which can be cut while the server goes on.

use std::{
    io::copy,
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use nix::sys::socket::{Shutdown as Direction, shutdown};

/// Passes connections on to the API server, from an address that its certificate does not name.
pub struct Relay {
    listener: TcpListener,
    /// The connections; nothing while the way is cut.
    passed: Arc<Mutex<Option<Vec<TcpStream>>>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Its URL.
    pub const URL: &str = "https://127.0.0.2:7443";

    /// One in the network namespace of the calling thread.
    #[track_caller]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.2:7443").expect("a free port");
        let passed = Arc::new(Mutex::new(Some(Vec::new())));
        let (accepting, passing) = (listener.try_clone().expect("a second handle"), Arc::clone(&passed));
        let thread = thread::spawn(move || {
            while let Ok((client, _)) = accepting.accept() {
                let mut passed = passing.lock().expect("the connections");
                // Whoever comes while the way is cut, or nobody is there, is hung up on.
                if let Some(passed) = passed.as_mut()
                    && let Ok(server) = TcpStream::connect("127.0.0.1:6443")
                {
                    for (from, to) in [(&client, &server), (&server, &client)] {
                        let ends = [from, to].map(|it| it.try_clone().expect("a second handle"));
                        thread::spawn(move || pass(ends));
                    }
                    passed.extend([client, server]);
                }
            }
        });
        Self { listener, passed, thread: Some(thread) }
    }

    /// Breaks every connection, and lets no more through.
    pub fn cut(&self) {
        for stream in self.passed.lock().expect("the connections").take().into_iter().flatten() {
            // One that has ended by itself is as good as cut.
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    /// Lets connections through again.
    pub fn mend(&self) {
        *self.passed.lock().expect("the connections") = Some(Vec::new());
    }
}

/// One direction, to its end.
fn pass([mut from, mut to]: [TcpStream; 2]) {
    // However it ends, the other side is told.
    copy(&mut from, &mut to).and_then(|_| to.shutdown(Shutdown::Write)).ok();
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
        shutdown(self.listener.as_raw_fd(), Direction::Both).expect("a listener can be shut down");
        self.thread.take().expect("it is taken only here").join().expect("a relay that does not panic");
    }
}
