//! Checks that all parsers keep their promises for any bytes. Each function takes the bytes, and panics if a promise is
//! broken.

pub mod cluster;
pub mod inputs;
pub mod kernel;
pub mod watch;
