//! The node's sockets: listeners and connections of several processes, each in a cgroup of its own as pods are.

use std::{
    env, fs,
    net::{TcpListener, TcpStream},
    path::Path,
    process::ExitCode,
    thread,
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::parts::{process::Process, until};

/// How many processes share the sockets.
const HOLDERS: usize = 20;
/// Listening sockets of each; connections are the rest.
const LISTENERS: usize = 10;
/// A static NodePort per holder: the server gives these to nobody who does not ask for one.
const FIRST_PORT: usize = 30_000;

/// Processes that hold sockets until this is dropped.
pub struct Crowd(#[expect(dead_code, reason = "held, not used")] Vec<Process>);

impl Crowd {
    /// That many TCP sockets, in the network namespace of the calling thread.
    pub fn of(sockets: usize, directory: &Path) -> Self {
        let pairs = (sockets / HOLDERS - LISTENERS) / 2;
        let own = env::current_exe().expect("a program").display().to_string();
        let holders = (0..HOLDERS)
            .map(|number| Process::start(&own, &["hold".to_owned(), number.to_string(), pairs.to_string()], directory));
        let crowd = Self(holders.collect());
        until("sockets", || (in_use() >= sockets).then_some(()));
        crowd
    }
}

/// Holds its share for ever: a listener on a NodePort that no Service has, others where the kernel likes, and
/// connections to one of these.
pub fn hold(number: &str, pairs: &str) -> ExitCode {
    let [number, pairs] = [number, pairs].map(|it| it.parse::<usize>().expect("a number"));
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("the hard limit");
    let listen = |port: usize| TcpListener::bind(("0.0.0.0", u16::try_from(port).expect("a port"))).expect("a port");
    let listeners: Vec<TcpListener> = [FIRST_PORT + number].into_iter().chain([0; LISTENERS - 1]).map(listen).collect();
    let place = listeners[1].local_addr().expect("an address");
    let connections: Vec<[TcpStream; 2]> = (0..pairs)
        .map(|_| {
            let near = TcpStream::connect(("127.0.0.1", place.port())).expect("a connection");
            [near, listeners[1].accept().expect("a connection").0]
        })
        .collect();
    loop {
        thread::sleep(Duration::from_secs(3600));
        assert!(!listeners.is_empty() && connections.len() == pairs);
    }
}

/// TCP sockets in use in this network namespace.
fn in_use() -> usize {
    let sockstat = fs::read_to_string("/proc/thread-self/net/sockstat").expect("sockstat");
    let line = sockstat.lines().find_map(|line| line.strip_prefix("TCP: inuse ")).expect("a line of TCP");
    line.split(' ').next().and_then(|it| it.parse().ok()).expect("a number")
}
