mod netlink;
mod proc_net;
mod record;
mod sock_diag;
mod sockets;

pub use sockets::{Listeners, Sockets};
