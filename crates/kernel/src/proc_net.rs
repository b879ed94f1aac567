//! Socket tables as text, `/proc/net/{tcp,tcp6,udp,udp6,sctp}`. Portreeve reads these tables in three cases: the kernel
//! has no diag modules, the namespace belongs to another process, or the tree is recorded. The tables are slower than
//! sock_diag, and have no v6only and no cgroup.

use std::{
    io::{self, BufRead, BufReader, Read},
    net::IpAddr,
    path::Path,
};

use crate::{
    proc_sctp,
    record::{Record, SocketRequest},
    root::open_file,
};
use portreeve_facts::{Family, Gap, Protocol, State, Why};

/// The greatest length of a line, in bytes. The kernel pads lines to 150 bytes, and lines of IPv6 to 180 bytes.
const LINE: u64 = 512;

/// The longest table that is read, in bytes. A table of this length has about three million sockets. A longer table is
/// cut, and so the longer table is malformed.
const LONGEST: u64 = 512 * 1024 * 1024;

/// A word of the first line of a table. The kernel writes this line even into an empty table. A file without this line
/// was not recorded completely.
const HEADING: &str = "local_address";

/// Other files in `/proc/net` that exist if the kernel has IPv6.
const OF_IPV6: [&str; 2] = ["if_inet6", "sockstat6"];

/// Adds every requested socket to `collected`, from the tables in the directory `net`. A kernel without IPv6 has no
/// IPv6 tables. So a missing IPv6 table counts as empty if all other files of IPv6 are missing too.
///
/// # Errors
/// `NotSupported` if a table is missing, `NotPermitted`, or `Malformed` with file and line.
pub fn walk<T>(
    net: &Path,
    request: &SocketRequest<'_>,
    mut collected: T,
    mut each: impl FnMut(&mut T, &Record),
) -> Result<T, Gap> {
    let mut take = |record: &Record| {
        if request.wants(record) {
            each(&mut collected, record);
        }
    };
    let (v4, v6) = match request.protocol {
        Protocol::Tcp => ("tcp", "tcp6"),
        Protocol::Udp => ("udp", "udp6"),
        Protocol::Sctp => return proc_sctp::walk(net, request, take).map(|()| collected),
    };
    for (family, name) in [(Family::V4, v4), (Family::V6, v6)] {
        let path = net.join(name);
        let file = match open_file(&path) {
            Ok(file) => file,
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && family == Family::V6
                    && !OF_IPV6.iter().any(|other| net.join(other).exists()) =>
            {
                continue;
            }
            Err(error) => return Err(Gap::new(request.source, why(&error), format!("{}: {error}", path.display()))),
        };
        read(BufReader::with_capacity(32 * 1024, file.take(LONGEST)), request.protocol, family, &mut take)
            .map_err(|(why, detail)| Gap::new(request.source, why, format!("{}: {detail}", path.display())))?;
    }
    Ok(collected)
}

/// The meaning of an error of a file below `/proc`.
pub fn why(error: &io::Error) -> Why {
    match error.kind() {
        io::ErrorKind::NotFound => Why::NotSupported,
        io::ErrorKind::PermissionDenied => Why::NotPermitted,
        _ => Why::Unreachable,
    }
}

/// Reads one table. The first line of the table is the heading.
pub fn read(
    mut table: impl BufRead,
    protocol: Protocol,
    family: Family,
    mut each: impl FnMut(&Record),
) -> Result<(), (Why, String)> {
    let mut line = Vec::with_capacity(256);
    for number in 1u64.. {
        line.clear();
        let length = table.by_ref().take(LINE).read_until(b'\n', &mut line);
        let length = length.map_err(|error| (why(&error), error.to_string()))?;
        let text = str::from_utf8(&line).ok().filter(|text| text.ends_with('\n'));
        if number == 1 {
            if !text.is_some_and(|text| text.contains(HEADING)) {
                return Err((Why::Malformed, "not a table of sockets: the heading is missing".to_owned()));
            }
            continue;
        }
        if length == 0 {
            break;
        }
        let record = text.and_then(|text| parse(text, protocol, family));
        let malformed = || (Why::Malformed, format!("line {number} is not a socket in the format of /proc/net"));
        let record = record.ok_or_else(malformed)?;
        // An entry in SYN_RECV without an inode is a connection request at a listener, and not a socket.
        if record.state != State::SynRecv || record.inode != 0 {
            each(&record);
        }
    }
    Ok(())
}

/// One line of a table: `sl local rem st tx:rx tr:when retrnsmt uid timeout inode ...` (net/ipv4/tcp_ipv4.c
/// `get_tcp4_sock`).
fn parse(line: &str, protocol: Protocol, family: Family) -> Option<Record> {
    let mut fields = line.split_ascii_whitespace();
    fields.next()?.strip_suffix(':')?.parse::<u64>().ok()?;
    let (local, remote) = (end(fields.next()?, family)?, end(fields.next()?, family)?);
    let state = State::from_number(u8::from_str_radix(fields.next()?, 16).ok()?)?;
    fields.next()?.split_once(':')?;
    let (timer, _) = fields.next()?.split_once(':')?;
    let retransmits = u32::from_str_radix(fields.next()?, 16).ok()?;
    let uid = fields.next()?.parse().ok()?;
    fields.next()?;
    let inode = fields.next()?.parse().ok()?;
    let retransmits = if timer == "01" { u8::try_from(retransmits).unwrap_or(u8::MAX) } else { 0 };
    Some(Record { uid, inode, retransmits, ..Record::of(protocol, state, local, remote) })
}

/// `ADDRESS:PORT`. The address is written as 32-bit words in the byte order of the host. The port is written as a
/// number.
fn end(text: &str, family: Family) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let word = |index: usize| {
        let digits = address.get(index * 8..index * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip: IpAddr = match family {
        Family::V4 if address.len() == 8 => word(0)?.into(),
        Family::V6 if address.len() == 32 => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            <[u8; 16]>::try_from(bytes).ok()?.into()
        }
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::States;
    use portreeve_facts::Source;

    // Written by hand, in the format that `get_tcp4_sock` and `get_tcp6_sock` have on a little-endian machine.
    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
        \u{20}  0: 0100007F:7580 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n\
        \u{20}  1: 0100000A:9C40 09020A0A:01BB 02 00000001:00000000 01:00000AF5 00000003  1000        0 4712 2 0 800 1 7\n\
        \u{20}  2: 0100007F:9C41 0100007F:7580 06 00000000:00000000 03:00001717 00000000     0        0 0 3 0\n\
        \u{20}  3: 0100007F:7580 0100007F:9C42 03 00000000:00000000 01:00000063 00000000     0        0 0 1 0\n";
    const TCP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
        \u{20}  0: 00000000000000000000000001000000:7580 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0\n";

    fn all(text: &str, family: Family) -> Result<Vec<Record>, (Why, String)> {
        let mut seen = Vec::new();
        read(text.as_bytes(), Protocol::Tcp, family, |record| seen.push(*record)).map(|()| seen)
    }

    #[test]
    fn states_addresses_and_retransmits_are_read_and_half_open_requests_are_not() {
        let sockets = all(TCP, Family::V4).expect("sound");
        let reported: Vec<_> = sockets
            .iter()
            .map(|socket| (socket.local.to_string(), socket.local_port, socket.state, socket.retransmits, socket.inode))
            .collect();
        assert_eq!(
            reported,
            [
                ("127.0.0.1".to_owned(), 30080, State::Listen, 0, 4711),
                ("10.0.0.1".to_owned(), 40000, State::SynSent, 3, 4712),
                ("127.0.0.1".to_owned(), 40001, State::TimeWait, 0, 0),
            ]
        );
        assert_eq!((sockets[1].remote.to_string(), sockets[1].remote_port), ("10.10.2.9".to_owned(), 443));
        assert_eq!(all(TCP6, Family::V6).expect("sound")[0].local.to_string(), "::1");
    }

    #[test]
    fn a_malformed_line_is_named() {
        let broken = TCP.replace("0100000A:9C40", "0100000A9C40");
        let (why, detail) = all(&broken, Family::V4).expect_err("malformed");
        assert_eq!((why, detail.contains("line 3")), (Why::Malformed, true), "{detail}");
        let cut = &TCP[..TCP.len() - 9];
        assert_eq!(all(cut, Family::V4).expect_err("cut").0, Why::Malformed);
        let endless = format!("{TCP}{}", "x".repeat(100_000));
        assert_eq!(all(&endless, Family::V4).expect_err("endless").0, Why::Malformed);
    }

    #[test]
    fn a_file_without_the_heading_is_malformed_and_never_no_sockets() {
        for not_a_table in ["", "\n", "0: 0100007F:7580\n", "  sl  local_address"] {
            let (why, detail) = all(not_a_table, Family::V4).expect_err("no table");
            assert_eq!((why, detail.contains("heading")), (Why::Malformed, true), "{not_a_table:?}: {detail}");
        }
    }

    #[test]
    fn a_missing_table_is_unread_for_ipv4_and_empty_for_ipv6() {
        let net = tempfile::tempdir().expect("a directory");
        let request = SocketRequest::new(Source::Listeners, Protocol::Tcp, States::LISTENING, None);
        let walk = || walk(net.path(), &request, 0, |seen, _| *seen += 1);
        assert_eq!(walk().expect_err("no table").why, Why::NotSupported);
        std::fs::write(net.path().join("tcp"), TCP).expect("written");
        assert_eq!(walk(), Ok(1));
        std::fs::write(net.path().join("sockstat6"), "TCP6: inuse 1\n").expect("written");
        assert_eq!(walk().expect_err("sockets of IPv6 were not recorded").why, Why::NotSupported);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s).{0,200}", fields in proptest::collection::vec("[0-9A-F:]{0,34}", 0..12)) {
            let text = format!("local_address\n{text}\n{}\n", fields.join(" "));
            prop_assert!(all(&text, Family::V6).map_or(true, |seen| seen.len() < 200));
        }
    }
}
