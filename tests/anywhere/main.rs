//! Tests that need no privilege and no network.

#![allow(clippy::disallowed_methods, reason = "tests read the package's own files")]
#![allow(unreachable_pub, reason = "a test program has no outside")]

mod architecture;
mod bad_input;
mod catalogue;
mod cli;
mod documents;
mod generated;
mod manifests;
mod manifests_broken;
mod manifests_settings;
mod remedies;
mod snapshots;
mod statements;
mod verdicts;
