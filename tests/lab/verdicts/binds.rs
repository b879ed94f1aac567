//! Listeners that are bound to an address, and some also to a device. Each listener sends its name to clients.

use std::{
    io::{IoSlice, IoSliceMut, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener},
    os::fd::{AsRawFd as _, OwnedFd},
    thread::{self, JoinHandle},
};

use nix::{
    cmsg_space,
    errno::Errno,
    libc,
    net::if_::if_nametoindex,
    sys::socket::{
        AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown as Direction, SockFlag,
        SockType, SockaddrStorage, bind, listen, recvmsg, sendmsg, setsockopt, shutdown, socket, sockopt,
    },
};
use portreeve_facts::Protocol;

use crate::parts::{Answer, LINK_LOCAL};

pub struct Bind {
    /// The name of the listener in recordings.
    pub name: &'static str,
    pub address: &'static str,
    pub v6only: bool,
    /// `SO_BINDTODEVICE`.
    pub device: Option<&'static str>,
}

/// A bind to an address. If the address is `::`, the listener accepts both families.
pub const fn to(address: &'static str) -> Bind {
    Bind { name: address, address, v6only: false, device: None }
}

/// A loopback address on which DNS resolvers often listen. No interface has this address.
pub const OTHER_LOOPBACK: &str = "127.0.0.53";

pub static BINDS: [Bind; 12] = [
    to("0.0.0.0"),
    to("::"),
    Bind { name: ":: v6only", address: "::", v6only: true, device: None },
    to("127.0.0.1"),
    to("::1"),
    to(OTHER_LOOPBACK),
    to("192.0.2.1"),
    to("192.0.2.2"),
    to("2001:db8::1"),
    to("2001:db8::2"),
    to(LINK_LOCAL),
    Bind { name: "0.0.0.0 on eth0", address: "0.0.0.0", v6only: false, device: Some("eth0") },
];

impl Bind {
    pub fn ip(&self) -> IpAddr {
        self.address.parse().expect("an address")
    }

    fn socket(&self, port: u16) -> SocketAddr {
        let mut address = SocketAddr::new(self.ip(), port);
        if let SocketAddr::V6(it) = &mut address
            && it.ip().is_unicast_link_local()
        {
            it.set_scope_id(if_nametoindex("eth0").expect("the node has eth0"));
        }
        address
    }
}

pub struct Held {
    socket: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Held {
    #[track_caller]
    pub fn on(to: &Bind, protocol: Protocol, port: u16, identity: Answer) -> Self {
        let socket = open(to, protocol, port);
        let serving = socket.try_clone().expect("a second handle");
        let thread = match protocol {
            Protocol::Tcp => thread::spawn(move || accept(&TcpListener::from(serving), identity.banner())),
            Protocol::Udp => thread::spawn(move || reply(&serving, identity.banner())),
            Protocol::Sctp => unreachable!("no listener of this lab is bound over SCTP"),
        };
        Self { socket, thread: Some(thread) }
    }
}

#[track_caller]
fn open(to: &Bind, protocol: Protocol, port: u16) -> OwnedFd {
    let kind = if protocol == Protocol::Tcp { SockType::Stream } else { SockType::Datagram };
    let family = if to.ip().is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    if let AddressFamily::Inet6 = family {
        setsockopt(&socket, sockopt::Ipv6V6Only, &to.v6only).expect("IPV6_V6ONLY");
    }
    if let Some(device) = to.device {
        setsockopt(&socket, sockopt::BindToDevice, &device.into()).expect("SO_BINDTODEVICE");
    }
    if protocol == Protocol::Tcp {
        // Most servers set `SO_REUSEADDR`. Without this option, connections in TIME_WAIT would keep the port from the
        // next listener.
        setsockopt(&socket, sockopt::ReuseAddr, &true).expect("SO_REUSEADDR");
    }
    let address = SockaddrStorage::from(to.socket(port));
    bind(socket.as_raw_fd(), &address).unwrap_or_else(|error| panic!("{} {port}/{protocol}: {error}", to.name));
    if protocol == Protocol::Tcp {
        listen(&socket, Backlog::MAXCONN).expect("a listener");
    } else if let AddressFamily::Inet6 = family {
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true).expect("IPV6_RECVPKTINFO");
    } else {
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true).expect("IP_PKTINFO");
    }
    socket
}

fn accept(listener: &TcpListener, banner: &[u8]) {
    while let Ok((mut stream, _)) = listener.accept() {
        // The client may have closed the connection.
        stream.write_all(banner).and_then(|()| stream.shutdown(Shutdown::Write)).ok();
    }
}

/// Answers each datagram from the address to which it was sent. By default, a wildcard socket would answer from the
/// primary address.
fn reply(socket: &OwnedFd, banner: &[u8]) {
    let mut data = [0; 16];
    let mut control = cmsg_space!(libc::in6_pktinfo);
    loop {
        let mut into = [IoSliceMut::new(&mut data)];
        let received = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut into, Some(&mut control), MsgFlags::empty());
        let Ok(message) = received else { continue };
        // No client sends an empty datagram. So an empty datagram means that the socket was shut down.
        let (Some(client), 1..) = (message.address, message.bytes) else { return };
        let told = message.cmsgs().expect("whole control messages").next();
        let from = match &told {
            Some(ControlMessageOwned::Ipv4PacketInfo(info)) => {
                let local = libc::in_pktinfo { ipi_ifindex: 0, ..*info };
                send(socket, banner, &client, &ControlMessage::Ipv4PacketInfo(&local))
            }
            Some(ControlMessageOwned::Ipv6PacketInfo(info)) => {
                send(socket, banner, &client, &ControlMessage::Ipv6PacketInfo(info))
            }
            other => unreachable!("where a datagram went was asked for, not {other:?}"),
        };
        // The client may have closed the connection.
        from.ok();
    }
}

fn send(socket: &OwnedFd, banner: &[u8], to: &SockaddrStorage, from: &ControlMessage<'_>) -> nix::Result<usize> {
    sendmsg(socket.as_raw_fd(), &[IoSlice::new(banner)], &[*from], MsgFlags::empty(), Some(to))
}

impl Drop for Held {
    /// `shutdown` wakes the thread even if the error is ENOTCONN.
    fn drop(&mut self) {
        let woken = matches!(shutdown(self.socket.as_raw_fd(), Direction::Both), Ok(()) | Err(Errno::ENOTCONN));
        let ended = self.thread.take().expect("it is taken only here").join().is_ok();
        assert!(thread::panicking() || (woken && ended), "a server that can be stopped and does not panic");
    }
}
