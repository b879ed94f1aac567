//! The owner of a socket: the kernel, a control group, a process.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

use crate::{
    cgroup::Cgroups,
    process::{Processes, cgroup_of},
    record::{Record, SocketRequest, States},
    sockets::Sockets,
};
use portreeve_facts::{Cgroup, Gap, Holder, Owner, PortSet, Process, Protocol, Socket, Source, State, Why};

/// The facts about a socket from which its owner is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The claim's protocol.
    pub protocol: Protocol,
    /// The claim's state.
    pub state: State,
    /// The local port of the socket.
    pub local_port: u16,
    /// The inode of the socket, or 0 if it has none.
    pub inode: u64,
    /// The cgroup id of the socket.
    pub cgroup: Option<u64>,
    /// The uid of the user who made the socket.
    pub uid: u32,
}

impl Claim {
    pub(super) fn of(record: &Record) -> Self {
        let Record { protocol, state, local_port, inode, cgroup, uid, .. } = *record;
        Self { protocol, state, local_port, inode, cgroup, uid }
    }
}

impl From<&Socket> for Claim {
    fn from(socket: &Socket) -> Self {
        let Socket { protocol, state, local_port, inode, cgroup, uid, .. } = *socket;
        Self { protocol, state, local_port, inode, cgroup, uid }
    }
}

/// Finds the owners of sockets of this network namespace.
#[derive(Clone, Debug)]
pub struct Owners {
    proc: PathBuf,
    cgroups: Cgroups,
    /// The ports of the kernel's own UDP sockets, each with the name of its link.
    tunnels: Vec<(u16, String)>,
    command_lines: bool,
}

impl Owners {
    /// For the live host whose root directory is mounted at `root`. `tunnels` are the UDP ports of links that are up.
    /// No process can have these ports. If `command_lines` is true, command lines are kept, which may contain secrets.
    pub fn live(root: &Path, tunnels: Vec<(u16, String)>, command_lines: bool) -> Self {
        Self { proc: root.join("proc"), cgroups: Cgroups::find(root), tunnels, command_lines }
    }

    /// The owner of each claim, in the order of the claims. One call should have all claims, because each call walks
    /// over the cgroups and the processes.
    pub fn of(&self, claims: &[Claim]) -> Vec<Owner> {
        let searched: Vec<_> =
            claims.iter().filter(|claim| self.known_without_reading(claim).is_none()).copied().collect();
        let cgroups = self.cgroups.of(&searched.iter().filter_map(|claim| claim.cgroup).collect());
        let processes = self.processes_of(&searched, &cgroups);
        let owner = |claim: &Claim| {
            self.known_without_reading(claim).unwrap_or_else(|| {
                let of_socket = claim.cgroup.and_then(|id| cgroups.get(&id));
                let process = match processes.get(&claim.inode) {
                    Some(Held::By(process)) => Ok(process.clone()),
                    Some(Held::ByNoProcess) if may_be_the_kernels(claim, of_socket) => {
                        return Owner::Kernel { link: String::new() };
                    }
                    Some(Held::ByNoProcess) => Err(Gap::new(Source::Processes, Why::NotSupported, NO_DESCRIPTOR)),
                    Some(Held::Unknown(gap)) => Err(gap.clone()),
                    None => Err(Gap::new(
                        Source::Processes,
                        Why::Stale,
                        "the process has closed this socket; the kernel still finishes the connection",
                    )),
                };
                let unknown = || Gap::new(Source::Cgroups, Why::NotSupported, "no cgroup is reported for this socket");
                let cgroup = of_socket.cloned().unwrap_or_else(|| Err(unknown()));
                let cgroup = self.completed(cgroup, &process);
                Owner::Held(Holder { cgroup: cgroup.into(), process: process.into() })
            })
        };
        claims.iter().map(owner).collect()
    }

    /// The cgroup of a socket. If this cgroup names no pod, but the cgroup of the socket's process does, the result is
    /// the cgroup of the process. If the socket has no cgroup, the result is also the cgroup of the process, unless the
    /// process is in the root cgroup. A socket has a cgroup of version 2 only. On a node whose pods are in hierarchies
    /// of version 1, the socket's cgroup belongs to the container runtime, or is missing.
    fn completed(&self, of_socket: Result<Cgroup, Gap>, process: &Result<Process, Gap>) -> Result<Cgroup, Gap> {
        let has_no_cgroup2 = match &of_socket {
            Ok(cgroup) if cgroup.pod.is_some() => return of_socket,
            Ok(_) => false,
            Err(gap) => gap.why == Why::NotSupported,
        };
        let of_process = process.as_ref().ok().and_then(|process| cgroup_of(&self.proc, process));
        let is_reported = |cgroup: &Cgroup| of_socket.as_ref().is_ok_and(|of_socket| of_socket.path == cgroup.path);
        let names_pod = |cgroup: &Cgroup| cgroup.pod.is_some() && !is_reported(cgroup);
        let names_more = |cgroup: &Cgroup| names_pod(cgroup) || has_no_cgroup2 && !cgroup.is_root();
        of_process.filter(names_more).map_or(of_socket, Ok)
    }

    fn known_without_reading(&self, claim: &Claim) -> Option<Owner> {
        // A socket in FIN_WAIT2 without an inode waits for the peer's FIN. Like a socket in TIME_WAIT, this socket has
        // no process any more.
        if claim.inode == 0 && matches!(claim.state, State::TimeWait | State::FinWait2) {
            return Some(Owner::TimeWait);
        }
        let tunnel = self.tunnels.iter().find(|(port, _)| *port == claim.local_port);
        let of_kernel = claim.protocol == Protocol::Udp && claim.state == State::Close;
        tunnel.filter(|_| of_kernel).map(|(_, link)| Owner::Kernel { link: link.clone() })
    }

    fn processes_of(&self, claims: &[Claim], cgroups: &HashMap<u64, Result<Cgroup, Gap>>) -> HashMap<u64, Held> {
        let mut missing: HashSet<u64> = claims.iter().map(|claim| claim.inode).filter(|inode| *inode != 0).collect();
        if missing.is_empty() {
            return HashMap::new();
        }
        // The root cgroup says nothing about the owner, so its processes are not searched first.
        let with_name = cgroups.values().flatten().filter(|cgroup| !cgroup.is_root());
        let likely: Vec<u32> = with_name.flat_map(|cgroup| self.cgroups.processes(cgroup)).collect();
        let mut processes = Processes::new(&self.proc, self.command_lines);
        let (mut found, mut unread) = (processes.owners(likely, &mut missing), None);
        if !missing.is_empty() {
            unread = match processes.every_pid() {
                Ok(pids) => {
                    found.extend(processes.owners(pids, &mut missing));
                    processes.overlooked()
                }
                Err(gap) => Some(gap),
            };
        }
        let unowned: Vec<_> = match unread {
            Some(gap) => missing.into_iter().map(|inode| (inode, Held::Unknown(gap.clone()))).collect(),
            None => self.without_process(claims, &missing),
        };
        found.into_iter().map(|(inode, process)| (inode, Held::By(process))).chain(unowned).collect()
    }

    /// Separates the kernel's sockets from sockets that a process closed during the search. Only the kernel's sockets
    /// still exist.
    fn without_process(&self, claims: &[Claim], missing: &HashSet<u64>) -> Vec<(u64, Held)> {
        let claims: Vec<_> = claims.iter().filter(|claim| missing.contains(&claim.inode)).collect();
        let still_there = self.still_there(&claims);
        let holding = |claim: &&Claim| match &still_there {
            Ok(inodes) if inodes.contains(&claim.inode) => Held::ByNoProcess,
            Ok(_) => Held::Unknown(Gap::new(
                Source::Processes,
                Why::Stale,
                "the socket was closed during the search for its owner",
            )),
            Err(gap) => Held::Unknown(Gap { source: Source::Processes, ..gap.clone() }),
        };
        claims.iter().map(|claim| (claim.inode, holding(claim))).collect()
    }

    fn still_there(&self, claims: &[&Claim]) -> Result<HashSet<u64>, Gap> {
        let sockets = Sockets::live(&self.proc);
        let mut inodes = HashSet::new();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let of_protocol = || claims.iter().filter(|claim| claim.protocol == protocol);
            let ports: PortSet = of_protocol().map(|claim| claim.local_port).collect();
            if ports.is_empty() {
                continue;
            }
            let states = of_protocol().fold(States(0), |states, claim| states.with(claim.state));
            let request = SocketRequest::new(Source::Processes, protocol, states, Some(&ports));
            (inodes, _) = sockets.walk(&request, inodes, |inodes, record| {
                inodes.insert(record.inode);
            })?;
        }
        Ok(inodes)
    }
}

/// The reason why a socket exists but no process has it. Either a process sent the socket to another process that has
/// not received it yet (unix(7) `SCM_RIGHTS`), or only io_uring has it.
const NO_DESCRIPTOR: &str =
    "no process has a descriptor of the socket: it is being passed between two processes, or io_uring has it";

/// Whether the socket may belong to the kernel: its user is root, and its cgroup is unknown or the root cgroup.
fn may_be_the_kernels(claim: &Claim, cgroup: Option<&Result<Cgroup, Gap>>) -> bool {
    claim.uid == 0 && cgroup.is_none_or(|cgroup| cgroup.as_ref().map_or(true, Cgroup::is_root))
}

enum Held {
    By(Process),
    ByNoProcess,
    Unknown(Gap),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(protocol: Protocol, state: State, local_port: u16, inode: u64) -> Claim {
        Claim { protocol, state, local_port, inode, cgroup: None, uid: 0 }
    }

    #[test]
    fn time_wait_and_tunnels_are_named_without_a_process() {
        let owners = Owners::live(Path::new("/nonexistent"), vec![(8472, "flannel.1".to_owned())], false);
        let owner =
            owners.of(&[claim(Protocol::Tcp, State::TimeWait, 8472, 0), claim(Protocol::Udp, State::Close, 8472, 5)]);
        assert_eq!(owner, [Owner::TimeWait, Owner::Kernel { link: "flannel.1".to_owned() }]);
    }

    #[test]
    fn cgroup_and_process_are_unread_if_nothing_can_be_read() {
        let owners = Owners::live(Path::new("/nonexistent"), vec![(8472, "flannel.1".to_owned())], false);
        for claim in [claim(Protocol::Tcp, State::Listen, 8472, 5), claim(Protocol::Tcp, State::LastAck, 8472, 0)] {
            let [Owner::Held(holder)] = &owners.of(&[claim])[..] else { panic!("not held") };
            assert!(holder.cgroup.gap().is_some() && holder.process.gap().is_some(), "{holder:?}");
        }
    }
}
