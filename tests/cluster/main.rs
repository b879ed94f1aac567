//! The cluster as an API server tells it; the server is a fake on loopback.

mod api;
mod fake;
