//! `/proc/net/sockstat` and `/proc/net/sockstat6`: the numbers of sockets. The kernel keeps these numbers, so a read is
//! cheap (net/ipv4/proc.c, net/ipv6/proc.c).

use std::{
    io::{BufRead, Read},
    path::Path,
};

use super::root::{Root, each_line, open_file, unread};
use portreeve_facts::{Gap, SockStat, Source, Why};

/// The size of the read buffer, in bytes: about three times the size of a file. The buffer is on the stack, because the
/// files of every pod of a node are read.
const LONGEST: usize = 1024;

/// Reads the two families of the host, and adds their counts.
///
/// # Errors
/// A `Gap` with the file. A kernel without IPv6 has no `sockstat6`, which is no error.
pub(crate) fn read(root: &Root) -> Result<SockStat, Gap> {
    let net = root.net("");
    let mut sums = Sums::of_v4(&net)?;
    sums.add_v6(&net)?;
    sums.finish(&net)
}

/// An upper bound for the sockets of one protocol in a network namespace, including TIME_WAIT. `net` is
/// `/proc/<pid>/net` of the namespace. If the namespace has fewer than `few` sockets of all kinds together, the
/// function reads only one file and returns the number of all sockets.
///
/// # Errors
/// As `read`.
pub fn at_most(net: &Path, few: u32) -> Result<u32, Gap> {
    let mut sums = Sums::of_v4(net)?;
    let stat = sums.finish(net)?;
    // Before Linux 4.16, the count of used sockets was a sum over all namespaces, without sockets that have no process.
    let of_any_kind = sums.used.unwrap_or(u32::MAX).max(stat.tcp).saturating_add(stat.tcp_time_wait);
    if of_any_kind < few {
        return Ok(of_any_kind);
    }
    sums.add_v6(net)?;
    Ok(sums.finish(net)?.of_one_protocol())
}

/// True if `sockstat6` in the folder `net` counts no IPv6 UDP sockets of the network namespace. `net` is
/// `/proc/<pid>/net`. Returns false if `sockstat6` cannot be read or has no count.
pub fn has_no_udp6(net: &Path) -> bool {
    let (path, mut buffer) = (net.join("sockstat6"), [0; LONGEST]);
    content(&path, &mut buffer).is_ok_and(|text| text.split(|byte| *byte == b'\n').any(|line| line == b"UDP6: inuse 0"))
}

fn content<'a>(path: &Path, buffer: &'a mut [u8]) -> Result<&'a [u8], Gap> {
    let read = open_file(path).and_then(|mut file| file.read(buffer));
    let read = read.map_err(|error| unread(Source::Sockstat, path, &error))?;
    Ok(buffer.get(..read).unwrap_or_default())
}

/// The sums of the counts in `/proc/net/sockstat` and `sockstat6` (net/ipv4/proc.c).
#[derive(Default)]
pub struct Sums {
    used: Option<u32>,
    tcp: Option<u32>,
    tcp_time_wait: Option<u32>,
    udp: Option<u32>,
    tcp_everywhere: Option<u32>,
}

impl Sums {
    /// Reads `sockstat`. A count without a family includes IPv4 and IPv6.
    fn of_v4(net: &Path) -> Result<Self, Gap> {
        let path = net.join("sockstat");
        let mut sums = Self::default();
        sums.add(&path, content(&path, &mut [0; LONGEST])?)?;
        Ok(sums)
    }

    /// Adds the counts in `sockstat6`. A kernel without IPv6 does not have this file.
    fn add_v6(&mut self, net: &Path) -> Result<(), Gap> {
        let path = net.join("sockstat6");
        match content(&path, &mut [0; LONGEST]) {
            Err(gap) if gap.why == Why::NotSupported => Ok(()),
            content => self.add(&path, content?),
        }
    }

    /// Adds the counts of one file.
    ///
    /// # Errors
    /// A `Gap` with the number of the first line that has a wrong form.
    pub fn add(&mut self, name: &Path, reader: impl BufRead) -> Result<(), Gap> {
        each_line(Source::Sockstat, name, "PROTOCOL: NAME COUNT ...", reader, |line| {
            let (protocol, counts) = line.split_once(':')?;
            let sum = |so_far: Option<u32>| Some(so_far.unwrap_or(0).saturating_add(count(counts, "inuse")?));
            match protocol {
                "sockets" => self.used = Some(count(counts, "used")?),
                "TCP" | "TCP6" => self.tcp = Some(sum(self.tcp)?),
                "UDP" | "UDP6" => self.udp = Some(sum(self.udp)?),
                _ => {}
            }
            // The file has these counts once, for the two families together.
            if protocol == "TCP" {
                self.tcp_time_wait = Some(count(counts, "tw")?);
                self.tcp_everywhere = Some(count(counts, "alloc")?);
            }
            Some(())
        })
    }

    /// The sums.
    ///
    /// # Errors
    /// Fails if a count is missing.
    pub fn finish(&self, net: &Path) -> Result<SockStat, Gap> {
        match *self {
            Self {
                tcp: Some(tcp),
                tcp_time_wait: Some(tcp_time_wait),
                udp: Some(udp),
                tcp_everywhere: Some(tcp_everywhere),
                ..
            } => Ok(SockStat { tcp, tcp_time_wait, udp, tcp_everywhere }),
            _ => {
                let detail = format!("{}: wanted the lines TCP and UDP", net.join("sockstat").display());
                Err(Gap::new(Source::Sockstat, Why::Malformed, detail))
            }
        }
    }
}

fn count(counts: &str, name: &str) -> Option<u32> {
    let mut words = counts.split_ascii_whitespace();
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Linux 6.18: `cat /proc/net/sockstat` and `cat /proc/net/sockstat6`.
    const V4: &str = "sockets: used 53\nTCP: inuse 5 orphan 0 tw 2 alloc 7 mem 1\nUDP: inuse 3 mem 2\n\
                      UDPLITE: inuse 0\nRAW: inuse 0\nFRAG: inuse 0 memory 0\n";
    const V6: &str = "TCP6: inuse 4\nUDP6: inuse 1\nUDPLITE6: inuse 0\nRAW6: inuse 0\nFRAG6: inuse 0 memory 0\n";

    fn recorded(v4: &str, v6: Option<&str>) -> Result<SockStat, Gap> {
        let tree = tempfile::tempdir().unwrap();
        let net = tree.path().join("proc/net");
        std::fs::create_dir_all(&net).unwrap();
        std::fs::write(net.join("sockstat"), v4).unwrap();
        if let Some(v6) = v6 {
            std::fs::write(net.join("sockstat6"), v6).unwrap();
        }
        read(&Root::at(tree.path().into()))
    }

    #[test]
    fn both_families_are_summed() {
        assert_eq!(recorded(V4, Some(V6)), Ok(SockStat { tcp: 9, tcp_time_wait: 2, udp: 4, tcp_everywhere: 7 }));
    }

    #[test]
    fn a_kernel_without_ipv6_has_ipv4_only() {
        assert_eq!(recorded(V4, None), Ok(SockStat { tcp: 5, tcp_time_wait: 2, udp: 3, tcp_everywhere: 7 }));
    }

    #[test]
    fn a_namespace_with_few_sockets_is_read_once() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::write(tree.path().join("sockstat"), V4).unwrap();
        assert_eq!(at_most(tree.path(), 56), Ok(55), "fifty-three of any kind, and two that wait");
        std::fs::write(tree.path().join("sockstat6"), V6).unwrap();
        assert_eq!(at_most(tree.path(), 56), Ok(55));
        assert_eq!(at_most(tree.path(), 55), Ok(11), "of TCP in both families");
        let untold = V4.strip_prefix("sockets: used 53\n").unwrap();
        std::fs::write(tree.path().join("sockstat"), untold).unwrap();
        assert_eq!(at_most(tree.path(), u32::MAX), Ok(11));
    }

    #[test]
    fn only_a_count_of_zero_means_no_udp_sockets_of_ipv6() {
        let tree = tempfile::tempdir().unwrap();
        assert!(!has_no_udp6(tree.path()), "the file is missing");
        for (text, expected) in
            [(V6, false), ("UDP6: inuse 0\nUDPLITE6: inuse 0\n", true), ("UDPLITE6: inuse 0\n", false)]
        {
            std::fs::write(tree.path().join("sockstat6"), text).unwrap();
            assert_eq!(has_no_udp6(tree.path()), expected, "{text}");
        }
    }

    #[test]
    fn a_torn_line_and_an_empty_file_are_malformed() {
        let gap = recorded("sockets: used 1\nTCP: inuse 5 orphan", None).unwrap_err();
        assert_eq!(gap.why, Why::Malformed);
        assert!(gap.detail.contains("sockstat line 2"), "{}", gap.detail);
        assert_eq!(recorded("", None).unwrap_err().why, Why::Malformed);
    }

    proptest! {
        #[test]
        fn any_text_is_counted_or_refused(text in "(TCP6?|UDP6?|x)?:?( (inuse|tw|[0-9]{1,12}|.)){0,4}\n?") {
            let mut sums = Sums::default();
            if sums.add(Path::new("sockstat"), text.as_bytes()).is_ok() && text.starts_with("UDP:") {
                prop_assert!(sums.udp.is_some());
            }
        }
    }
}
