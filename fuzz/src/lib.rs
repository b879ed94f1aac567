//! What is promised of every parser, for any bytes. Each function takes them, and panics where a promise is broken.

pub mod cluster;
pub mod inputs;
pub mod kernel;
pub mod watch;
