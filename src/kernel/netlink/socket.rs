//! A netlink socket, where the kernel is Linux.

use std::io;

/// The families of netlink that are read.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernel) enum Family {
    /// Links, addresses and routes.
    Route,
    /// Sockets.
    SockDiag,
    /// Tables, chains and tracked flows.
    Netfilter,
}

/// What a request is sent to, and its answers are received from.
pub(in crate::kernel) trait Transport {
    /// Sends one request.
    fn send(&mut self, request: &[u8]) -> io::Result<()>;

    /// Receives one datagram into the capacity of an empty buffer. Returns its true length, which may exceed that.
    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize>;
}

pub(in crate::kernel) use self::kernel::InterfaceChanges;
pub(super) use self::kernel::NetlinkSocket;

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

    use super::{Family, Transport};

    /// How long the kernel may take for one answer; a walk over a million sockets takes it 0.2 s.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// A netlink socket in the network namespace of the calling thread.
    #[derive(Debug)]
    pub(in crate::kernel) struct NetlinkSocket(Socket);

    impl NetlinkSocket {
        /// `strict`: the kernel has to honour or refuse every field of a request.
        pub(in crate::kernel) fn open(family: Family, strict: bool) -> io::Result<Self> {
            let mut socket = Socket::new(match family {
                Family::Route => NETLINK_ROUTE,
                Family::SockDiag => NETLINK_SOCK_DIAG,
                Family::Netfilter => NETLINK_NETFILTER,
            })?;
            socket.bind_auto()?;
            let seconds = i64::try_from(PATIENCE.as_secs()).unwrap_or(i64::MAX);
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(seconds, 0))?;
            if strict {
                socket.set_netlink_get_strict_chk(true)?;
            }
            Ok(Self(socket))
        }
    }

    impl Transport for NetlinkSocket {
        fn send(&mut self, request: &[u8]) -> io::Result<()> {
            self.0.send_to(request, &SocketAddr::new(0, 0), 0).map(drop)
        }

        fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
            loop {
                buffer.clear();
                let (length, sender) = self.0.recv_from(buffer, MsgFlags::MSG_TRUNC.bits())?;
                // Port 0 is the kernel; any other process can write to this socket, too.
                if sender.port_number() == 0 {
                    return Ok(length);
                }
            }
        }
    }

    /// The most notifications that are received at once; more than a receive buffer holds.
    const MOST: usize = 4096;

    /// The groups of links, addresses and routes. Joining them takes no privilege.
    const GROUPS: [u32; 5] =
        [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE];

    /// Notifications of rtnetlink about links, addresses and routes, in the network namespace of the thread that
    /// subscribed.
    #[derive(Debug)]
    pub(in crate::kernel) struct InterfaceChanges(Socket);

    impl InterfaceChanges {
        pub(in crate::kernel) fn subscribe() -> io::Result<Self> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            GROUPS.iter().try_for_each(|group| socket.add_membership(*group))?;
            socket.set_non_blocking(true)?;
            Ok(Self(socket))
        }

        /// Receives all notifications, and returns whether there were any. Lost notifications count as one.
        pub(in crate::kernel) fn receive_all(&mut self) -> bool {
            let next = || self.0.recv(&mut &mut [0; 16][..], MsgFlags::MSG_TRUNC.bits());
            let nothing = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
            (0..MOST).take_while(|_| !next().as_ref().is_err_and(nothing)).count() > 0
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod kernel {
    use std::{convert::Infallible, io};

    use nix::errno::Errno;

    use super::{Family, Transport};

    /// There is none: every fact of such a host is a gap, and only recorded nodes can be read.
    #[derive(Debug)]
    pub(in crate::kernel) struct NetlinkSocket(Infallible);

    impl NetlinkSocket {
        pub(in crate::kernel) fn open(_: Family, _: bool) -> io::Result<Self> {
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
    }

    /// There are no notifications.
    #[derive(Debug)]
    pub(in crate::kernel) struct InterfaceChanges(Infallible);

    impl InterfaceChanges {
        pub(in crate::kernel) fn subscribe() -> io::Result<Self> {
            Err(Errno::EOPNOTSUPP.into())
        }

        pub(in crate::kernel) fn receive_all(&mut self) -> bool {
            match self.0 {}
        }
    }
}
