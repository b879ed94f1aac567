//! The sockets of one network namespace, from the best place that tells them.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
};

use crate::{
    facts::{Family, Gap, PortRange, PortSet, Protocol, Socket, Source, Why},
    kernel::{
        netlink::{SockDiagConnection, sock_diag_connection},
        proc_net,
        record::{Ask, Record, States, in_order},
        sock_diag, sockstat,
    },
};

/// Reads sockets over sock_diag, or from the text tables where there is no sock_diag.
#[derive(Debug)]
pub struct Sockets {
    net: PathBuf,
    sock_diag: Option<RefCell<SockDiagConnection>>,
}

/// Every listener, and how listeners were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listeners {
    /// By protocol, port and address.
    pub sockets: Vec<Socket>,
    /// `sock_diag`, or which protocols came from elsewhere and what that cannot tell, for people.
    pub read_from: String,
}

/// The most listening sockets of one protocol that are kept, so that nobody fills the memory of an agent with them: its pod
/// has 128 MiB, and one takes some 300 bytes, twice while the next look is taken. The largest nodes have a few thousand.
const MOST_LISTENERS: usize = 65_536;

impl Sockets {
    /// The live sockets in the network namespace of the calling thread, which must be the same at every walk; `proc` is
    /// where the host's `/proc` is mounted.
    pub fn live(proc: &Path) -> Self {
        Self { net: proc.join("thread-self/net"), sock_diag: Some(RefCell::new(sock_diag_connection())) }
    }

    /// What the text tables in the directory `net` recorded.
    pub fn recorded(net: &Path) -> Self {
        Self { net: net.to_owned(), sock_diag: None }
    }

    /// Every listening TCP and SCTP socket, and every unconnected UDP socket with a local port. The cost depends on
    /// these alone, however many connections the host has.
    ///
    /// # Errors
    /// A [`Gap`] of [`Source::Listeners`] when one of them cannot be read. A kernel that has no SCTP loaded has no
    /// gap.
    pub fn listeners(&self) -> Result<Listeners, Gap> {
        let mut records = Vec::new();
        let mut from_text = Vec::new();
        let (mut sctp, mut clients_left_out) = (true, false);
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let states = if protocol == Protocol::Udp { States::UNCONNECTED } else { States::LISTENING };
            match self.at_most(MOST_LISTENERS, protocol, states) {
                Ok((seen, left_out, read_from)) => {
                    records.extend(seen);
                    clients_left_out |= left_out;
                    from_text.extend((read_from == ReadFrom::Text).then(|| protocol.to_string()));
                }
                Err(gap) if protocol == Protocol::Sctp && gap.why == Why::NotSupported => sctp = false,
                Err(gap) => return Err(gap),
            }
        }
        let mut read_from = match from_text.as_slice() {
            [] => "sock_diag".to_owned(),
            protocols => format!("/proc/net for {}, which tells neither v6only nor cgroup", protocols.join(" and ")),
        };
        if !sctp {
            read_from.push_str("; no SCTP");
        }
        if clients_left_out {
            read_from.push_str(&format!(
                "; of more than {MOST_LISTENERS} unconnected UDP sockets those on ephemeral ports are left out, as clients are"
            ));
        }
        Ok(Listeners { sockets: in_order(records), read_from })
    }

    /// The sockets of one protocol in these states, and whether those on ephemeral ports were left out: of unconnected UDP
    /// sockets they are clients more often than not, and a process without privilege may have a million.
    fn at_most(&self, most: usize, protocol: Protocol, states: States) -> Result<(Vec<Record>, bool, ReadFrom), Gap> {
        let walk = |ports| {
            let ask = Ask { source: Source::Listeners, protocol, states, ports };
            self.walk(&ask, Vec::new(), |seen: &mut Vec<Record>, record| {
                if seen.len() <= most {
                    seen.push(*record);
                }
            })
        };
        let (seen, read_from) = walk(None)?;
        if seen.len() <= most {
            return Ok((seen, false, read_from));
        }
        drop(seen);
        if protocol == Protocol::Udp {
            let every_port = PortSet::from(PortRange { first: 1, last: u16::MAX });
            let (seen, read_from) = walk(Some(&every_port.minus(&PortRange::DEFAULT_EPHEMERAL.into())))?;
            if seen.len() <= most {
                return Ok((seen, true, read_from));
            }
        }
        let detail = format!("more than {most} sockets of {protocol} listen, or are not connected");
        Err(Gap::new(Source::Listeners, Why::TooMuch, detail))
    }

    /// One walk, by sock_diag where this kernel has it for the protocol and this process may ask. `/proc/net` shows the
    /// same sockets to a process whose filter of system calls refuses netlink.
    pub(super) fn walk<T: Clone>(
        &self,
        ask: &Ask<'_>,
        collected: T,
        mut each: impl FnMut(&mut T, &Record),
    ) -> Result<(T, ReadFrom), Gap> {
        // Without tables no SCTP is loaded: to be asked, the kernel would look for a module.
        let connection =
            self.sock_diag.as_ref().filter(|_| ask.protocol != Protocol::Sctp || self.net.join("sctp").exists());
        if let Some(connection) = connection {
            // UDP has tens of thousands of buckets, which are walked once for each family.
            let only_v4 = ask.protocol == Protocol::Udp && sockstat::has_no_udp6(&self.net);
            let families = if only_v4 { &[Family::V4][..] } else { &Family::BOTH };
            match sock_diag::walk(&mut connection.borrow_mut(), ask, families, collected.clone(), &mut each) {
                Ok(seen) => return Ok((seen, ReadFrom::SockDiag)),
                Err(refused) if matches!(refused.why, Why::NotSupported | Why::NotPermitted) => {
                    let read = proc_net::walk(&self.net, ask, collected, each);
                    return match read {
                        Ok(seen) => Ok((seen, ReadFrom::Text)),
                        // No SCTP is loaded, or the table is as closed as netlink, which is the better way.
                        Err(gap) if ask.protocol == Protocol::Sctp => Err(gap),
                        Err(gap) => Err(Gap { detail: format!("{}; {}", refused.detail, gap.detail), ..refused }),
                    };
                }
                Err(gap) => return Err(gap),
            }
        }
        proc_net::walk(&self.net, ask, collected, each).map(|seen| (seen, ReadFrom::Text))
    }
}

/// Where a walk went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFrom {
    SockDiag,
    Text,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_tree_needs_no_kernel() {
        let net = tempfile::tempdir().expect("a directory");
        let line = "   0: 00000000:7580 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 4711 1 0\n";
        std::fs::write(net.path().join("tcp"), format!("  sl  local_address\n{line}")).expect("written");
        let sockets = Sockets::recorded(net.path());
        assert_eq!(sockets.listeners().expect_err("no UDP table").why, Why::NotSupported);
        std::fs::write(net.path().join("udp"), "  sl  local_address\n").expect("written");
        let listeners = sockets.listeners().expect("both tables");
        assert_eq!(listeners.sockets.iter().map(|socket| socket.local_port).collect::<Vec<_>>(), [30080]);
        assert!(listeners.read_from.starts_with("/proc/net for tcp and udp"), "{}", listeners.read_from);
    }

    #[test]
    fn of_very_many_udp_sockets_clients_are_left_out_and_of_very_many_others_it_is_too_much() {
        let net = tempfile::tempdir().expect("a directory");
        let line = |port: u16, state: &str, inode: usize| {
            let rest = format!("00000000:00000000 00:00000000 00000000  0 0 {inode} 1 0");
            format!("   0: 0100007F:{port:04X} 00000000:0000 {state} {rest}\n")
        };
        let write = |table: &str, ports: &[u16], state: &str| {
            let lines: String = ports.iter().enumerate().map(|(index, port)| line(*port, state, index + 1)).collect();
            std::fs::write(net.path().join(table), format!("  sl  local_address\n{lines}")).expect("written");
        };
        let (udp, tcp) = (States::UNCONNECTED, States::LISTENING);
        let sockets = Sockets::recorded(net.path());
        let read = |protocol, state| sockets.at_most(3, protocol, state);
        write("udp", &[53, 40000, 40001], "07");
        assert_eq!(read(Protocol::Udp, udp).map(|(seen, left_out, _)| (seen.len(), left_out)), Ok((3, false)));
        write("udp", &[53, 30080, 40000, 40001, 40001], "07");
        let (seen, left_out, _) = read(Protocol::Udp, udp).expect("a few servers");
        assert_eq!(
            (seen.iter().map(|record| record.local_port).collect::<Vec<_>>(), left_out),
            (vec![53, 30080], true)
        );
        write("udp", &[53, 53, 53, 53, 53], "07");
        assert_eq!(read(Protocol::Udp, udp).expect_err("too much").why, Why::TooMuch);
        write("tcp", &[80, 80, 80, 80], "0A");
        assert_eq!(read(Protocol::Tcp, tcp).expect_err("too much").why, Why::TooMuch);
    }
}
