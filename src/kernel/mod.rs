mod cgroup;
mod ephemeral;
mod netlink;
mod owner;
mod proc_net;
mod process;
mod record;
mod sock_diag;
mod sockets;

pub use cgroup::Cgroups;
pub use ephemeral::{Counted, Counting};
pub use owner::{Claim, Owners, unasked};
pub use process::fds_of;
pub use sockets::{Listeners, Sockets};
