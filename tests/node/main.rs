//! The binary `portreeve` on real nodes, which the tests make in network namespaces.
//!
//! The tests need root (or a user namespace in which they are root) and `ip` of iproute2. Without root or `ip`, the
//! tests fail.

#![allow(clippy::disallowed_methods, reason = "makes the nodes that the program scans")]

mod addresses;
mod agent;
mod agent_files;
mod agent_http;
mod agent_metrics;
mod claims;
mod command_lines;
mod corpus;
mod faults;
mod filtered;
mod guard;
mod healthy;
mod host_network;
mod hostile;
mod in_pods;
mod masquerade;
mod matrix;
#[path = "../anywhere/named.rs"]
mod named;
mod near_misses;
mod proxy;
mod ranges;
mod redirected;
mod scale;
mod stage;
mod tunnels;
mod twice;
mod unprivileged;
mod worlds;
