//! Tests that need no privilege and no network.

#![allow(clippy::disallowed_methods, reason = "tests read the package's own files")]

mod architecture;
mod documents;
