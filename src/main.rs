//! The binary: command line in, exit code out.

use std::process::ExitCode;

#[allow(clippy::disallowed_methods, reason = "the one place that reads the command line")]
fn main() -> ExitCode {
    portreeve::cli::run(std::env::args_os().collect())
}
