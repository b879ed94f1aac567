//! A netlink socket on Linux. On other systems, this type has no values.

use std::io;

/// The families of netlink that Portreeve reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Links, addresses and routes.
    Route,
    /// Sockets.
    SockDiag,
    /// Tables, chains and tracked flows.
    Netfilter,
}

/// Sends requests and receives their answers.
pub trait Transport {
    /// Sends one request.
    fn send(&mut self, request: &[u8]) -> io::Result<()>;

    /// Receives one datagram into the capacity of an empty buffer. Returns the real length of the datagram, which may
    /// be greater than the capacity.
    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize>;

    /// The family of the socket.
    fn family(&self) -> Family;

    /// Whether the kernel adds a text to a refusal.
    fn explains(&self) -> bool;
}

/// Options that old supported kernels lack. If the kernel refuses an option, the socket works without the option.
#[cfg(any(target_os = "linux", test))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaterOption {
    /// `NETLINK_EXT_ACK`, Linux 4.12: the kernel adds a text to a refusal.
    Explain,
    /// `NETLINK_GET_STRICT_CHK`, Linux 4.20: the kernel obeys every field of a request. Without this option, a dump
    /// contains more than was requested, and the reader drops the additional objects.
    Strict,
}

/// Returns whether the kernel adds a text to a refusal.
#[cfg(any(target_os = "linux", test))]
fn set_options(strict: bool, mut set: impl FnMut(LaterOption) -> io::Result<()>) -> bool {
    let explains = set(LaterOption::Explain).is_ok();
    if strict {
        // A kernel may refuse this option: answers are read in the same way without it.
        drop(set(LaterOption::Strict));
    }
    explains
}

pub use self::kernel::InterfaceChanges;
pub(crate) use self::kernel::NetlinkSocket;

#[cfg(target_os = "linux")]
mod kernel {
    use std::{io, time::Duration};

    use netlink_sys::{
        Socket, SocketAddr,
        protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_SOCK_DIAG},
    };
    use nix::{
        libc::{RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE, RTNLGRP_LINK},
        sys::{
            socket::{MsgFlags, setsockopt, sockopt},
            time::TimeVal,
        },
    };

    use super::{Family, LaterOption, Transport, set_options};

    /// The longest time that the kernel may need for one answer. For a walk over a million sockets, the kernel needs
    /// 0.2 s.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// A netlink socket in the network namespace of the calling thread.
    #[derive(Debug)]
    pub struct NetlinkSocket {
        socket: Socket,
        family: Family,
        explains: bool,
    }

    impl NetlinkSocket {
        /// Opens a socket. For rtnetlink, sets the strict option, so that the kernel obeys every field of a request.
        pub fn open(family: Family) -> io::Result<Self> {
            let mut socket = Socket::new(match family {
                Family::Route => NETLINK_ROUTE,
                Family::SockDiag => NETLINK_SOCK_DIAG,
                Family::Netfilter => NETLINK_NETFILTER,
            })?;
            socket.bind_auto()?;
            let seconds = i64::try_from(PATIENCE.as_secs()).unwrap_or(i64::MAX);
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(seconds, 0))?;
            let explains = set_options(family == Family::Route, |option| match option {
                LaterOption::Explain => socket.set_ext_ack(true),
                LaterOption::Strict => socket.set_netlink_get_strict_chk(true),
            });
            Ok(Self { socket, family, explains })
        }
    }

    impl Transport for NetlinkSocket {
        fn send(&mut self, request: &[u8]) -> io::Result<()> {
            self.socket.send_to(request, &SocketAddr::new(0, 0), 0).map(drop)
        }

        fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
            loop {
                buffer.clear();
                let (length, sender) = self.socket.recv_from(buffer, MsgFlags::MSG_TRUNC.bits())?;
                // The kernel has port 0. Any process can send messages to this socket, so other senders are ignored.
                if sender.port_number() == 0 {
                    return Ok(length);
                }
            }
        }

        fn family(&self) -> Family {
            self.family
        }

        fn explains(&self) -> bool {
            self.explains
        }
    }

    /// The largest number of notifications that one call receives. A full receive buffer contains fewer notifications.
    const MOST: usize = 4096;

    /// Any process may join these multicast groups.
    const GROUPS: [u32; 5] =
        [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE];

    /// Notifications of rtnetlink about links, addresses and routes, in the network namespace of the thread that
    /// subscribed.
    #[derive(Debug)]
    pub struct InterfaceChanges(Socket);

    impl InterfaceChanges {
        /// Subscribes to changes of links and addresses in the namespace of the calling thread.
        ///
        /// # Errors
        /// Fails if the kernel refuses the socket.
        pub fn subscribe() -> io::Result<Self> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            GROUPS.iter().try_for_each(|group| socket.add_membership(*group))?;
            socket.set_non_blocking(true)?;
            Ok(Self(socket))
        }

        /// Receives all notifications. Returns whether there were notifications, or whether some were lost.
        pub fn receive_all(&mut self) -> bool {
            let next = || self.0.recv(&mut &mut [0; 16][..], MsgFlags::MSG_TRUNC.bits());
            let nothing = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
            (0..MOST).take_while(|_| !next().as_ref().is_err_and(nothing)).count() > 0
        }
    }
}

#[cfg(not(target_os = "linux"))]
#[allow(missing_docs, reason = "the functions of the module above, which explains them")]
mod kernel {
    use std::{convert::Infallible, io};

    use nix::errno::Errno;

    use super::{Family, Transport};

    /// A type without values. This system has no netlink, so Portreeve can read only recorded nodes here.
    #[derive(Debug)]
    pub struct NetlinkSocket(Infallible);

    impl NetlinkSocket {
        pub fn open(_: Family) -> io::Result<Self> {
            Err(Errno::EOPNOTSUPP.into())
        }
    }

    impl Transport for NetlinkSocket {
        fn send(&mut self, _: &[u8]) -> io::Result<()> {
            match self.0 {}
        }

        fn receive(&mut self, _: &mut Vec<u8>) -> io::Result<usize> {
            match self.0 {}
        }

        fn family(&self) -> Family {
            match self.0 {}
        }

        fn explains(&self) -> bool {
            match self.0 {}
        }
    }

    /// A type without values. This system has no notifications.
    #[derive(Debug)]
    pub struct InterfaceChanges(Infallible);

    impl InterfaceChanges {
        pub fn subscribe() -> io::Result<Self> {
            Err(Errno::EOPNOTSUPP.into())
        }

        pub fn receive_all(&mut self) -> bool {
            match self.0 {}
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn a_kernel_without_the_later_options_is_queried_anyway() {
        let old = |refused: &[LaterOption]| {
            let refused = refused.to_vec();
            move |option| if refused.contains(&option) { Err(Errno::ENOPROTOOPT.into()) } else { Ok(()) }
        };
        assert!(set_options(true, old(&[])));
        assert!(set_options(true, old(&[LaterOption::Strict])), "Linux 4.18 and 4.19");
        assert!(!set_options(true, old(&[LaterOption::Explain, LaterOption::Strict])));
        assert!(set_options(false, |option| {
            assert_eq!(option, LaterOption::Explain, "the other option was not requested");
            Ok(())
        }));
    }
}
