//! Reads the facts of the cluster and of the node, runs the rules, and keeps the board of findings. `check` does this
//! work once. The agent does this work in a loop, and answers HTTP requests from the board.
//!
//! Other crates read the facts and judge them. This crate parses only its own settings, and Events from the API server.

#![allow(clippy::disallowed_methods, reason = "keeps the time, listens, and connects to its socket")]

mod authorization;
mod bucket;
mod cadence;
mod change_log;
mod clock;
mod cluster_state;
mod cluster_updates;
mod config;
mod connections;
mod daemon;
mod documents;
pub mod events;
mod gather;
mod guard;
mod http;
mod judge;
mod kept;
mod liveness;
pub mod log;
pub mod metrics;
pub mod node_condition;
mod own_node;
mod refusal;
mod scanner;
pub mod settings;
mod socket;
mod tasks;
mod threads;

pub use clock::now;
pub use config::Config;
pub use daemon::run;
pub use gather::{SnapshotSources, Step};
pub use guard::{
    BindConfig, BindMode, Connection, Connections, GuardConfig, among, by_class, connections_on, guard_with, kept_by,
    named, run_guard,
};
pub use judge::{judge, judge_both, judge_by};
pub use liveness::probe;
