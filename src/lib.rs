//! Portreeve finds, explains and foretells port conflicts on Kubernetes nodes.
//!
//! The rooms, in reading order; `ARCHITECTURE.md` says who may know whom.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests make the files and read the clocks that the code is handed")
)]

pub mod facts; // what was seen

pub mod kernel; // reads the node

pub mod cluster; // reads the cluster

pub mod dataplane; // who answers

pub mod findings; // what is wrong

pub mod rules; // why it is wrong

pub mod ledger; // since when

pub mod lint; // what manifests would break

pub mod sinks; // reports

pub mod agent; // gathers, judges and keeps the board

pub mod cli; // the command line
