//! Reserves the ports that this node needs in `net.ipv4.ip_local_reserved_ports`, and keeps the entries of other
//! programs.
//!
//! The kernel's list is a set of ports without owners. The guard keeps a record of two things: the ports that it added
//! ("ours"), and the whole list as the guard last saw it. All other entries belong to other programs, and the guard
//! never removes them. **In doubt an entry belongs to another program**: the guard then leaves the entry until the next
//! boot. The cost is a port that outgoing connections cannot use. The opposite mistake would free a port of another
//! program, and nothing would report it.
//!
//! Two properties of the kernel (kernel/sysctl.c, `proc_do_large_bitmap`; measured on Linux 6.18):
//!
//! - A write at offset 0 replaces the list. A write at another offset adds to the list (`bitmap_or`). So an addition
//!   keeps the entries of other programs. `O_APPEND` does not add: procfs ignores this flag, and the write replaces the
//!   list.
//! - The kernel has no lock and no compare-and-swap for the list. So a removal is a read, a comparison and a write that
//!   replaces the list. And `bitmap_or` reads and writes each word: if two processors add at the same moment, one of
//!   the two additions can get lost. While another process added without a pause, 14 of 32,140 additions got lost.
//!
//! inotify reports that a process wrote the list (`IN_MODIFY`), but not the entries that the process wrote. The guard
//! does not use inotify.
//!
//! Between two steps of the guard, another program can write, the guard can be killed, or the node can boot:
//!
//! | event | result |
//! |---|---|
//! | Another program adds an entry while the guard adds an entry. | Both entries stay, because the guard's write only adds. If both writes run within a microsecond, one of the entries can get lost. The guard adds its own entry again. |
//! | Another program adds the same port between the guard's read and its write, some microseconds later. | The list does not show this. The port counts as an entry of the guard. |
//! | Another program adds a port that the guard has. | The list does not show this. The port is removed together with the ports of the guard. |
//! | Another program adds an entry between any two runs. | The list differs from the record. All present entries now belong to other programs. |
//! | Another program writes a list that has a port of the guard. | All present entries now belong to other programs. The port stays reserved when the guard no longer needs it. |
//! | Another program copies the list and adds to it. | All present entries now belong to other programs, because a copied entry looks like a wanted entry. |
//! | Another program writes a list that the record expects: the same list again, or the list before or after an unfinished write. | The list does not show this. The guard's entries stay the guard's entries. |
//! | Another program writes a list without the guard's entries. | The guard adds its entries again: at once the first time in a process, then at most once a minute. The guard reports this. |
//! | Another program writes between the two calls of a removal. | The new entries of that program get lost. The time between the two calls is some microseconds. Therefore the guard removes ports at most once a minute, or once in ten seconds if a needed port does not fit otherwise. |
//! | The guard ends in a long write, which has more than one part. | The record has the states before and after the write. The guard adds entries again that are in both states. The guard's entries stay the guard's entries. |
//! | The guard ends in a long write, and another program writes before the next run. | The guard had removed entries of other programs: it adds them again. All entries then belong to other programs. If the list has only entries of the record, the guard cannot notice that another program wrote. |
//! | The guard ends after it wrote the record, and before it wrote the list. | The record has the states before and after the write. The list shows which state is true. If the list fits neither state, another program wrote it. |
//! | The guard ends after the write. | The list shows that the state after the write is true. |
//! | The guard ends after it wrote the record, and before it wrote the list. At that moment another program adds the same ports. | The list does not show this. The ports count as entries of the guard. |
//! | The guard is killed while it writes the record. | The record is a new file that replaces the old file. One complete file always exists. |
//! | The node boots. | The list is empty or has the entries that a program wrote at the boot. The record is from an earlier boot, and the guard ignores it. |
//! | A second guard starts with the same record. | The first guard holds a lock. The second guard ends with an error. |
//! | A second guard starts with another record. | Each guard treats the entries of the other guard as entries of another program. |
//! | The file of the lock is deleted. | The guard takes a new lock before its next run. If a second guard started first, the first guard writes only after the second guard has ended. |
//! | The record cannot be parsed. | All present entries belong to other programs. The record is kept as `.malformed`. |
//! | The record cannot be read, or another user can write it. | The run ends with an error and changes nothing, because *not read* is not *empty*. A guard that stays tries again. |
//! | The record is of another network namespace of this boot. | The run ends with an error and changes nothing, because each namespace has its own list. A guard that stays tries again. |
//!
//! A port that is no longer needed stays reserved for five more minutes ([`GRACE`]). A port of a daemon stays reserved
//! until the next boot, because a daemon needs its port when it starts again. If an input was not read, the guard
//! removes no port that this input may want.
//!
//! This crate never reads a cluster. The crate `portreeve-dataplane` finds the needed ports. `Wanted` takes the ports
//! that an outgoing connection could take.

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

/// The reason why the guard could not keep the reservation. Each text is one line for people.
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
