//! Reads the sockets of one network namespace, over sock_diag or from text tables.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
};

use crate::{
    netlink::{SockDiagConnection, sock_diag_connection},
    proc_net,
    record::{Record, SocketRequest, States, in_order},
    sock_diag, sockstat,
};
use portreeve_facts::{Family, Gap, Protocol, Socket, Source, Why};

/// Reads sockets over sock_diag. On a kernel without sock_diag, reads the text tables.
#[derive(Debug)]
pub struct Sockets {
    net: PathBuf,
    sock_diag: Option<RefCell<SockDiagConnection>>,
}

/// All listeners, and the source from which they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listeners {
    /// The sockets, sorted by protocol, port and address.
    pub sockets: Vec<Socket>,
    /// The source of the sockets, for messages: `sock_diag`, or the protocols that were read from `/proc/net`. Sockets
    /// from `/proc/net` lack some facts.
    pub read_from: String,
    /// The reason why UDP sockets are missing.
    pub no_udp: Option<Gap>,
}

/// The largest number of listeners that are kept, of all protocols together. Without a limit, a program could fill the
/// agent's memory with listeners. The agent's pod has 128 MiB. A listener takes about 300 bytes, and about 600 bytes
/// during the next scan. The largest nodes have a few thousand listeners.
const MOST_LISTENERS: usize = 65_536;

impl Sockets {
    /// The live sockets in the network namespace of the calling thread. Every thread that walks over the sockets must
    /// be in this namespace. `proc` is the mount of the host's `/proc`.
    pub fn live(proc: &Path) -> Self {
        Self { net: proc.join("thread-self/net"), sock_diag: Some(RefCell::new(sock_diag_connection())) }
    }

    /// The sockets in the recorded text tables of the directory `net`.
    pub fn recorded(net: &Path) -> Self {
        Self { net: net.to_owned(), sock_diag: None }
    }

    /// Every listening TCP and SCTP socket, and every unconnected UDP socket with a local port. The cost depends on the
    /// number of listening and unconnected sockets, not on the number of connections.
    ///
    /// # Errors
    /// A [`Gap`] of [`Source::Listeners`] if one protocol cannot be read, or if TCP and SCTP have too many sockets. If
    /// only UDP has too many sockets, the result has the listeners of the other protocols. A kernel without SCTP is no
    /// error.
    pub fn listeners(&self) -> Result<Listeners, Gap> {
        self.at_most(MOST_LISTENERS)
    }

    /// Reads the listeners of each protocol. A protocol with too many sockets is dropped: if some sockets are missing,
    /// no port is known to be free. Any user can make too many UDP sockets without a privilege. So UDP is read last.
    fn at_most(&self, most: usize) -> Result<Listeners, Gap> {
        let mut records = Vec::new();
        let mut from_text = Vec::new();
        let (mut sctp, mut no_udp) = (true, None);
        for protocol in [Protocol::Tcp, Protocol::Sctp, Protocol::Udp] {
            let states = if protocol == Protocol::Udp { States::UNCONNECTED } else { States::LISTENING };
            let request = SocketRequest::new(Source::Listeners, protocol, states, None);
            let room = most - records.len();
            let seen = self.walk(&request, Vec::new(), |seen: &mut Vec<Record>, record| {
                if seen.len() <= room {
                    seen.push(*record);
                }
            });
            match seen {
                Ok((seen, _)) if seen.len() > room => {
                    let detail = format!("more than {most} sockets listen, or are UDP sockets without a peer");
                    let gap = Gap::new(Source::Listeners, Why::TooMuch, detail);
                    if protocol != Protocol::Udp {
                        return Err(gap);
                    }
                    no_udp = Some(gap);
                }
                Ok((seen, read_from)) => {
                    records.extend(seen);
                    from_text.extend((read_from == ReadFrom::Text).then(|| protocol.to_string()));
                }
                Err(gap) if protocol == Protocol::Sctp && gap.why == Why::NotSupported => sctp = false,
                Err(gap) => return Err(gap),
            }
        }
        let mut read_from = match from_text.as_slice() {
            [] => "sock_diag".to_owned(),
            protocols => format!("/proc/net for {}, without v6only and cgroup", protocols.join(" and ")),
        };
        if !sctp {
            read_from.push_str("; no SCTP");
        }
        Ok(Listeners { sockets: in_order(records), read_from, no_udp })
    }

    /// Uses sock_diag if the kernel has sock_diag for the protocol, and if this process may use it. Otherwise, for
    /// example if a filter of system calls refuses netlink, uses `/proc/net`.
    pub(super) fn walk<T: Clone>(
        &self,
        request: &SocketRequest<'_>,
        collected: T,
        mut each: impl FnMut(&mut T, &Record),
    ) -> Result<(T, ReadFrom), Gap> {
        // If SCTP has no tables, the kernel has not loaded SCTP. A request to sock_diag for SCTP would make the kernel
        // search for a module.
        let connection =
            self.sock_diag.as_ref().filter(|_| request.protocol != Protocol::Sctp || self.net.join("sctp").exists());
        let mut refused = None;
        if let Some(connection) = connection {
            // A walk of UDP visits tens of thousands of buckets for each family. So the walk skips IPv6 if UDP has no
            // IPv6 sockets.
            let only_v4 = request.protocol == Protocol::Udp && sockstat::has_no_udp6(&self.net);
            let families = if only_v4 { &[Family::V4][..] } else { &Family::BOTH };
            match sock_diag::walk(&mut connection.borrow_mut(), request, families, collected.clone(), &mut each) {
                Ok(seen) => return Ok((seen, ReadFrom::SockDiag)),
                Err(gap) if matches!(gap.why, Why::NotSupported | Why::NotPermitted) => refused = Some(gap),
                Err(gap) => return Err(gap),
            }
        }
        // For SCTP, the `Gap` of the table is returned, because SCTP may not be loaded. For other protocols, the `Gap`
        // of netlink is returned, because netlink is the better source.
        let refused = refused.filter(|_| request.protocol != Protocol::Sctp);
        let read = proc_net::walk(&self.net, request, collected, each).map(|seen| (seen, ReadFrom::Text));
        read.map_err(|gap| match refused {
            Some(refused) => Gap { detail: format!("{}; {}", refused.detail, gap.detail), ..refused },
            None => gap,
        })
    }
}

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
    fn the_limit_is_for_all_protocols_together_and_udp_sockets_hide_no_others() {
        let net = tempfile::tempdir().expect("a directory");
        let write = |table: &str, ports: &[u16], state: &str| {
            let line = |port: &u16| {
                let rest = format!("00000000:00000000 00:00000000 00000000  0 0 {} 1 0", usize::from(*port) + 1);
                format!("   0: 0100007F:{port:04X} 00000000:0000 {state} {rest}\n")
            };
            let lines: String = ports.iter().map(line).collect();
            std::fs::write(net.path().join(table), format!("  sl  local_address\n{lines}")).expect("written");
        };
        let sockets = Sockets::recorded(net.path());
        let ports = || {
            let seen = sockets.at_most(3).map_err(|gap| gap.why)?;
            let ports: Vec<_> = seen.sockets.iter().map(|socket| socket.local_port).collect();
            Ok((ports, seen.no_udp.map(|gap| gap.why)))
        };
        write("tcp", &[80], "0A");
        write("udp", &[53, 40000], "07");
        assert_eq!(ports(), Ok((vec![80, 53, 40000], None)));
        write("udp", &[53, 40000, 40001], "07");
        assert_eq!(ports(), Ok((vec![80], Some(Why::TooMuch))), "all of UDP, or none");
        write("udp", &[], "07");
        write("tcp", &[80, 81, 82, 83], "0A");
        assert_eq!(ports(), Err(Why::TooMuch));
        write("tcp", &[80, 81, 82], "0A");
        assert_eq!(ports(), Ok((vec![80, 81, 82], None)));
    }
}
