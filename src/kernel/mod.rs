//! Reads the node: its sockets, settings, addresses and proxy, each fact with its own gap.
//!
//! Never: judges, fails as a whole, or writes to the host.
#![allow(dead_code, reason = "assembled below")]
mod health;
mod http;
mod ip_vs;
mod privileges;
mod proxy;
mod resolv;
mod root;
mod sockstat;
mod sysctl;
