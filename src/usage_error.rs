//! The error that ends a command with the exit code of a wrong command line.

/// A command line that parses, and yet names something that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);
