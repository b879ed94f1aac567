//! The sockets of one network namespace, from the best place that tells them.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
};

use crate::{
    facts::{Clients, Family, Gap, PortSet, Protocol, Socket, Source, State, Why},
    kernel::{
        netlink::{SockDiagConnection, sock_diag_connection},
        proc_net,
        record::{Accepting, Ask, Record, States},
        sock_diag, sockstat,
    },
};

/// The most client sockets that are listed.
const CLIENTS: usize = 4096;

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
        let mut sctp = true;
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let states = if protocol == Protocol::Udp { States::UNCONNECTED } else { States::LISTENING };
            let ask = Ask { source: Source::Listeners, protocol, states, ports: None };
            match self.walk(&ask, Vec::new(), |seen, record| seen.push(*record)) {
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
            protocols => format!("/proc/net for {}, which tells neither v6only nor cgroup", protocols.join(" and ")),
        };
        if !sctp {
            read_from.push_str("; no SCTP");
        }
        Ok(Listeners { sockets: in_order(records), read_from })
    }

    /// The sockets with a peer whose local port is in `ports`, at most 4,096: those in SYN-SENT and UDP first, those
    /// that one of `listeners` accepted last.
    ///
    /// # Errors
    /// A [`Gap`] of [`Source::Clients`] when TCP or UDP cannot be read.
    pub fn clients(&self, ports: &PortSet, listeners: &[Socket]) -> Result<Clients, Gap> {
        if ports.is_empty() {
            return Ok(Clients::default());
        }
        let accepting = Accepting::new(listeners);
        let mut kept = Kept::default();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let states = if protocol == Protocol::Udp { States::ESTABLISHED } else { States::WITH_PEER };
            let ask = Ask { source: Source::Clients, protocol, states, ports: Some(ports) };
            match self.walk(&ask, kept.clone(), |kept, record| kept.keep(record, &accepting)) {
                Ok((seen, _)) => kept = seen,
                Err(gap) if protocol == Protocol::Sctp && gap.why == Why::NotSupported => {}
                Err(gap) => return Err(gap),
            }
        }
        let Kept { by_rank, beyond, outgoing } = kept;
        let sockets = by_rank.into_iter().flat_map(in_order).collect();
        Ok(Clients { sockets, beyond, outgoing, passed_over: false })
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

/// Client sockets, the interesting ones first, never more than [`CLIENTS`].
#[derive(Clone, Default)]
struct Kept {
    by_rank: [Vec<Record>; 3],
    beyond: u64,
    outgoing: u64,
}

impl Kept {
    /// Keeps a socket, at the expense of one of a worse rank where it must be.
    fn keep(&mut self, record: &Record, accepting: &Accepting<'_>) {
        let rank = match record {
            Record { state: State::SynSent, .. } | Record { protocol: Protocol::Udp, .. } => 0,
            record if !accepting.covers(record) => 1,
            _ => 2,
        };
        self.outgoing += u64::from(rank < 2);
        if self.by_rank.iter().map(Vec::len).sum::<usize>() >= CLIENTS {
            self.beyond += 1;
            if self.by_rank.iter_mut().skip(rank + 1).rev().find_map(Vec::pop).is_none() {
                return;
            }
        }
        if let Some(same_rank) = self.by_rank.get_mut(rank) {
            same_rank.push(*record);
        }
    }
}

/// Sorted, and each socket once: a table that changes under the walk shows some twice.
fn in_order(mut records: Vec<Record>) -> Vec<Socket> {
    records.sort_unstable();
    records.dedup();
    records.into_iter().map(Socket::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::record::tests::record;

    #[test]
    fn the_ones_in_syn_sent_are_kept_however_late_they_come() {
        let listeners: [Socket; 1] = [record(Protocol::Tcp, State::Listen, "0.0.0.0:30080", "0.0.0.0:0").into()];
        let accepting = Accepting::new(&listeners);
        let accepted = record(Protocol::Tcp, State::Established, "10.0.0.1:30080", "10.0.0.9:999");
        let outgoing = record(Protocol::Tcp, State::Established, "10.0.0.1:30081", "10.0.0.9:999");
        let hanging = record(Protocol::Tcp, State::SynSent, "10.0.0.1:30081", "10.0.0.9:998");
        let mut kept = Kept::default();
        for _ in 0..CLIENTS {
            kept.keep(&accepted, &accepting);
        }
        kept.keep(&outgoing, &accepting);
        kept.keep(&hanging, &accepting);
        kept.keep(&accepted, &accepting);
        assert_eq!(kept.by_rank.each_ref().map(Vec::len), [1, 1, CLIENTS - 2]);
        assert_eq!((kept.beyond, kept.outgoing), (3, 2));
    }

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
}
