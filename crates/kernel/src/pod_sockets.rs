//! The sockets of one pod on the ports of its servers, and the owners of these sockets.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    path::Path,
};

use crate::{
    process::{Processes, cgroup_of},
    record::{Record, SocketRequest, States, in_order},
    sockets::Sockets,
    sockstat,
};
use portreeve_facts::{Gap, Holder, Owner, PortSet, Process, Protocol, Socket, Source, State, Why};

const LISTED: usize = 256;

/// The tables that are read for a pod, each with the requested states: listeners and sockets with a peer.
const TABLES: [(Protocol, States); 2] =
    [(Protocol::Tcp, States::WITH_PEER.with(State::Listen)), (Protocol::Udp, States::ESTABLISHED.with(State::Close))];

/// The sockets on the local `ports` in the network namespace of `net` (`/proc/PID/net`), with their owners among
/// `pids`. For each peer of these sockets, adds another connection to the peer from a port without a listener. Two
/// connections to one address and port show that the peer is a server: a client uses a new port for each connection.
///
/// # Errors
/// A [`Gap`] of [`Source::PodNamespaces`] or [`Source::Sockstat`], if a table cannot be read, or if too many sockets
/// are on `ports`.
pub(super) fn sockets_on(proc: &Path, net: &Path, ports: &PortSet, pids: &[u32]) -> Result<Vec<Socket>, Gap> {
    if sockstat::at_most(net, 1)? == 0 {
        return Ok(Vec::new());
    }
    let tables = Sockets::recorded(net);
    let on_ports = walk(&tables, Some(ports), |_| true)?;
    if on_ports.len() > LISTED {
        let detail = format!("more than {LISTED} sockets have a port that a server of the pod needs");
        return Err(Gap::new(Source::PodNamespaces, Why::TooMuch, detail));
    }
    let is_listened_on = |port| on_ports.iter().any(|it| it.local_port == port && it.remote_port == 0);
    let blocking = on_ports.iter().filter(|it| it.remote_port != 0 && !is_listened_on(it.local_port));
    let peers: HashSet<Peer> = blocking.map(peer).collect();
    let others = if peers.is_empty() { Vec::new() } else { beside(&tables, ports, &peers)? };
    let mut sockets = in_order(on_ports);
    name_owners(proc, pids, &mut sockets);
    sockets.extend(in_order(others));
    Ok(sockets)
}

type Peer = (Protocol, IpAddr, u16);

fn peer(record: &Record) -> Peer {
    (record.protocol, record.remote.to_canonical(), record.remote_port)
}

/// For each of `peers`, at most one connection to the peer. The local port of this connection is outside `ports` and
/// has no listener.
fn beside(tables: &Sockets, ports: &PortSet, peers: &HashSet<Peer>) -> Result<Vec<Record>, Gap> {
    let seen =
        walk(tables, None, |it| it.remote_port == 0 || peers.contains(&peer(it)) && !ports.contains(it.local_port))?;
    let listening: HashSet<u16> = seen.iter().filter(|it| it.remote_port == 0).map(|it| it.local_port).collect();
    let opened = seen.iter().filter(|it| it.remote_port != 0 && !listening.contains(&it.local_port));
    Ok(opened.map(|it| (peer(it), *it)).collect::<BTreeMap<_, _>>().into_values().collect())
}

/// Stops the collection at about twice [`LISTED`] sockets.
fn walk(tables: &Sockets, ports: Option<&PortSet>, wanted: impl Fn(&Record) -> bool) -> Result<Vec<Record>, Gap> {
    let mut found = Vec::new();
    for (protocol, states) in TABLES {
        let request = SocketRequest::new(Source::PodNamespaces, protocol, states, ports);
        (found, _) = tables.walk(&request, found, |found: &mut Vec<Record>, record| {
            if wanted(record) && found.len() <= 2 * LISTED {
                found.push(*record);
            }
        })?;
    }
    Ok(found)
}

fn name_owners(proc: &Path, pids: &[u32], sockets: &mut [Socket]) {
    let mut missing: HashSet<u64> = sockets.iter().map(|it| it.inode).filter(|inode| *inode != 0).collect();
    let mut processes = Processes::new(proc, false);
    let held: HashMap<u64, Process> =
        if missing.is_empty() { HashMap::new() } else { processes.owners(pids.to_vec(), &mut missing) };
    let unnamed = || {
        let closed = || Gap::new(Source::Processes, Why::Stale, "no process of the pod has this socket any more");
        processes.overlooked().unwrap_or_else(closed)
    };
    for socket in sockets {
        socket.owner = match held.get(&socket.inode) {
            None if socket.inode == 0 && matches!(socket.state, State::TimeWait | State::FinWait2) => Owner::TimeWait,
            process => {
                let process = process.cloned().ok_or_else(unnamed);
                let cgroup = process.as_ref().ok().and_then(|process| cgroup_of(proc, process));
                let unread =
                    || Gap::new(Source::Cgroups, Why::NotSupported, "the control group of this socket is not read");
                Owner::Held(Holder { cgroup: cgroup.ok_or_else(unread).into(), process: process.into() })
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(lines: &[(&str, &str, &str, u64)]) -> tempfile::TempDir {
        let net = tempfile::tempdir().expect("a directory");
        let line = |(index, (local, remote, state, inode)): (usize, &(&str, &str, &str, u64))| {
            format!(" {index}: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n")
        };
        let table: String = lines.iter().enumerate().map(line).collect();
        std::fs::write(net.path().join("tcp"), format!("local_address\n{table}")).expect("written");
        std::fs::write(net.path().join("udp"), "local_address\n").expect("written");
        let counts =
            format!("sockets: used {0}\nTCP: inuse {0} orphan 0 tw 0 alloc 5 mem 1\nUDP: inuse 0 mem 0\n", lines.len());
        std::fs::write(net.path().join("sockstat"), counts).expect("written");
        net
    }

    fn seen(net: &tempfile::TempDir, ports: &str) -> Result<Vec<(u16, u16)>, Why> {
        let nowhere = Path::new("/nonexistent");
        let found = sockets_on(nowhere, net.path(), &ports.parse().expect("ports"), &[]).map_err(|gap| gap.why)?;
        Ok(found.iter().map(|it| (it.local_port, it.remote_port)).collect())
    }

    // B5F4 is 46580, and B5F5 is 46581.
    const BLOCKS: (&str, &str, &str, u64) = ("0100000A:B5F4", "0200000A:1F90", "01", 7);

    #[test]
    fn a_connection_on_a_servers_port_is_listed_with_another_one_to_its_peer() {
        let other = ("0100000A:B5F6", "0200000A:1F90", "01", 8);
        let elsewhere = ("0100000A:B5F7", "0300000A:1F90", "01", 9);
        assert_eq!(seen(&namespace(&[BLOCKS, other, elsewhere]), "46580"), Ok(vec![(46580, 8080), (46582, 8080)]));
        assert_eq!(seen(&namespace(&[BLOCKS, elsewhere]), "46580"), Ok(vec![(46580, 8080)]));
        let listener = ("00000000:B5F6", "00000000:0000", "0A", 10);
        assert_eq!(
            seen(&namespace(&[BLOCKS, other, listener]), "46580"),
            Ok(vec![(46580, 8080)]),
            "the connection was accepted"
        );
        assert_eq!(seen(&namespace(&[BLOCKS, other]), "46581"), Ok(vec![]));
    }

    #[test]
    fn no_second_connection_is_searched_if_a_server_listens() {
        let listener = ("00000000:B5F4", "00000000:0000", "0A", 10);
        let other = ("0100000A:B5F6", "0200000A:1F90", "01", 8);
        assert_eq!(seen(&namespace(&[listener, BLOCKS, other]), "46580"), Ok(vec![(46580, 0), (46580, 8080)]));
    }

    #[test]
    fn a_pod_without_sockets_is_not_walked_and_a_pod_with_too_many_is_unread() {
        let none = namespace(&[]);
        std::fs::remove_file(none.path().join("tcp")).expect("removed");
        assert_eq!(seen(&none, "46580"), Ok(vec![]));
        assert_eq!(seen(&namespace(&[BLOCKS; LISTED + 1]), "46580"), Err(Why::TooMuch));
        let unread = namespace(&[BLOCKS]);
        std::fs::remove_file(unread.path().join("udp")).expect("removed");
        assert_eq!(seen(&unread, "46580"), Err(Why::NotSupported));
    }

    #[test]
    fn the_holder_of_a_socket_is_searched_among_the_processes_of_the_pod_only() {
        let proc = tempfile::tempdir().expect("a directory");
        for (pid, inode) in [("7", 70), ("8", 80)] {
            let process = proc.path().join(pid);
            std::fs::create_dir_all(process.join("fd")).expect("made");
            std::os::unix::fs::symlink(format!("socket:[{inode}]"), process.join("fd/3")).expect("linked");
            std::fs::write(process.join("comm"), format!("of{pid}\n")).expect("written");
            let stat = format!("{pid} (of{pid}) S 1 {}9 0 0\n", "1 ".repeat(17));
            std::fs::write(process.join("stat"), stat).expect("written");
            std::fs::write(process.join("cgroup"), format!("0::/kubepods/c{pid}\n")).expect("written");
        }
        let net = namespace(&[
            ("0100000A:B5F4", "0200000A:1F90", "01", 70),
            ("0100000A:B5F5", "0200000A:1F91", "01", 80),
            ("0100000A:B5F6", "0200000A:1F92", "06", 0),
        ]);
        let found = sockets_on(proc.path(), net.path(), &"46580-46582".parse().expect("ports"), &[7]).expect("read");
        let [Owner::Held(ours), Owner::Held(others), Owner::TimeWait] =
            &[0, 1, 2].map(|it: usize| found[it].owner.clone())
        else {
            panic!("{found:?}")
        };
        assert_eq!(ours.process.seen().map(|it| it.command.as_str()), Some("of7"));
        assert_eq!(ours.cgroup.seen().map(|it| it.path.as_str()), Some("/kubepods/c7"));
        assert!(others.process.gap().is_some(), "its holder is no process of the pod");
    }
}
