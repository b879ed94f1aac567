//! The API server for a test in a guest. The API server runs on the machine, because a guest needs minutes to start an
//! API server of its own.
//!
//! ```text
//!     guest                                  machine
//! test ns          root's ns            tests' ns        ns of the loan
//! 127.0.0.1:6443 - relay --- 10.0.2.2 - relay ---------- 127.0.0.1:6443
//! ```
//!
//! The guest keeps the connection of its request open. If the connection ends for any reason, the machine ends the API
//! server.

use std::{
    env,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    thread::{self, JoinHandle},
};

use nix::{
    sched::{CloneFlags, setns},
    sys::socket::{Shutdown as Direction, shutdown},
};
use serde::{Deserialize, Serialize};

use super::{control_plane::ControlPlane, namespace::Namespace, relay::Relay};

/// The environment variable with a port on the machine's loopback. A guest connects to this port to request an API
/// server.
pub const LENDER: &str = "PORTREEVE_LENDER";

/// The address at which a guest reaches the machine's loopback.
const MACHINE: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// Starts an API server for each request of a guest, in a network namespace of its own. Drop this value only when all
/// guests have ended.
pub struct Lender {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

#[derive(Serialize, Deserialize)]
struct Terms {
    /// The port of the machine's loopback on which the API server answers.
    port: u16,
    /// The certificates by which clients verify the API server, in PEM.
    authority: String,
}

/// An API server that the machine runs for this guest. In the test's network namespace, the API server answers at the
/// default address of an API server. Dropping the value ends the API server.
pub struct Loan {
    pub authority: String,
    _relay: Relay,
    _asked: TcpStream,
}

impl Lender {
    #[track_caller]
    pub fn start() -> Self {
        let listener = on_loopback();
        let accepting = listener.try_clone().expect("a second handle");
        let thread = thread::spawn(move || {
            let mut loans = Vec::new();
            while let Ok((guest, _)) = accepting.accept() {
                loans.push(thread::spawn(move || lend(guest)));
            }
            for loan in loans {
                // A panic was already printed, and fails the test that waits for an API server.
                loan.join().ok();
            }
        });
        Self { listener, thread: Some(thread) }
    }

    pub fn variable(&self) -> String {
        format!("{LENDER}={}", port(&self.listener))
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        shutdown(self.listener.as_raw_fd(), Direction::Both).expect("a listener can be shut down");
        self.thread.take().expect("it is taken only here").join().expect("a lender that does not panic");
    }
}

fn lend(mut guest: TcpStream) {
    let namespace = Namespace::new();
    let control_plane = namespace.run(ControlPlane::start);
    let listener = on_loopback();
    let authority = fs::read_to_string(control_plane.authority()).expect("certificates");
    let terms = serde_json::to_string(&Terms { port: port(&listener), authority }).expect("JSON");
    let _relay = namespace.run(move || Relay::between(listener, ControlPlane::SERVER.into()));
    // Ignores errors: a guest that has ended needs no answer. `read` waits until the guest closes the connection.
    writeln!(guest, "{terms}").and_then(|()| guest.read(&mut [0])).ok();
}

/// In a guest: requests an API server from the machine, and waits for the API server. Outside of a guest: returns
/// `None`.
///
/// # Panics
///
/// Panics if the machine starts no API server.
#[track_caller]
pub fn borrow() -> Option<Loan> {
    let lender: u16 = env::var(LENDER).ok()?.parse().expect("a port");
    let listener = TcpListener::bind(SocketAddr::from(ControlPlane::SERVER)).expect("a free port");
    // Another thread sends the request, in the guest's own network namespace. The machine cannot be reached from the
    // test's network namespace.
    let asking = thread::spawn(move || {
        let own = File::open("/proc/1/ns/net").expect("the guest's own namespace");
        setns(own, CloneFlags::CLONE_NEWNET).expect("root may enter it");
        let asked = TcpStream::connect((MACHINE, lender)).expect("the machine answers its guest");
        let mut terms = String::new();
        BufReader::new(&asked).read_line(&mut terms).expect("the machine's terms");
        let Terms { port, authority } = serde_json::from_str(&terms)
            .unwrap_or_else(|_| panic!("the machine, which says why, started no API server"));
        let relay = Relay::between(listener, SocketAddr::from((MACHINE, port)));
        Loan { authority, _relay: relay, _asked: asked }
    });
    Some(asking.join().expect("an API server on the machine"))
}

fn on_loopback() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port of loopback")
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("it is bound").port()
}
