//! The readers of `crates/kernel/src` run on a real kernel, in private network namespaces. Most modules here have the
//! name of the tested module. The tests need root.

#![allow(clippy::disallowed_methods, reason = "makes the nodes for the readers")]
#![allow(unreachable_pub, reason = "a test program has no outside")]

mod conntrack;
mod demo;
mod faults;
mod host;
mod namespace;
mod netfilter;
mod owners;
mod pods;
mod process;
mod proxy;
mod route;
mod sockets;
mod sysctl;
