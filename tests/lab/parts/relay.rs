//! A relay between a client and a server. A test can cut the path, slow it down, or make the relay drop all data.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::sys::socket::{Shutdown as Direction, shutdown};

use super::control_plane::ControlPlane;

/// The greatest number of bytes that the relay passes in one step. On a slow path, the relay passes at most `CRUMB`
/// bytes in one step.
const PIECE: usize = 16 * 1024;
const CRUMB: usize = 256;
const PAUSE: Duration = Duration::from_millis(10);

pub struct Relay {
    listener: TcpListener,
    /// `None` while the path is cut.
    passed: Arc<Mutex<Option<Vec<Weak<TcpStream>>>>>,
    weather: Weather,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Default)]
struct Weather {
    is_slow: Arc<AtomicBool>,
    /// The flag of the connections that are open now. If the flag is set, the relay drops the data of these
    /// connections. Later connections get a new flag.
    is_forgotten: Arc<Mutex<Arc<AtomicBool>>>,
    passed: Arc<AtomicUsize>,
}

impl Relay {
    pub const URL: &str = "https://127.0.0.2:7443";

    /// The server's certificate does not contain the relay's address.
    #[track_caller]
    pub fn start() -> Self {
        Self::between(TcpListener::bind("127.0.0.2:7443").expect("a free port"), ControlPlane::SERVER.into())
    }

    /// Starts a relay from a listener in any network namespace to an address in the calling thread's network namespace.
    #[track_caller]
    pub fn between(listener: TcpListener, there: SocketAddr) -> Self {
        let passed = Arc::new(Mutex::new(Some(Vec::new())));
        let (accepting, passing) = (listener.try_clone().expect("a second handle"), Arc::clone(&passed));
        let weather = Weather::default();
        let now = weather.clone();
        let thread = thread::spawn(move || {
            while let Ok((client, _)) = accepting.accept() {
                let mut passed = passing.lock().expect("the connections");
                // Closes a new connection if the path is cut, or if the server does not listen.
                if let Some(passed) = passed.as_mut()
                    && let Ok(server) = TcpStream::connect(there)
                {
                    let ends = [client, server].map(Arc::new);
                    passed.retain(|it: &Weak<_>| it.strong_count() > 0);
                    passed.extend(ends.each_ref().map(Arc::downgrade));
                    let ([client, server], weather) = (ends.clone(), now.of_a_new_connection());
                    thread::spawn(move || pass([&client, &server], &weather));
                    let ([client, server], weather) = (ends, now.of_a_new_connection());
                    thread::spawn(move || pass([&server, &client], &weather));
                }
            }
        });
        Self { listener, passed, weather, thread: Some(thread) }
    }

    /// Closes the open connections, and each new connection until [`Self::mend`].
    pub fn cut(&self) {
        let passed = self.passed.lock().expect("the connections").take();
        for stream in passed.into_iter().flatten().filter_map(|it| it.upgrade()) {
            // Ignores errors, because a connection may have ended already.
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    pub fn mend(&self) {
        *self.passed.lock().expect("the connections") = Some(Vec::new());
    }

    /// A slow path passes about 25 KiB a second for each connection and direction.
    pub fn set_slow(&self, is_slow: bool) {
        self.weather.is_slow.store(is_slow, Ordering::Relaxed);
    }

    pub fn passed_bytes(&self) -> usize {
        self.weather.passed.load(Ordering::Relaxed)
    }

    /// Drops all data of the open connections without an error, like a firewall that has lost its connection table. New
    /// connections work.
    pub fn forget(&self) {
        let mut of_later_ones = self.weather.is_forgotten.lock().expect("a flag");
        of_later_ones.store(true, Ordering::Relaxed);
        *of_later_ones = Arc::default();
    }
}

impl Weather {
    fn of_a_new_connection(&self) -> Self {
        let is_forgotten = Arc::clone(&self.is_forgotten.lock().expect("a flag"));
        Self { is_forgotten: Arc::new(Mutex::new(is_forgotten)), ..self.clone() }
    }
}

fn pass([mut from, mut to]: [&TcpStream; 2], weather: &Weather) {
    let is_forgotten = Arc::clone(&weather.is_forgotten.lock().expect("a flag"));
    let mut piece = [0; PIECE];
    let mut step = || -> io::Result<bool> {
        let is_slow = weather.is_slow.load(Ordering::Relaxed);
        let length = from.read(&mut piece[..if is_slow { CRUMB } else { PIECE }])?;
        if is_slow {
            thread::sleep(PAUSE);
        }
        if !is_forgotten.load(Ordering::Relaxed) {
            to.write_all(&piece[..length])?;
            weather.passed.fetch_add(length, Ordering::Relaxed);
        }
        Ok(length > 0)
    };
    let ended = loop {
        match step() {
            Ok(true) => {}
            ended => break ended,
        }
    };
    // Passes the end of the data to the second side, unless the relay must lose all data.
    if !is_forgotten.load(Ordering::Relaxed) {
        ended.and_then(|_| to.shutdown(Shutdown::Write)).ok();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
        shutdown(self.listener.as_raw_fd(), Direction::Both).expect("a listener can be shut down");
        self.thread.take().expect("it is taken only here").join().expect("a relay that does not panic");
    }
}
