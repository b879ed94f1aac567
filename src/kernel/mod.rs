//! Reads the node: its sockets, settings, addresses and proxy, each fact with its own gap.
//!
//! Never: judges, fails as a whole, or writes to the host.

mod health;
mod http;
mod ip_vs;
mod netfilter;
mod netlink;
mod privileges;
mod proxy;
mod resolv;
mod root;
mod route;
mod sockstat;
mod sysctl;
