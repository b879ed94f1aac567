//! A way to somewhere else, which can be cut while whoever is there goes on.

use std::{
    io::copy,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{Arc, Mutex, Weak},
    thread::{self, JoinHandle},
};

use nix::sys::socket::{Shutdown as Direction, shutdown};

use super::control_plane::SERVER;

/// Passes connections on until it is dropped.
pub struct Relay {
    listener: TcpListener,
    /// The connections that have not ended; nothing while the way is cut.
    passed: Arc<Mutex<Option<Vec<Weak<TcpStream>>>>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// The URL of the one that [`Self::start`] starts.
    pub const URL: &str = "https://127.0.0.2:7443";

    /// One in the network namespace of the calling thread that leads to the API server, from an address that its
    /// certificate does not name.
    #[track_caller]
    pub fn start() -> Self {
        Self::between(TcpListener::bind("127.0.0.2:7443").expect("a free port"), SERVER.into())
    }

    /// One from a listener, wherever that is, to an address in the network namespace of the calling thread.
    #[track_caller]
    pub fn between(listener: TcpListener, there: SocketAddr) -> Self {
        let passed = Arc::new(Mutex::new(Some(Vec::new())));
        let (accepting, passing) = (listener.try_clone().expect("a second handle"), Arc::clone(&passed));
        let thread = thread::spawn(move || {
            while let Ok((client, _)) = accepting.accept() {
                let mut passed = passing.lock().expect("the connections");
                // Whoever comes while the way is cut, or nobody is there, is hung up on.
                if let Some(passed) = passed.as_mut()
                    && let Ok(server) = TcpStream::connect(there)
                {
                    let ends = [client, server].map(Arc::new);
                    passed.retain(|it: &Weak<_>| it.strong_count() > 0);
                    passed.extend(ends.each_ref().map(Arc::downgrade));
                    let [client, server] = ends.clone();
                    thread::spawn(move || pass([&client, &server]));
                    let [client, server] = ends;
                    thread::spawn(move || pass([&server, &client]));
                }
            }
        });
        Self { listener, passed, thread: Some(thread) }
    }

    /// Breaks every connection, and lets no more through.
    pub fn cut(&self) {
        let passed = self.passed.lock().expect("the connections").take();
        for stream in passed.into_iter().flatten().filter_map(|it| it.upgrade()) {
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
fn pass([mut from, mut to]: [&TcpStream; 2]) {
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
