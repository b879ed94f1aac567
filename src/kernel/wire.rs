//! A netlink socket, where the kernel is Linux.

use std::io;

/// Where a request goes and its answers come from.
pub(super) trait Wire {
    /// Sends one request.
    fn send(&mut self, request: &[u8]) -> io::Result<()>;

    /// Receives one datagram into the room of an empty buffer and tells its true length, which may exceed that.
    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize>;
}

pub(super) use kernel::{KernelWire, News};

#[cfg(target_os = "linux")]
mod kernel {
    use std::{io, time::Duration};

    use netlink_sys::{Socket, SocketAddr};
    use nix::sys::{
        socket::{MsgFlags, setsockopt, sockopt},
        time::TimeVal,
    };

    use super::Wire;
    use crate::kernel::netlink::NETLINK_ROUTE;

    /// How long the kernel may take for one answer; a walk over a million sockets takes it 0.2 s.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// A netlink socket in the network namespace of the calling thread.
    #[derive(Debug)]
    pub(in crate::kernel) struct KernelWire(Socket);

    impl KernelWire {
        /// `strict`: the kernel has to honour or refuse every field of a request.
        pub(in crate::kernel) fn open(protocol: isize, strict: bool) -> io::Result<Self> {
            let mut socket = Socket::new(protocol)?;
            socket.bind_auto()?;
            let seconds = i64::try_from(PATIENCE.as_secs()).unwrap_or(i64::MAX);
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(seconds, 0))?;
            if strict {
                socket.set_netlink_get_strict_chk(true)?;
            }
            Ok(Self(socket))
        }
    }

    impl Wire for KernelWire {
        fn send(&mut self, request: &[u8]) -> io::Result<()> {
            self.0.send_to(request, &SocketAddr::new(0, 0), 0).map(drop)
        }

        fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
            loop {
                buffer.clear();
                let (length, sender) = self.0.recv_from(buffer, MsgFlags::MSG_TRUNC.bits())?;
                // Port 0 is the kernel; whoever else writes to this socket is not asked.
                if sender.port_number() == 0 {
                    return Ok(length);
                }
            }
        }
    }

    /// So much news is taken away at once; more than the kernel keeps of it.
    const MOST: usize = 4096;

    /// What rtnetlink tells of changes in the network namespace of the thread that began to listen.
    #[derive(Debug)]
    pub(in crate::kernel) struct News(Socket);

    impl News {
        /// Listens to groups (include/uapi/linux/rtnetlink.h `RTNLGRP_*`).
        pub(in crate::kernel) fn of(groups: &[u32]) -> io::Result<Self> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            groups.iter().try_for_each(|group| socket.add_membership(*group))?;
            socket.set_non_blocking(true)?;
            Ok(Self(socket))
        }

        /// Whether anything changed since this was asked last. That news was lost, is news.
        pub(in crate::kernel) fn arrived(&mut self) -> bool {
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

    use super::Wire;

    /// There is none: of such a host every fact is a gap, and only recorded nodes can be read.
    #[derive(Debug)]
    pub(in crate::kernel) struct KernelWire(Infallible);

    impl KernelWire {
        pub(in crate::kernel) fn open(_: isize, _: bool) -> io::Result<Self> {
            Err(Errno::EOPNOTSUPP.into())
        }
    }

    impl Wire for KernelWire {
        fn send(&mut self, _: &[u8]) -> io::Result<()> {
            match self.0 {}
        }

        fn receive(&mut self, _: &mut Vec<u8>) -> io::Result<usize> {
            match self.0 {}
        }
    }

    /// Nobody tells of changes.
    #[derive(Debug)]
    pub(in crate::kernel) struct News(Infallible);

    impl News {
        pub(in crate::kernel) fn of(_: &[u32]) -> io::Result<Self> {
            Err(Errno::EOPNOTSUPP.into())
        }

        pub(in crate::kernel) fn arrived(&mut self) -> bool {
            match self.0 {}
        }
    }
}
