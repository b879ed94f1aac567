//! Facts that are kept from scan to scan, because reading them is slow and they seldom change.

use std::{collections::HashMap, sync::Arc};

use super::{conntrack::FlowCounts, netlink::InterfaceChanges, route, sockets::Sockets};
use portreeve_facts::{Cgroup, Gap, Interfaces};

/// The number of scans from one full reading to the next, even if no change was noticed.
const PERIOD: u8 = 20;

/// A new process is read in this number of scans: a container enters its namespace and control group while it starts.
const CONFIRMING: u8 = 2;

#[derive(Debug, Default)]
pub(super) struct ScanCounter(u8);

impl ScanCounter {
    /// Counts one more scan. Returns whether this scan must read everything.
    pub(super) fn advance(&mut self) -> bool {
        self.0 = (self.0 + 1) % PERIOD;
        self.0 == 0
    }
}

/// Facts from earlier scans of a host. Empty for a single scan.
#[derive(Debug, Default)]
pub struct Known {
    pub(super) sockets: Option<Sockets>,
    pub(super) processes: KnownProcesses,
    pub(super) interfaces: WatchedInterfaces,
    pub(super) flows: FlowCounts,
}

/// Links, addresses and gateways of the last scan. Later scans use these facts until the kernel reports a change.
///
/// In ipvs mode, a node has an address for every Service. Reading ten thousand addresses takes about 5 ms, nearly all
/// of it in the kernel. A check for changes takes microseconds.
#[derive(Debug, Default)]
pub(super) struct WatchedInterfaces {
    scans: ScanCounter,
    changes: Option<InterfaceChanges>,
    last: Option<Arc<Interfaces>>,
}

impl WatchedInterfaces {
    /// Like [`route::read`], in the network namespace of the calling thread. All scans must use one namespace.
    ///
    /// # Errors
    /// As [`route::read`].
    pub(super) fn read(&mut self) -> Result<Arc<Interfaces>, Gap> {
        let changed = self.changes.as_mut().is_none_or(InterfaceChanges::receive_all);
        if let (false, false, Some(last)) = (changed, self.scans.advance(), &self.last) {
            return Ok(Arc::clone(last));
        }
        // The second scan subscribes, because a single scan needs no notifications. If the node changes during a
        // reading, the kernel sends a notification, and the next scan reads again.
        if self.changes.is_none() && self.last.is_some() {
            self.changes = InterfaceChanges::subscribe().ok();
        }
        self.last = None;
        let read = Arc::new(route::read()?);
        self.last = Some(Arc::clone(&read));
        Ok(read)
    }
}

/// The network namespace and the control group of each process of the last scan, by pid. Reading the namespaces and
/// groups takes longer than reading all other facts about pods.
#[derive(Debug, Default)]
pub(super) struct KnownProcesses(HashMap<u32, KnownProcess>);

#[derive(Debug)]
pub(super) struct KnownProcess {
    /// The inode of the process's directory below `/proc`. A later process with the same pid has another inode
    /// (fs/proc/base.c `proc_pid_make_inode`).
    inode: u64,
    scans: u8,
    /// The inode of the process's network namespace.
    pub(super) network: Option<u64>,
    /// The process's control group. `None` if the group was not read yet, `Some(None)` if the path of the group has no
    /// pod.
    pub(super) cgroup: Option<Option<Arc<Cgroup>>>,
}

impl KnownProcesses {
    pub(super) fn process(&mut self, pid: u32, inode: u64) -> KnownProcess {
        let known = self.0.remove(&pid).filter(|process| process.inode == inode);
        let scans = known.as_ref().map_or(0, |process| (process.scans + 1) % PERIOD);
        let trusted = known.filter(|_| scans >= CONFIRMING).map(|process| (process.network, process.cgroup));
        let (network, cgroup) = trusted.unwrap_or_default();
        KnownProcess { inode, scans, network, cgroup }
    }

    pub(super) fn keep(&mut self, pid: u32, process: KnownProcess) {
        self.0.insert(pid, process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_at(known: &mut KnownProcesses, inode: u64, scans: usize) -> Vec<bool> {
        let one = |_| {
            let mut process = known.process(7, inode);
            let read = process.network.is_none();
            process.network = Some(1);
            known.keep(7, process);
            read
        };
        (0..scans).map(one).collect()
    }

    #[test]
    fn a_process_is_read_in_its_first_two_scans_and_then_seldom() {
        let mut known = KnownProcesses::default();
        let twice: Vec<bool> = (0..PERIOD).map(|scan| scan < CONFIRMING).collect();
        assert_eq!(read_at(&mut known, 1, PERIOD.into()), twice);
        assert_eq!(read_at(&mut known, 1, PERIOD.into()), twice);
        assert_eq!(read_at(&mut known, 2, 3), [true, true, false], "another process of the same pid");
    }

    #[test]
    fn a_process_that_is_not_given_back_is_forgotten() {
        let mut known = KnownProcesses::default();
        read_at(&mut known, 1, 3);
        drop(std::mem::take(&mut known));
        assert_eq!(read_at(&mut known, 1, 3), [true, true, false]);
    }
}
