//! TCP clients and servers of the tests: a server sends its name, so a client learns who answers.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    path::Path,
    thread::{self, JoinHandle},
    time::Duration,
};

use nix::{
    net::if_::if_nametoindex,
    sys::socket::{Shutdown as Direction, shutdown},
};

use super::patience::patience;

/// The time limit of a client. The kernel sends a lost SYN again within this time.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn answer_within() -> Duration {
    patience(PATIENCE)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// The process that listens on the node.
    Process,
    Pod,
    OtherPod,
    Refused,
    TimedOut,
    Unreachable,
}

impl Answer {
    pub fn said(words: &[u8]) -> Option<Self> {
        [Self::Process, Self::Pod, Self::OtherPod].into_iter().find(|answer| answer.banner() == words)
    }

    pub fn banner(self) -> &'static [u8] {
        match self {
            Self::Process => b"process",
            Self::Pod => b"pod",
            Self::OtherPod => b"other pod",
            Self::Refused | Self::TimedOut | Self::Unreachable => unreachable!("nobody says nothing"),
        }
    }
}

/// Connects from the network namespace of the calling thread, and returns who answers. A link-local address is reached
/// over `eth0`.
#[track_caller]
pub fn ask(address: SocketAddr) -> Answer {
    // An emulated guest sometimes resets a connection, so the client connects a second time.
    let answer = match said(address, answer_within()) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => said(address, answer_within()),
        answer => answer,
    };
    let said = match answer {
        Ok(said) => said,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Answer::Refused,
        // If a process accepts the connection and sends nothing, the result is `TimedOut`.
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => return Answer::TimedOut,
        Err(error) if matches!(error.kind(), ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => {
            return Answer::Unreachable;
        }
        Err(error) => panic!("{address}: {error}"),
    };
    Answer::said(&said).unwrap_or_else(|| panic!("{address} says {:?}", String::from_utf8_lossy(&said)))
}

/// Whether a pod answers. A test repeats the call until a pod answers.
pub fn is_pod(address: SocketAddr) -> bool {
    said(address, patience(Duration::from_millis(200))).is_ok_and(|said| said == Answer::Pod.banner())
}

fn said(mut address: SocketAddr, within: Duration) -> io::Result<Vec<u8>> {
    if let SocketAddr::V6(it) = &mut address
        && it.ip().is_unicast_link_local()
    {
        it.set_scope_id(if_nametoindex("eth0")?);
    }
    let mut stream = TcpStream::connect_timeout(&address, within)?;
    stream.set_read_timeout(Some(answer_within()))?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    Ok(said)
}

pub fn http_get(address: &str, path: &str) -> Option<String> {
    http_get_with(address, path, "")
}

/// Each header in `headers` ends with a line end.
pub fn http_get_with(address: &str, path: &str, headers: &str) -> Option<String> {
    exchange(connect(address)?, path, headers).filter(|(status, _)| *status == 200).map(|(_, body)| body)
}

/// Each header in `headers` ends with a line end.
pub fn http_status(address: &str, path: &str, headers: &str) -> Option<u16> {
    exchange(connect(address)?, path, headers).map(|(status, _)| status)
}

pub fn socket_get(socket: &Path, path: &str) -> Option<String> {
    let stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(answer_within())).ok()?;
    exchange(stream, path, "").filter(|(status, _)| *status == 200).map(|(_, body)| body)
}

pub fn http_status_from(source: [u8; 4], address: &str, path: &str, headers: &str) -> Option<u16> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).ok()?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(source.into(), 0))).ok()?;
    connect(socket.as_raw_fd(), &SockaddrIn::from(address.parse::<SocketAddrV4>().ok()?)).ok()?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(answer_within())).ok()?;
    exchange(stream, path, headers).map(|(status, _)| status)
}

fn connect(address: &str) -> Option<TcpStream> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(answer_within())).ok()?;
    Some(stream)
}

fn exchange(mut stream: impl Read + Write, path: &str, headers: &str) -> Option<(u16, String)> {
    stream.write_all(format!("GET {path} HTTP/1.0\r\n{headers}\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

pub struct Server {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    #[track_caller]
    pub fn on(address: SocketAddr, identity: Answer) -> Self {
        let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let accepting = listener.try_clone().expect("a second handle");
        let thread = thread::spawn(move || {
            while let Ok((mut stream, _)) = accepting.accept() {
                // A client may have closed the connection.
                stream.write_all(identity.banner()).and_then(|()| stream.shutdown(Shutdown::Write)).ok();
            }
        });
        Self { listener, thread: Some(thread) }
    }
}

impl Drop for Server {
    /// On Linux, the shutdown of the listener wakes the thread that waits for a connection.
    fn drop(&mut self) {
        shutdown(self.listener.as_raw_fd(), Direction::Both).expect("a listener can be shut down");
        let thread = self.thread.take().expect("it is taken only here");
        thread.join().expect("a server that does not panic");
    }
}
