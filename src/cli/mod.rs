//! The command line: one file per command. Most commands take one snapshot and print what is in it.
//!
//! Never: has a loop of its own; `check` runs the same code once that the agent runs in a loop.

#![allow(clippy::disallowed_methods, reason = "reads the command line, the environment, the clock and named files")]

mod agent;
mod check;
mod command_line;
mod completion;
mod console;
#[cfg(target_os = "linux")]
mod demo;
mod descriptors;
mod did_you_mean;
mod documents;
mod free_ports;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod impossible;
mod kubectl;
mod lint;
mod man;
mod map;
mod map_output;
mod owner;
mod port_argument;
mod progress;
mod replay;
mod report;
mod rules;
mod snapshot;
mod sources;
mod suggest;
mod usage_error;
mod values;
mod what_if;

pub use command_line::run;
pub use documents::{command_reference, generated_documents};
