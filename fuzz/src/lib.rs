//! What all parsers promise, for any bytes. Each function gets the bytes, and panics if a promise is broken.

pub mod cluster;
pub mod inputs;
pub mod kernel;
pub mod watch;
