//! Outgoing connections whose local port is a NodePort. Portreeve must report which connections fail.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, UdpSocket},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    thread,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, connect, recv, send, socket},
};
use portreeve_agent::judge;
use portreeve_facts::Protocol;
use portreeve_rules::{Limits, findings::Severity};
use serde_json::json;

use crate::{
    look::snapshot,
    parts::{ControlPlane, PRIMARY, Proxy, Wired, answer_within, objects},
};

/// The address of an echo server outside of the node. The server sends each message back to the client, over TCP and
/// UDP.
pub const ECHO: &str = "192.0.2.100:7";

struct Outgoing {
    port: u16,
    protocol: Protocol,
    /// Whether the Service with this nodePort has an endpoint. `None` if no Service has the port.
    service: Option<bool>,
    /// Whether the connection was made before any Service existed.
    before: bool,
}

fn connections() -> Vec<Outgoing> {
    let mut all = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for service in [Some(true), Some(false), None] {
            for before in [false, true] {
                all.push(Outgoing { port: 30400 + u16::try_from(all.len()).expect("few"), protocol, service, before });
            }
        }
    }
    all
}

#[track_caller]
pub fn agrees(mode: &str) {
    let wired = Wired::enter();
    wired.client.run(echo);
    let connections = connections();
    let mut sockets: Vec<Option<OwnedFd>> =
        connections.iter().map(|it| it.before.then(|| open(it.protocol, it.port))).collect();
    for socket in sockets.iter().flatten() {
        assert!(works(socket), "there is no proxy yet");
    }
    let cluster = ControlPlane::start();
    cluster.api().create(&objects::node("n1", &PRIMARY));
    for Outgoing { port, protocol, service, .. } in &connections {
        let Some(has_endpoint) = service else { continue };
        let mut entry = objects::port(80, Some(*port));
        entry["protocol"] = json!(protocol.to_string().to_uppercase());
        let service = cluster.api().create(&objects::service(&format!("s{port}"), &[entry]));
        let endpoint = has_endpoint.then_some((Wired::HERE[0], "n1"));
        cluster.api().create(&objects::endpoint_slice(&service, endpoint, "IPv4"));
    }
    let _proxy = Proxy::start(&cluster, mode, &json!({}));
    for (socket, it) in sockets.iter_mut().zip(&connections) {
        socket.get_or_insert_with(|| open(it.protocol, it.port));
    }
    let sockets: Vec<OwnedFd> = sockets.into_iter().flatten().collect();
    let worked: Vec<bool> = sockets.iter().map(works).collect();
    let seen = snapshot(&cluster.kubeconfig("admin"));
    let board = judge(&seen, &Limits::default());
    let mut wrong = Vec::new();
    for (it, worked) in connections.iter().zip(worked) {
        let findings = board.findings.iter().filter(|finding| {
            finding.key.name() == "connection-on-port/answers-taken"
                && (finding.key.port, finding.key.protocol) == (Some(it.port), Some(it.protocol))
        });
        let severity = findings.map(|finding| finding.evidence.severity).max();
        if worked == severity.is_some_and(|severity| severity > Severity::Info) {
            let Outgoing { port, protocol, service, before } = it;
            wrong.push(format!(
                "{mode}: from {port}/{protocol}, endpoint {service:?}, older {before}: worked {worked}, said {severity:?}"
            ));
        }
        if it.service.is_none() {
            assert_eq!(severity, None, "{} is nobody's NodePort", it.port);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

pub fn echo() {
    let listener = TcpListener::bind(ECHO).expect("the port is free");
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || {
                let mut words = [0; 16];
                while let Ok(length @ 1..) = stream.read(&mut words) {
                    // The client may have closed the connection.
                    stream.write_all(&words[..length]).ok();
                }
            });
        }
    });
    let socket = UdpSocket::bind(ECHO).expect("the port is free");
    thread::spawn(move || {
        let mut words = [0; 16];
        while let Ok((length, client)) = socket.recv_from(&mut words) {
            socket.send_to(&words[..length], client).ok();
        }
    });
}

#[track_caller]
pub fn open(protocol: Protocol, port: u16) -> OwnedFd {
    begin(protocol, SocketAddr::new(PRIMARY[0].parse().expect("an address"), port), ECHO)
}

#[track_caller]
pub fn begin(protocol: Protocol, from: SocketAddr, to: &str) -> OwnedFd {
    let kind = if protocol == Protocol::Tcp { SockType::Stream } else { SockType::Datagram };
    let socket = socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None);
    let socket = socket.expect("a socket");
    bind(socket.as_raw_fd(), &SockaddrStorage::from(from)).expect("the port is free");
    let to: SocketAddr = to.parse().expect("an address");
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => socket,
        Err(error) => panic!("{from}/{protocol}: {error}"),
    }
}

pub fn works(socket: &OwnedFd) -> bool {
    let ready = |flags| {
        let mut wanted = [PollFd::new(socket.as_fd(), flags)];
        let patience = PollTimeout::try_from(answer_within()).expect("short");
        poll(&mut wanted, patience).expect("a socket can be polled") == 1
    };
    let mut words = [0; 16];
    ready(PollFlags::POLLOUT)
        && send(socket.as_raw_fd(), b"ping", MsgFlags::MSG_NOSIGNAL).is_ok()
        && ready(PollFlags::POLLIN)
        && recv(socket.as_raw_fd(), &mut words, MsgFlags::empty()).is_ok_and(|length| &words[..length] == b"ping")
}
