//! The number of ephemeral ports that connections to each destination use. The memory for the count does not grow with
//! the number of sockets.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    net::IpAddr,
};

use crate::{owner::Claim, record::Record};
use portreeve_facts::{DestinationUse, EphemeralUse, Extent, Owner, PortSet, Protocol, State};

const REPORTED: usize = 16;
const COUNTED: usize = 8192;

/// The settings for counting ephemeral ports.
#[derive(Clone, Copy, Debug)]
pub struct Counting<'a> {
    /// The local ports that are counted: the ephemeral port range without the reserved ports.
    pub ports: &'a PortSet,
    /// The largest number of ports that one destination can use. The number is from sockstat and sockstat6. `None` if
    /// these files could not be read.
    pub at_most: Option<u32>,
    /// If `at_most` is smaller than this number, the walk over sockets is skipped.
    pub worth_walking: u32,
    /// `net.ipv4.tcp_tw_reuse`, if it could be read. With the value 1, a new connection can take any port in TIME_WAIT.
    /// With the value 2, a new connection can take a port in TIME_WAIT only on loopback. Ports that a new connection
    /// can take are not counted.
    pub tcp_tw_reuse: Option<u8>,
}

/// The use of the ephemeral port range. Each of the busiest destinations has an example socket, from which the owner is
/// found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The counts. The owners of the sockets are still unknown.
    pub ephemeral: EphemeralUse,
    /// One example for each of the busiest destinations, in the order of the destinations. A destination with fewer
    /// ports than `worth_walking` has no example.
    pub examples: Vec<Claim>,
}

impl Counting<'_> {
    /// The result without a walk, if every destination uses too few ports for a finding. Otherwise `None`.
    pub(super) fn without_a_walk(&self) -> Option<Counted> {
        let is_idle = |at_most: u32| at_most < self.worth_walking || at_most == 0 || self.ports.is_empty();
        let ephemeral = match self.at_most {
            Some(at_most) if is_idle(at_most) => EphemeralUse::of_every_socket(at_most),
            None if self.ports.is_empty() => EphemeralUse { at_most: 0, busiest: Vec::new(), extent: self.extent() },
            _ => return None,
        };
        Some(Counted { ephemeral, examples: Vec::new() })
    }

    fn extent(&self) -> Extent {
        Extent::Walked { ports: self.ports.clone(), tcp_tw_reuse: self.tcp_tw_reuse, every: self.at_most }
    }

    /// Whether a new connection cannot use the port of this socket.
    fn counts(&self, record: &Record) -> bool {
        let reusable = match self.tcp_tw_reuse {
            Some(1) => true,
            Some(2) => record.remote.to_canonical().is_loopback(),
            _ => false,
        };
        record.state != State::TimeWait || !reusable
    }
}

/// Sockets with the same `Destination` compete for ephemeral ports. IPv4 over an IPv6 socket counts as IPv4.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Destination {
    protocol: Protocol,
    source: IpAddr,
    destination: IpAddr,
    port: u16,
}

impl Destination {
    fn of(record: &Record) -> Self {
        let (source, destination) = (record.local.to_canonical(), record.remote.to_canonical());
        Self { protocol: record.protocol, source, destination, port: record.remote_port }
    }
}

impl Hash for Destination {
    /// Hashes only a few words, because there may be a million sockets. A derived hash would add lengths and the
    /// numbers of variants.
    fn hash<H: Hasher>(&self, state: &mut H) {
        for ip in [self.source, self.destination] {
            state.write_u128(match ip {
                IpAddr::V4(ip) => ip.to_bits().into(),
                IpAddr::V6(ip) => ip.to_bits(),
            });
        }
        state.write_u32(u32::from(self.port) << 8 | self.protocol as u32);
    }
}

#[derive(Clone, Copy)]
struct Count {
    used: u32,
    time_wait: u32,
    /// `used`, plus the [`Tally`]'s `floor` at the time when this count began. When the floor reaches the credit, the
    /// destination is forgotten.
    credit: u64,
    example: Claim,
}

impl Count {
    fn add(&mut self, record: &Record) {
        self.used += 1;
        self.credit += 1;
        if record.state == State::TimeWait {
            self.time_wait += 1;
        } else if self.example.state == State::TimeWait {
            self.example = Claim::of(record);
        }
    }
}

/// Counts of the frequent destinations (Misra and Gries, 1982). If there is no space for a new destination, every count
/// is reduced by one, and destinations with the count zero are dropped. A destination always stays if more than one in
/// [`COUNTED`] sockets has it.
#[derive(Clone, Default)]
pub(super) struct Tally {
    counts: HashMap<Destination, Count>,
    floor: u64,
    closed: bool,
    walked: u64,
}

impl Tally {
    pub(super) fn count(&mut self, counting: &Counting<'_>, record: &Record) {
        if !counting.counts(record) {
            return;
        }
        self.walked += 1;
        let destination = Destination::of(record);
        // Most sockets have the same destination as an earlier socket, and need only one search in the table.
        if let Some(count) = self.counts.get_mut(&destination) {
            count.add(record);
            return;
        }
        if self.closed {
            return;
        }
        if self.counts.len() >= COUNTED {
            self.floor += 1;
            let floor = self.floor;
            self.counts.retain(|_, count| count.credit > floor);
        } else {
            let mut count = Count { used: 0, time_wait: 0, credit: self.floor, example: Claim::of(record) };
            count.add(record);
            self.counts.insert(destination, count);
        }
    }

    /// A tally for a second walk, with the destinations that may be the busiest. Each count begins at zero. `None` if
    /// the first tally is exact, or if every destination uses too few ports for a finding.
    pub(super) fn recount(&self, counting: &Counting<'_>) -> Option<Self> {
        if self.floor == 0 || self.highest() < u64::from(counting.worth_walking) {
            return None;
        }
        let mut busiest: Vec<_> = self.counts.iter().map(|(destination, count)| (*destination, *count)).collect();
        busiest.sort_unstable_by_key(|(destination, count)| (std::cmp::Reverse(count.credit), *destination));
        busiest.truncate(REPORTED * 4);
        let uncounted = |count: Count| Count { used: 0, time_wait: 0, ..count };
        Some(Self {
            counts: busiest.into_iter().map(|(destination, count)| (destination, uncounted(count))).collect(),
            closed: true,
            ..Self::default()
        })
    }

    /// The largest number of ports that any destination can use, including destinations that were forgotten.
    fn highest(&self) -> u64 {
        self.counts.values().map(|count| count.credit).max().unwrap_or(0).max(self.floor)
    }

    /// Makes the counts and the examples. A destination has an example only if it uses enough ports for a report,
    /// because the search for a socket's owner is slow. If the counts are not exact, returns only an upper bound.
    pub(super) fn finish(self, counting: &Counting<'_>) -> Counted {
        let bound = |bound: u64| u32::try_from(bound).unwrap_or(u32::MAX).min(counting.at_most.unwrap_or(u32::MAX));
        let extent = counting.extent();
        if self.floor > 0 {
            let at_most = bound(self.highest());
            return Counted { ephemeral: EphemeralUse { at_most, busiest: Vec::new(), extent }, examples: Vec::new() };
        }
        let mut busiest: Vec<_> = self.counts.into_iter().filter(|(_, count)| count.used > 0).collect();
        busiest.sort_unstable_by_key(|(destination, count)| (std::cmp::Reverse(count.used), *destination));
        busiest.truncate(REPORTED);
        let with_example = busiest.iter().take_while(|(_, count)| count.used >= counting.worth_walking);
        let examples = with_example.map(|(_, count)| count.example).collect();
        let report = |(destination, Count { used, time_wait, .. }): (Destination, Count)| {
            let Destination { protocol, source, destination, port } = destination;
            DestinationUse { protocol, source, destination, port, used, time_wait, owner: Owner::NotRead }
        };
        let at_most = bound(self.walked);
        let busiest = busiest.into_iter().map(report).collect();
        Counted { ephemeral: EphemeralUse { at_most, busiest, extent }, examples }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{record::tests::record, sockets::Sockets};

    fn towards(port: u16, local_port: u16, state: State) -> Record {
        record(Protocol::Tcp, state, &format!("10.0.0.1:{local_port}"), &format!("10.0.0.2:{port}"))
    }

    fn counting(ports: &PortSet) -> Counting<'_> {
        Counting { ports, at_most: None, worth_walking: 1, tcp_tw_reuse: None }
    }

    fn all_ports() -> PortSet {
        "1-65535".parse().expect("ports")
    }

    #[test]
    fn each_destination_is_counted_on_its_own_worst_first() {
        let (mut tally, ports) = (Tally::default(), all_ports());
        let counting = counting(&ports);
        for local_port in 40000..40010 {
            tally.count(&counting, &towards(443, local_port, State::TimeWait));
        }
        tally.count(&counting, &towards(443, 40010, State::Established));
        tally.count(&counting, &towards(80, 40000, State::Established));
        let Counted { ephemeral, examples } = tally.finish(&counting);
        let reported: Vec<_> = ephemeral.busiest.iter().map(|one| (one.port, one.used, one.time_wait)).collect();
        assert_eq!(reported, [(443, 11, 10), (80, 1, 0)]);
        assert_eq!(examples[0].state, State::Established, "TIME_WAIT has no owner to name");
        assert_eq!(ephemeral.at_most, 12);
    }

    #[test]
    fn ipv4_over_an_ipv6_socket_shares_ports_with_ipv4() {
        let (mut tally, ports) = (Tally::default(), all_ports());
        let counting = counting(&ports);
        for (local, remote) in
            [("10.0.0.1:40000", "10.0.0.2:443"), ("[::ffff:10.0.0.1]:40001", "[::ffff:10.0.0.2]:443")]
        {
            tally.count(&counting, &record(Protocol::Tcp, State::Established, local, remote));
        }
        assert_eq!(tally.finish(&counting).ephemeral.busiest[0].used, 2);
    }

    #[test]
    fn time_wait_does_not_count_if_it_can_be_reused() {
        let ports = all_ports();
        let outside = towards(443, 40000, State::TimeWait);
        let inside = record(Protocol::Tcp, State::TimeWait, "127.0.0.1:40000", "127.0.0.1:443");
        for (tcp_tw_reuse, counts) in
            [(Some(0), (true, true)), (Some(1), (false, false)), (Some(2), (true, false)), (None, (true, true))]
        {
            let counting = Counting { ports: &ports, at_most: None, worth_walking: 0, tcp_tw_reuse };
            assert_eq!((counting.counts(&outside), counting.counts(&inside)), counts, "{tcp_tw_reuse:?}");
        }
        let established = Counting { ports: &ports, at_most: None, worth_walking: 0, tcp_tw_reuse: Some(1) };
        assert!(established.counts(&towards(443, 40000, State::Established)));
    }

    #[test]
    fn the_bound_after_a_walk_has_the_counted_sockets_and_no_other() {
        let ports = all_ports();
        let counting = Counting { at_most: Some(500), tcp_tw_reuse: Some(1), ..counting(&ports) };
        assert_eq!(Tally::default().finish(&counting).ephemeral.at_most, 0, "no socket has one of the ports");
        let mut tally = Tally::default();
        tally.count(&counting, &towards(443, 40000, State::TimeWait));
        assert_eq!(tally.clone().finish(&counting).ephemeral.at_most, 0, "other connections can use its port");
        tally.count(&counting, &towards(443, 40001, State::Established));
        let walked = tally.finish(&counting).ephemeral;
        assert_eq!(walked.at_most, 1);
        assert_eq!(walked.extent, Extent::Walked { ports: all_ports(), tcp_tw_reuse: Some(1), every: Some(500) });
    }

    #[test]
    fn a_busy_destination_among_many_idle_ones_is_counted_exactly() {
        let net = tempfile::tempdir().expect("a directory");
        let mut table = "local_address\n".to_owned();
        for index in 0..40_000u32 {
            let busy = index % 4 == 0;
            let remote = if busy { 0x0a00_0001u32 } else { 0x0b00_0000 + index };
            let port = 1024 + index;
            let socket = "01 00000000:00000000 00:00000000 00000000 0 0 1 1";
            table += &format!(" {index}: 0100000A:{port:04X} {:08X}:01BB {socket}\n", remote.to_be());
        }
        std::fs::write(net.path().join("tcp"), table).expect("written");
        std::fs::write(net.path().join("udp"), "local_address\n").expect("written");
        let ports = all_ports();
        let counting = Counting { ports: &ports, at_most: None, worth_walking: 100, tcp_tw_reuse: None };
        let counted = Sockets::recorded(net.path()).ephemeral_use(&counting, &[]).expect("a table");
        let busiest = &counted.ephemeral.busiest[0];
        assert_eq!((busiest.destination.to_string(), busiest.used), ("10.0.0.1".to_owned(), 10_000));
        assert_eq!(counted.ephemeral.at_most, 40_000);
    }

    #[test]
    fn one_walk_gives_an_upper_bound_if_no_destination_matters() {
        let (mut tally, ports) = (Tally::default(), all_ports());
        for index in 0..3 * u16::try_from(COUNTED).expect("few") {
            let remote = format!("10.1.{}.{}:{}", index >> 8, index & 255, 1);
            let record = record(Protocol::Tcp, State::Established, "10.0.0.1:40000", &remote);
            tally.count(&counting(&ports), &record);
        }
        let counting = Counting { worth_walking: 100, at_most: Some(500_000), ..counting(&ports) };
        assert!(tally.recount(&counting).is_none());
        let Counted { ephemeral, examples } = tally.clone().finish(&counting);
        assert!((1..100).contains(&ephemeral.at_most), "{}", ephemeral.at_most);
        assert_eq!((ephemeral.busiest, examples), (vec![], vec![]));
        assert!(
            tally.recount(&Counting { worth_walking: 2, ..counting }).is_some(),
            "an upper bound is not an exact count"
        );
    }

    #[test]
    fn a_quiet_host_is_not_walked() {
        let ports = all_ports();
        let counting = Counting { ports: &ports, at_most: Some(99), worth_walking: 100, tcp_tw_reuse: None };
        let nowhere = Sockets::recorded(std::path::Path::new("/nonexistent"));
        let counted = nowhere.ephemeral_use(&counting, &[]).expect("no walk");
        assert_eq!(counted.ephemeral, EphemeralUse::of_every_socket(99));
        let busy = Counting { at_most: Some(100), ..counting };
        assert!(nowhere.ephemeral_use(&busy, &[]).is_err());
        let none = PortSet::default();
        let reserved = Counting { ports: &none, ..busy };
        let of = |counting| nowhere.ephemeral_use(&counting, &[]).expect("no walk").ephemeral;
        assert_eq!(of(reserved), EphemeralUse::of_every_socket(100));
        let uncounted = Counting { at_most: None, ..reserved };
        let extent = Extent::Walked { ports: none.clone(), tcp_tw_reuse: None, every: None };
        assert_eq!(
            of(uncounted),
            EphemeralUse { at_most: 0, busiest: Vec::new(), extent },
            "no other port was counted"
        );
    }
}
