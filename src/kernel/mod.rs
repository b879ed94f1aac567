//! Reads the node: its sockets, settings, addresses and proxy, each fact with its own gap.
//!
//! Never: judges, fails as a whole, or writes to the host.

mod health;
mod http;
mod ip_vs;
mod netfilter;
mod netlink;
mod privileges;
mod proc_net;
mod proxy;
mod record;
mod resolv;
mod root;
mod route;
mod sock_diag;
mod sockets;
mod sockstat;
mod sysctl;
