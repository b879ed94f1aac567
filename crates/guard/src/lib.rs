//! Reserves the ports that this node needs in `net.ipv4.ip_local_reserved_ports`, and keeps the entries of other programs.
//!
//! The kernel's list is a set of ports without owners. The guard keeps a record of the ports that it added ("ours") and of
//! the whole list as the guard last saw it. Every other entry belongs to another program, and the guard never removes it.
//! **In doubt an entry belongs to another program**: the guard then leaves it until the next boot. The price is a port that
//! outgoing connections cannot use. The other mistake would open another program's port without a word.
//!
//! Two properties of the kernel (kernel/sysctl.c, `proc_do_large_bitmap`; measured on Linux 6.18):
//!
//! - A write at offset 0 replaces the list. A write at another offset adds to the list (`bitmap_or`). So an addition keeps the entries of
//!   other programs. `O_APPEND` does not do this: procfs ignores it, and the write replaces the list.
//! - The kernel has no lock and no compare-and-swap for the list. So a removal is a read, a comparison and a replacing write. And
//!   `bitmap_or` reads and writes each word: of two additions at the same moment, on two processors, one can get lost. Beside a process
//!   that added without a pause, 14 of 32,140 additions did.
//!
//! inotify reports that a process wrote the list (`IN_MODIFY`), and not the entries that it wrote. The guard does not use this.
//!
//! Other programs, a kill and a boot can come in between:
//!
//! | event | result |
//! |---|---|
//! | Another program adds an entry while the guard adds. | Both entries stay: the guard's write only adds. If both writes run within a microsecond, one of the entries can get lost. The guard adds its own entry again. |
//! | Another program adds the same port between the guard's read and its write, some microseconds later. | The list does not show this: the port is treated as an entry of the guard. |
//! | Another program adds a port that the guard has. | The list does not show this: the port leaves with the ports of the guard. |
//! | Another program adds an entry between any two runs. | The list differs from the record: all present entries now belong to other programs. |
//! | Another program writes a list that has a port of the guard. | All present entries now belong to other programs: the port stays when the guard no longer needs it. |
//! | Another program copies the list and adds to it. | All present entries now belong to other programs: a copied entry looks like a wanted entry. |
//! | Another program writes a list that the record expects: the same list again, or the list before or after an unfinished write. | The list does not show this: the guard's entries stay the guard's. |
//! | Another program writes a list without the guard's entries. | The guard adds its entries again: at once the first time in a process, then at most once a minute. It reports this. |
//! | Another program writes between the two calls of a removal. | Its new entries get lost: some microseconds, in which the list was read and not yet written. Removals are therefore at most one a minute, or one in ten seconds if a needed port does not fit otherwise. |
//! | The guard ends in a long write, which has more than one part. | The record has both states. Entries of both states are added again; the guard's entries stay the guard's. |
//! | The guard ends in a long write, and another program writes before the next run. | Entries of other programs that the guard took out are added again. All entries then belong to other programs. A list with only the entries of the record shows nothing. |
//! | The guard ends between the record and the write. | The record has the state before and after. The list shows which one is true; another list is a list of other programs. |
//! | The guard ends after the write. | The list shows that the state after is true. |
//! | The guard ends between the record and the write, and another program adds the same ports in that moment. | The list does not show this: the ports are treated as entries of the guard. |
//! | The guard is killed while it writes the record. | The record is a new file that takes the place of the old file: one complete file is always present. |
//! | The node boots. | The list is empty or has what the boot wrote. The record is from an earlier boot, and is ignored. |
//! | A second guard starts with the same record. | The first one holds a lock; the second one ends with an error. |
//! | A second guard starts with another record. | Each guard treats the entries of the other one as entries of another program. |
//! | The file of the lock is deleted. | The guard takes a new lock before its next run. If a second guard started first, the first one writes only after the end of the second one. |
//! | The record cannot be parsed. | All present entries belong to other programs. The record is kept as `.malformed`. |
//! | The record cannot be read, or another user can write it. | The guard ends with an error: *not read* is not *empty*. |
//! | The record is of another network namespace of this boot. | The guard ends with an error: each namespace has its own list. |
//!
//! A port that is no longer needed stays for five minutes more ([`GRACE`]). A port of a daemon stays until the next boot: a daemon
//! needs its port when it starts again. Input that was not read removes no port that may be in it.
//!
//! Never: reads a cluster. Needs are from `portreeve-dataplane`; `Wanted` takes those that lose to an outgoing connection.

#![allow(clippy::disallowed_methods, reason = "reads and writes the kernel's list and the record")]

mod keeper;
mod list;
mod plan;
mod record;
mod wanted;

pub use keeper::{EARLY_REMOVAL_PAUSE, GRACE, Keeper, Kept, PUT_BACK_PAUSE, REMOVAL_PAUSE, RENEWAL};
pub use list::{KernelList, List};
pub use plan::{Bound, Plan};
pub use record::{Files, Place, Record, Store, read_record, unrenewed_for};
pub use wanted::{Class, Reason, Wanted, hides_ports};

use std::{io, path::PathBuf};

/// Why the guard could not keep the reservation. Each is one line for people.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum GuardError {
    #[error("this kernel has no {path}: it cannot reserve ports", path = .0.display())]
    NoList(PathBuf),
    #[error("cannot read {path}: {error}", path = .path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot write {path}: {error}; wanted a writable file and the user root", path = .path.display())]
    Write { path: PathBuf, error: io::Error },
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
