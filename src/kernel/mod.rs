//! Reads the node: its sockets, settings, addresses and proxy, each fact with its own gap.
//!
//! Never: judges, fails as a whole, or writes to the host.

mod cgroup;
mod ephemeral;
mod health;
mod http;
mod ip_vs;
mod netfilter;
mod netlink;
mod owner;
mod pods;
mod privileges;
mod proc_net;
mod process;
mod proxy;
mod record;
mod resolv;
mod root;
mod route;
mod sock_diag;
mod sockets;
mod sockstat;
mod sysctl;

pub use cgroup::Cgroups;
pub use ephemeral::{Counted, Counting};
pub use owner::{Claim, Owners, unasked};
pub use pods::pod_namespaces;
pub use process::fds_of;
pub use sockets::{Listeners, Sockets};
