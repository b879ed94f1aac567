//! Turns the crank: gathers the facts of the cluster and of the node, has them judged, and keeps the board. Once for
//! `check`; for the agent over and over, answering over HTTP what the board says.
//!
//! Never: parses or judges.

#![allow(clippy::disallowed_methods, reason = "keeps the time, listens, and beats into its file")]

mod config;
mod connections;
mod crank;
mod daemon;
mod document;
mod feed;
mod front;
mod process;
mod pulse;
mod scanner;
mod wanted;

pub use config::Config;
pub use crank::{Crank, Step, judge, judge_by};
pub use daemon::run;
pub use pulse::{Dead, probe};
pub use wanted::wanted;
