//! Tests that read the cluster from an API server. The API server is a fake on loopback.

#![allow(unreachable_pub, reason = "a test program has no outside")]
#![allow(clippy::disallowed_methods, reason = "makes the server and the files for the readers")]

mod agent_memory;
mod agent_ready;
mod api;
mod cilium;
mod condition;
mod credentials;
mod declared;
mod events;
mod fake;
mod fleet;
mod hostile;
mod lint;
#[path = "../anywhere/named.rs"]
mod named;
mod nodes;
#[allow(dead_code, reason = "tests of the chart use the rest")]
mod permissions;
mod plugin;
mod policies;
mod reserve;
mod said;
#[path = "../anywhere/shown.rs"]
mod shown;
mod streamed;
mod waiting_pods;
mod watch;
mod watch_failures;
mod what_if;
