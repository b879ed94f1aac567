//! A process listens on a NodePort over SCTP. The tests compare Portreeve's report with the program that answers an
//! association. The kernel must support SCTP.
//!
//! Each socket is bound to one address: an association with several addresses writes them into its packets, and no
//! proxy translates addresses in packets.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        socket::{
            AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, getsockopt,
            listen, setsockopt, socket, sockopt,
        },
        time::TimeVal,
    },
};
use portreeve_facts::Protocol;
use portreeve_rules::findings::{Affected, Severity, Vantage};
use serde_json::json;

use super::{
    Ask,
    asks::questions,
    claims::{Behind, said, service, told},
    record::letter,
};
use crate::{
    look::snapshot,
    parts::{Answer, ControlPlane, PRIMARY, Proxy, Wired, answer_within, objects},
};

const PORTS: [(u16, Behind); 2] = [(30133, Behind::Ready), (30134, Behind::Nothing)];
/// The time in milliseconds after which a listener checks again whether it must end. A shutdown does not wake the
/// listener.
const LOOK_UP: u16 = 100;

#[track_caller]
pub fn agrees(mode: &str) {
    let wired = Wired::enter();
    let pod = SocketAddr::new(ip(Wired::HERE[0]), Wired::PORT);
    let _pod = wired.backend.run(move || Serving::on(pod, Answer::Pod));
    let _listeners = PORTS.map(|(port, _)| Serving::on(SocketAddr::new(ip("0.0.0.0"), port), Answer::Process));
    // The process listens on IPv4 only. SCTP may answer from another address than the queried address, and then the
    // client gets no answer. So the test first queries every address without a proxy. With a proxy, the test repeats
    // only the queries that the process answered.
    let every = PORTS.iter().flat_map(|(port, _)| questions(Protocol::Sctp, *port)).filter(|ask| ask.2.is_ipv4());
    let answers = ask_all(&wired, every);
    let answered: Vec<Ask> = answers.into_iter().filter(|it| it.1 == Answer::Process).map(|(ask, _)| ask).collect();

    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    for (port, behind) in PORTS {
        behind.create(cluster.api(), service(&format!("sctp-{port}"), Protocol::Sctp, 80, Some(port)), Wired::PORT);
    }
    let _proxy = Proxy::start(&cluster, mode, &json!({}));
    let answers = ask_all(&wired, answered.into_iter());
    let seen = snapshot(&cluster.kubeconfig("admin"));
    let mut wrong = Vec::new();
    for (port, behind) in PORTS {
        let told = told(&seen, Protocol::Sctp, port);
        let of_port = answers.iter().filter(|(ask, _)| ask.2.port() == port);
        let shown: Vec<(&Ask, char)> = of_port.map(|(ask, answer)| (ask, letter(ask, *answer))).collect();
        let differs = |(ask, shown): &&(&Ask, char)| *shown != told[&(ask.0, ask.2.ip())];
        wrong.extend(shown.iter().filter(differs).map(|(ask, shown)| format!("{behind:?} {ask:?}: {shown}")));
        let lost: Affected = shown.iter().filter(|(_, shown)| *shown != 'L').map(|(ask, _)| ask.0).collect();
        let said = said(&seen, "listener-on-node-port/loses", Protocol::Sctp, port);
        if said != (Some(Severity::Critical), lost) {
            wrong.push(format!("{behind:?}: {said:?}"));
        }
    }
    assert!(wrong.is_empty(), "{mode}:\n{}", wrong.join("\n"));
}

#[track_caller]
fn ask_all(wired: &Wired, asks: impl Iterator<Item = Ask>) -> BTreeMap<Ask, Answer> {
    asks.map(|asked| {
        let (from, _, to) = asked;
        let answer = match from {
            Vantage::Remote => wired.client.run(move || ask(ip("192.0.2.100"), to)),
            Vantage::Pods => wired.pod.run(move || ask(ip("10.244.0.5"), to)),
            Vantage::Node => ask(ip(PRIMARY[0]), to),
            Vantage::Loopback => ask(to.ip(), to),
        };
        (asked, answer)
    })
    .collect()
}

#[track_caller]
fn ask(from: IpAddr, to: SocketAddr) -> Answer {
    match associate(from, to) {
        Ok(words) => Answer::said(&words).unwrap_or_else(|| panic!("{to} says {:?}", String::from_utf8_lossy(&words))),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Answer::TimedOut,
            ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied => Answer::Refused,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Answer::Unreachable,
            _ => panic!("{from} to {to}: {error}"),
        },
    }
}

fn associate(from: IpAddr, to: SocketAddr) -> io::Result<Vec<u8>> {
    let client = open(SocketAddr::new(from, 0))?;
    // With this option, an ICMP error ends the connection at once. So a time-out means that no ICMP error came.
    setsockopt(&client, sockopt::Ipv4RecvErr, &true)?;
    let patience = i64::try_from(answer_within().as_secs()).expect("short");
    setsockopt(&client, sockopt::SendTimeout, &TimeVal::new(patience, 0))?;
    match connect(client.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) => {}
        Err(Errno::EINPROGRESS) => return Err(ErrorKind::TimedOut.into()),
        // `connect` returns the same error for each failure. The socket option `SO_ERROR` has the real reason.
        Err(refused) => match getsockopt(&client, sockopt::SocketError)? {
            0 => return Err(refused.into()),
            reason => return Err(io::Error::from_raw_os_error(reason)),
        },
    }
    let mut stream = TcpStream::from(client);
    stream.set_read_timeout(Some(answer_within()))?;
    let mut words = [0; 16];
    let length = stream.read(&mut words)?;
    Ok(words[..length].to_vec())
}

fn open(address: SocketAddr) -> nix::Result<OwnedFd> {
    let opened = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp)?;
    bind(opened.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(opened)
}

struct Serving {
    wanted: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    #[track_caller]
    fn on(address: SocketAddr, identity: Answer) -> Self {
        let socket = open(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        listen(&socket, Backlog::MAXCONN).expect("SCTP listens");
        let listener = TcpListener::from(socket);
        listener.set_nonblocking(true).expect("O_NONBLOCK");
        let wanted = Arc::new(AtomicBool::new(true));
        let is_wanted = Arc::clone(&wanted);
        let thread = thread::spawn(move || {
            while is_wanted.load(Ordering::Relaxed) {
                let mut waiting = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
                if poll(&mut waiting, PollTimeout::from(LOOK_UP)) == Ok(1) {
                    let accepted = listener.accept();
                    // The client may have closed the connection.
                    accepted.and_then(|(mut stream, _)| stream.write_all(identity.banner())).ok();
                }
            }
        });
        Self { wanted, thread: Some(thread) }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.wanted.store(false, Ordering::Relaxed);
        let ended = self.thread.take().expect("it is taken only here").join();
        assert!(thread::panicking() || ended.is_ok(), "a server that does not panic");
    }
}

fn ip(address: &str) -> IpAddr {
    address.parse().expect("an address")
}
