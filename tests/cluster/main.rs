//! The cluster as it is read from an API server, a fake on loopback.

#![allow(clippy::disallowed_methods, reason = "makes the server and the files that readers are given")]

mod api;
mod events;
mod fake;
mod hostile;
mod nodes;
mod plugin;
mod watch;
mod watch_failures;
