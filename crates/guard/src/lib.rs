//! Reserves the ports that this node needs in `net.ipv4.ip_local_reserved_ports`, and keeps the entries of other
//! programs.
//!
//! The kernel's list is a set of ports without owners. The guard keeps a record of two things: the ports that it added
//! ("ours"), and the whole list as the guard last read it. All other entries belong to other programs, and the guard
//! never removes them. **An entry that may belong to another program counts as an entry of another program**. Such an
//! entry stays until the next boot, and outgoing connections cannot use its port. The opposite mistake is worse: it
//! would free a port of another program, and no program would report the loss.
//!
//! Two properties of the kernel (kernel/sysctl.c, `proc_do_large_bitmap`; measured on Linux 6.18):
//!
//! - A write at offset 0 replaces the list. A write at another offset adds to the list (`bitmap_or`). So an addition
//!   keeps the entries of other programs. With `O_APPEND`, a write still replaces the list, because procfs ignores this
//!   flag.
//! - The kernel has no lock and no compare-and-swap for the list. So for a removal, the guard reads the list, compares
//!   it, and writes a new list. Also, `bitmap_or` reads a word of memory and then writes it: if two processors add at
//!   the same moment, one addition can get lost. In a test, another process added entries without a pause, and 14 of
//!   32,140 additions got lost.
//!
//! A running guard watches the list with inotify. The kernel reports each write of the list (`IN_MODIFY`), even if the
//! write changes no port. The kernel does not report which entries the process wrote. So after a write of another
//! program, all present entries belong to other programs. The guard does not notice a write that changes no port in
//! these cases:
//!
//! - No guard runs, or the guard is killed before its next run. The guard runs at least every 30 seconds.
//! - inotify did not start, for example because of the limit `fs.inotify.max_user_instances`. The guard logs the error,
//!   and tries again in each run.
//! - The process writes through another instance of procfs. Each container has its own instance.
//! - The process writes within the microseconds of the guard's own write.
//!
//! Between two steps of the guard, another program can write, the guard can be killed, or the node can boot:
//!
//! | event | result |
//! |---|---|
//! | Another program adds an entry while the guard adds an entry. | Both entries stay, because the guard's write only adds. If both writes run within a microsecond, one entry can get lost. If the guard's entry is lost, the guard adds it again. |
//! | After the guard has read the list, and before it writes, another program adds the same port. | The list does not show who added the port. The port counts as an entry of the guard. |
//! | Another program adds a port that the guard has already added. | The list does not change. If the guard notices the write, all present entries now belong to other programs. Otherwise the guard removes the port when the guard no longer needs it. |
//! | Another program adds an entry between any two runs. | The list differs from the record. All present entries now belong to other programs. |
//! | Another program writes a list that contains a port of the guard. | All present entries now belong to other programs. The port stays reserved even if the guard no longer needs it. |
//! | Another program reads the list and writes it with more entries. | All present entries now belong to other programs, because the list does not show which of them this program needs. |
//! | Another program writes a list that the record expects: the same list again, or the list before or after an unfinished write. | If the guard notices the write, all present entries now belong to other programs. Otherwise the guard's entries still count as entries of the guard. |
//! | Another program writes a list without the guard's entries. | The guard adds its entries again, and reports the loss. The first time, the guard adds the entries immediately. Later, the guard adds lost entries at most once a minute. |
//! | Another program writes between the two calls of a removal. | The new entries of that program get lost. The two calls are some microseconds apart. To make this loss rare, the guard removes ports at most once a minute. If the limit for reserved ports leaves no space for a needed port, the guard removes ports at most once in ten seconds. |
//! | The guard is killed during a long write, which has several parts. | The record has the states before and after the write. The next run adds the entries that are in both states. The guard's entries still count as entries of the guard. |
//! | The guard is killed during a long write, and another program writes before the next run. | The long write removed entries of other programs. The next run adds these entries again. All entries then belong to other programs. If all entries of the list are in the record, the guard does not notice that another program wrote. |
//! | The guard is killed after it wrote the record, and before it wrote the list. | The record has the states before and after the write. The list equals the state before the write, so the guard uses this state. If the list equals neither state, another program wrote the list. |
//! | The guard is killed after it wrote the list. | The list equals the state after the write, so the guard uses this state. |
//! | The guard is killed after it wrote the record, and before it wrote the list. At that moment, another program adds the same ports. | The list does not show who added the ports. The ports count as entries of the guard. |
//! | The guard is killed while it writes the record. | The record is a new file that replaces the old file. So one complete file always exists. |
//! | The node boots. | The list is empty or has the entries that a program wrote at the boot. The record is from an earlier boot, and the guard ignores it. |
//! | A second guard starts with the same record. | The first guard holds a lock. The second guard ends with an error. |
//! | A second guard starts with another record. | Each guard treats the entries of the other guard as entries of another program. |
//! | A user deletes the lock file. | The guard takes a new lock before its next run. If a second guard has this lock already, the first guard does not write until the second guard has ended. |
//! | The record cannot be parsed. | All present entries belong to other programs. The record is kept as `.malformed`. |
//! | The record cannot be read, or another user can write it. | The run ends with an error and changes nothing, because an unread record may have entries. If the guard runs permanently, it tries again. |
//! | The record is of another network namespace of this boot. | The run ends with an error and changes nothing, because each namespace has its own list. If the guard runs permanently, it tries again. |
//!
//! A port that is no longer needed stays reserved for five more minutes ([`GRACE`]). A port of a daemon or a tunnel stays
//! reserved until the next boot, because the daemon or the tunnel needs the port again when it restarts. If an input was
//! not read, the guard keeps all ports that this input may need.
//!
//! This crate does not read the cluster. The crate `portreeve-dataplane` finds the ports that the node needs.
//! [`Wanted`] contains the ports that the guard may reserve, each with its reason.

#![allow(clippy::disallowed_methods, reason = "reads and writes the kernel's list and the record")]

mod keeper;
mod list;
mod plan;
mod record;
mod wanted;
mod watch;

pub use keeper::{EARLY_REMOVAL_PAUSE, GRACE, Keeper, Kept, PUT_BACK_PAUSE, REMOVAL_PAUSE, RENEWAL};
pub use list::{KernelList, List};
pub use plan::{Bound, Plan};
pub use record::{Files, Place, Record, Store, read_record, unrenewed_for};
pub use wanted::{Class, Reason, Wanted};

use std::{io, path::PathBuf};

/// The reason why the guard could not keep the reservation. Each text is one line for users.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum GuardError {
    #[error("this kernel has no {path}: it cannot reserve ports", path = .0.display())]
    NoList(PathBuf),
    #[error("cannot read {path}: {error}", path = .path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot write {path}: {error}; wanted a writable file and the user root", path = .path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot watch {path}: {error}", path = .path.display())]
    Watch { path: PathBuf, error: io::Error },
    #[error("{path} has {text:?}, wanted ports like 2703,30000-32767", path = .path.display())]
    Malformed { path: PathBuf, text: String },
    #[error("cannot read the guard's record {path}: {error}", path = .path.display())]
    ReadRecord { path: PathBuf, error: io::Error },
    #[error(
        "the guard's record {path} is of network namespace net:[{its}], and this process is in net:[{own}]; wanted another --state",
        path = .path.display()
    )]
    OtherNamespace { path: PathBuf, its: u64, own: u64 },
    #[error("cannot write the guard's record {path}: {error}", path = .path.display())]
    WriteRecord { path: PathBuf, error: io::Error },
    #[error("another guard runs on this node: it holds {path}", path = .0.display())]
    Locked(PathBuf),
    #[error("cannot lock {path}: {error}", path = .path.display())]
    Lock { path: PathBuf, error: io::Error },
}
