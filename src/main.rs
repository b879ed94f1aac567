//! The binary reads the command line and returns the exit code. Each command has its own file. Most commands read one
//! snapshot and print a part of the snapshot.
//!
//! The agent runs the code of `check` in a loop. `check` runs this code once.

#![allow(clippy::disallowed_methods, reason = "reads the command line, the environment, the clock and named files")]

mod agent;
mod check;
mod command_line;
mod completion;
mod console;
#[cfg(target_os = "linux")]
mod demo;
#[cfg(test)]
mod documents;
mod examples;
mod explain;
mod guard;
mod kubectl;
mod lint;
mod man;
mod map;
mod owner;
mod policies;
mod progress;
mod report;
mod reserve;
mod scope;
mod snapshot;
mod snapshot_files;
mod sources;
mod suggest;
mod version;
mod what_if;
mod words;

use std::process::ExitCode;

#[cfg(target_env = "musl")]
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    command_line::run(std::env::args_os().collect())
}
