//! The modules are those of `crates/kernel/src`: each reader runs against a real kernel, in private network namespaces.
//! The tests need root.

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
