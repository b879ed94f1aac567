//! Tests that need no privilege and no network.

#![allow(clippy::disallowed_methods, reason = "tests read the package's own files")]
#![allow(unreachable_pub, reason = "a test program has no outside")]

mod agreement;
mod bad_input;
mod catalogue;
mod cli;
mod documents;
mod effects;
mod every_node;
mod examples;
mod fuzz_targets;
mod generated;
mod hostile;
mod lint;
mod manifests;
mod manifests_broken;
mod manifests_pods;
mod manifests_settings;
mod manifests_workloads;
mod named;
mod order;
#[path = "../cluster/permissions.rs"]
#[allow(dead_code, reason = "tests of requests and of the chart use the rest")]
mod permissions;
mod promises;
mod remedies;
mod shown;
mod site;
mod snapshots;
mod threads;
mod unread;
mod verdicts;
mod what_if;
mod worlds;
