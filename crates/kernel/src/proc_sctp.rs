//! SCTP sockets as text, from the files `/proc/net/sctp/{eps,assocs}` (net/sctp/proc.c). Portreeve reads these files if
//! SCTP is loaded, but the kernel module that reports SCTP sockets is not loaded.

use std::{io::BufRead, net::IpAddr, path::Path};

use super::root::{each_line, open};
use crate::{
    record::{Record, SocketRequest, States},
    sock_diag::sctp_state,
};
use portreeve_facts::{Gap, Protocol, Source, State, Why};

const HEADING: &str = "LPORT";

/// Gives `take` each socket of the tables in `net`. Skips a table that cannot have a requested state.
///
/// # Errors
/// Returns a `Gap`. The `Gap` is `NotSupported` if the tables are absent, because SCTP is not loaded. Without the right
/// to read a table, the `Gap` is `NotPermitted`. For a malformed table, the `Gap` is `Malformed`, with file and line.
pub fn walk(net: &Path, request: &SocketRequest<'_>, mut take: impl FnMut(&Record)) -> Result<(), Gap> {
    if request.states.contains(State::Listen) {
        let path = net.join("sctp/eps");
        read(request.source, &path, open(request.source, &path)?, &mut take, endpoint)?;
    }
    if request.states != States::LISTENING {
        let path = net.join("sctp/assocs");
        read(request.source, &path, open(request.source, &path)?, &mut take, association)?;
    }
    Ok(())
}

fn read<R: IntoIterator<Item = Record>>(
    source: Source,
    name: &Path,
    table: impl BufRead,
    mut take: impl FnMut(&Record),
    parse: impl Fn(&[&str]) -> Option<R>,
) -> Result<(), Gap> {
    let mut heading = true;
    each_line(source, name, "an SCTP socket", table, |line| {
        if std::mem::take(&mut heading) {
            return line.contains(HEADING).then_some(());
        }
        for record in parse(&line.split_ascii_whitespace().collect::<Vec<_>>())? {
            take(&record);
        }
        Some(())
    })?;
    // The kernel writes the heading even if there are no sockets.
    if heading { Err(Gap::new(source, Why::Malformed, format!("{}: empty", name.display()))) } else { Ok(()) }
}

/// `ENDPT SOCK STY SST HBKT LPORT UID INODE LADDRS`: a record for each address of a listening endpoint. Other endpoints
/// are skipped, because this table does not show their peers.
pub fn endpoint(fields: &[&str]) -> Option<Vec<Record>> {
    let [_, _, _, state, _, port, uid, inode, locals @ ..] = fields else { return None };
    if State::from_number(state.parse().ok()?) != Some(State::Listen) {
        return Some(Vec::new());
    }
    let (port, uid, inode) = (port.parse().ok()?, uid.parse().ok()?, inode.parse().ok()?);
    let at = |local: &&str| {
        let local = address(local)?;
        let nowhere = if local.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        Some(Record { uid, inode, ..Record::of(Protocol::Sctp, State::Listen, (local, port), (nowhere, 0)) })
    };
    let records: Vec<Record> = locals.iter().map(at).collect::<Option<_>>()?;
    Some(records).filter(|it| !it.is_empty())
}

/// `ASSOC SOCK STY SST ST HBKT ASSOC-ID TX_QUEUE RX_QUEUE UID INODE LPORT RPORT LADDRS <-> RADDRS ...`, with a star
/// before the address in use. `Some(None)` if [`State`] has no variant for the state of the association.
pub fn association(fields: &[&str]) -> Option<Option<Record>> {
    let [_, _, _, _, state, _, _, _, _, uid, inode, local_port, remote_port, addresses @ ..] = fields else {
        return None;
    };
    let (locals, remotes) = addresses.split_at(addresses.iter().position(|it| *it == "<->")?);
    let remote = remotes.iter().find(|it| it.starts_with('*')).or(remotes.get(1))?;
    let remote_port = remote_port.parse().ok()?;
    let Some(state) = sctp_state(state.parse().ok()?, remote_port) else { return Some(None) };
    let local = (address(locals.first()?)?, local_port.parse().ok()?);
    let (remote, uid, inode) = ((address(remote)?, remote_port), uid.parse().ok()?, inode.parse().ok()?);
    Some(Some(Record { uid, inode, ..Record::of(Protocol::Sctp, state, local, remote) }))
}

fn address(word: &str) -> Option<IpAddr> {
    word.trim_start_matches('*').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc_net;

    // Made by hand in the format of `sctp_eps_seq_show` and `sctp_assocs_seq_show`.
    const EPS: &str = " ENDPT     SOCK   STY SST HBKT LPORT   UID INODE LADDRS\n\
        00000000 00000000 2   10  55   30132     0  4711 0.0.0.0 \n\
        00000000 00000000 2   10  56   30133  1000  4712 2001:0db8:0000:0000:0000:0000:0000:0001 192.0.2.1 \n\
        00000000 00000000 0   7   57   40000     0  4713 \n";
    const ASSOCS: &str = " ASSOC     SOCK   STY SST ST HBKT ASSOC-ID TX_QUEUE RX_QUEUE UID INODE LPORT RPORT LADDRS <-> RADDRS HBINT\n\
        00000000 00000000 2   1   3  0       1        0        0       0  4714 30134  9899  192.0.2.1 10.244.0.1 <-> 192.0.2.8 *192.0.2.9 \t    7500     5     5\n\
        00000000 00000000 2   2   1  0       2        0        0    1000  4715 40001  2905  *192.0.2.1 <-> 192.0.2.9 \t    7500     5     5\n";

    fn reported(states: States) -> Result<Vec<(String, String, State, u64)>, Gap> {
        let net = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(net.path().join("sctp")).expect("a directory");
        std::fs::write(net.path().join("sctp/eps"), EPS).expect("written");
        std::fs::write(net.path().join("sctp/assocs"), ASSOCS).expect("written");
        let request = SocketRequest::new(Source::Listeners, Protocol::Sctp, states, None);
        proc_net::walk(net.path(), &request, Vec::new(), |seen, it| {
            let end = |ip, port| std::net::SocketAddr::new(ip, port).to_string();
            seen.push((end(it.local, it.local_port), end(it.remote, it.remote_port), it.state, it.inode));
        })
    }

    #[test]
    fn listeners_have_each_address_that_they_were_bound_to() {
        let listener = |local: &str, remote: &str, inode| (local.to_owned(), remote.to_owned(), State::Listen, inode);
        assert_eq!(
            reported(States::LISTENING).expect("sound"),
            [
                listener("0.0.0.0:30132", "0.0.0.0:0", 4711),
                listener("[2001:db8::1]:30133", "[::]:0", 4712),
                listener("192.0.2.1:30133", "0.0.0.0:0", 4712),
            ]
        );
    }

    #[test]
    fn associations_have_the_peer_address_in_use() {
        let with = |local: &str, remote: &str, state, inode| (local.to_owned(), remote.to_owned(), state, inode);
        assert_eq!(
            reported(States::WITH_PEER).expect("sound"),
            [
                with("192.0.2.1:30134", "192.0.2.9:9899", State::Established, 4714),
                with("192.0.2.1:40001", "192.0.2.9:2905", State::SynSent, 4715)
            ]
        );
    }

    #[test]
    fn a_broken_line_is_unread_and_never_no_socket() {
        for broken in [EPS.replace("30132", "310132"), EPS.replace("0.0.0.0", ""), EPS.replace("10  55", "x 55")] {
            let gap = read(Source::Listeners, Path::new("eps"), broken.as_bytes(), |_| {}, endpoint);
            let gap = gap.expect_err("malformed");
            assert_eq!((gap.why, gap.detail.as_str()), (Why::Malformed, "eps line 2: wanted an SCTP socket"));
        }
        for broken in [ASSOCS.replace("<->", "->"), ASSOCS.replace("*192.0.2.9", "*")] {
            let gap = read(Source::Clients, Path::new("assocs"), broken.as_bytes(), |_| {}, association);
            assert_eq!(gap.expect_err("malformed").detail, "assocs line 2: wanted an SCTP socket");
        }
    }

    #[test]
    fn an_empty_table_is_unread_and_never_no_socket() {
        let gap = read(Source::Listeners, Path::new("eps"), &b""[..], |_| {}, endpoint).expect_err("no heading");
        assert_eq!((gap.why, gap.detail.as_str()), (Why::Malformed, "eps: empty"));
    }

    #[test]
    fn there_is_no_sctp_without_tables() {
        let net = tempfile::tempdir().expect("a directory");
        for states in [States::LISTENING, States::WITH_PEER] {
            let request = SocketRequest::new(Source::Listeners, Protocol::Sctp, states, None);
            assert_eq!(
                proc_net::walk(net.path(), &request, 0, |seen, _| *seen += 1).expect_err("no table").why,
                Why::NotSupported
            );
        }
    }
}
