//! What is kept from look to look: that which takes long to read, and seldom changes.

use std::{collections::HashMap, mem, sync::Arc};

use super::{conntrack::Counted, interfaces::Watched, sockets::Sockets};
use crate::facts::Cgroup;

/// After so many looks everything is read anew, whatever is thought to be known.
const ANEW: u8 = 20;
/// In so many of them a process is asked who it is: it may go elsewhere, as containers do where they begin.
const ASKED: u8 = 2;

/// How many looks there were since everything was read anew.
#[derive(Debug, Default)]
pub(super) struct Looks(u8);

impl Looks {
    /// Counts another one, and says whether everything is to be read anew in it.
    pub(super) fn is_anew(&mut self) -> bool {
        self.0 = (self.0 + 1) % ANEW;
        self.0 == 0
    }
}

/// What earlier looks at a host learned. Nothing is kept of whoever looks once.
#[derive(Debug, Default)]
pub struct Known {
    pub(super) sockets: Option<Sockets>,
    pub(super) processes: Processes,
    pub(super) interfaces: Watched,
    pub(super) flows: Counted,
}

/// What the processes of the last look told of their namespace and control group, by pid: to ask each of them again takes
/// longer than everything else about pods.
#[derive(Debug, Default)]
pub(super) struct Processes(HashMap<u32, Process>);

/// What a process told.
#[derive(Debug)]
pub(super) struct Process {
    /// That of its directory below `/proc`: a later process of this pid has another (fs/proc/base.c
    /// `proc_pid_make_inode`).
    inode: u64,
    looks: u8,
    /// The inode of its network namespace.
    pub(super) network: Option<u64>,
    /// Its control group, where it has one that names a pod.
    pub(super) cgroup: Option<Option<Arc<Cgroup>>>,
}

impl Processes {
    /// Takes what is known of processes; who is not given back is forgotten.
    pub(super) fn take(&mut self) -> Self {
        mem::take(self)
    }

    /// What is known of this process.
    pub(super) fn process(&mut self, pid: u32, inode: u64) -> Process {
        let known = self.0.remove(&pid).filter(|process| process.inode == inode);
        let looks = known.as_ref().map_or(0, |process| (process.looks + 1) % ANEW);
        let told = known.filter(|_| looks >= ASKED).map(|process| (process.network, process.cgroup));
        let (network, cgroup) = told.unwrap_or_default();
        Process { inode, looks, network, cgroup }
    }

    /// Gives back what is known of a process now.
    pub(super) fn keep(&mut self, pid: u32, process: Process) {
        self.0.insert(pid, process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a process is asked at each of so many looks.
    fn asked(known: &mut Processes, inode: u64, looks: usize) -> Vec<bool> {
        let one = |_| {
            let mut process = known.process(7, inode);
            let asked = process.network.is_none();
            process.network = Some(1);
            known.keep(7, process);
            asked
        };
        (0..looks).map(one).collect()
    }

    #[test]
    fn a_process_is_asked_when_it_comes_once_more_and_then_seldom() {
        let mut known = Processes::default();
        let twice: Vec<bool> = (0..ANEW).map(|look| look < ASKED).collect();
        assert_eq!(asked(&mut known, 1, ANEW.into()), twice);
        assert_eq!(asked(&mut known, 1, ANEW.into()), twice);
        assert_eq!(asked(&mut known, 2, 3), [true, true, false], "another process of the same pid");
    }

    #[test]
    fn who_is_not_given_back_is_forgotten() {
        let mut known = Processes::default();
        asked(&mut known, 1, 3);
        known.take();
        assert_eq!(asked(&mut known, 1, 3), [true, true, false]);
    }
}
