//! Client sockets that one walk keeps, the interesting ones first.

use super::record::{Accepting, Record, in_order};
use portreeve_facts::{Clients, Protocol, State};

/// The most client sockets that are listed.
const CLIENTS: usize = 4096;

/// Client sockets, never more than [`CLIENTS`].
#[derive(Clone, Default)]
pub(super) struct KeptClients {
    by_rank: [Vec<Record>; 3],
    beyond: u64,
    outgoing: u64,
}

impl KeptClients {
    /// Keeps a socket, at the expense of one of a worse rank where it must be: those in SYN-SENT and UDP are the best, those
    /// that a listener accepted the worst.
    pub(super) fn keep(&mut self, record: &Record, accepting: &Accepting<'_>) {
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

    /// What was kept, by rank.
    pub(super) fn finish(self) -> Clients {
        let Self { by_rank, beyond, outgoing } = self;
        let sockets = by_rank.into_iter().flat_map(in_order).collect();
        Clients { sockets, beyond, outgoing, passed_over: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;
    use portreeve_facts::Socket;

    #[test]
    fn the_ones_in_syn_sent_are_kept_however_late_they_come() {
        let listeners: [Socket; 1] = [record(Protocol::Tcp, State::Listen, "0.0.0.0:30080", "0.0.0.0:0").into()];
        let accepting = Accepting::new(&listeners);
        let accepted = record(Protocol::Tcp, State::Established, "10.0.0.1:30080", "10.0.0.9:999");
        let outgoing = record(Protocol::Tcp, State::Established, "10.0.0.1:30081", "10.0.0.9:999");
        let hanging = record(Protocol::Tcp, State::SynSent, "10.0.0.1:30081", "10.0.0.9:998");
        let mut kept = KeptClients::default();
        for _ in 0..CLIENTS {
            kept.keep(&accepted, &accepting);
        }
        kept.keep(&outgoing, &accepting);
        kept.keep(&hanging, &accepting);
        kept.keep(&accepted, &accepting);
        assert_eq!(kept.by_rank.each_ref().map(Vec::len), [1, 1, CLIENTS - 2]);
        assert_eq!((kept.beyond, kept.outgoing), (3, 2));
    }
}
