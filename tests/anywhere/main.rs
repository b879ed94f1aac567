//! Tests that need no privilege and no network.

mod manifests;
mod manifests_broken;
mod manifests_settings;
