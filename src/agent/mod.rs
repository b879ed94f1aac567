//! Gathers the facts of the cluster and of the node, has them judged, and keeps the board. Once for `check`; for the
//! agent in a loop, answering over HTTP from the board.
//!
//! Never: parses or judges.

#![allow(clippy::disallowed_methods, reason = "keeps the time, listens, and writes its heartbeat")]

mod budget;
mod cluster_files;
mod cluster_state;
mod cluster_updates;
mod config;
mod connections;
mod daemon;
mod gather;
mod heartbeat;
mod http;
mod judge;
mod log;
mod process_usage;
mod reload;
mod scanner;
mod scheduler;
mod shared_body;
mod tasks;

pub use config::Config;
pub use daemon::run;
pub use gather::{SnapshotSources, Step};
pub use heartbeat::{NotAlive, probe};
pub use judge::{judge, judge_by};
