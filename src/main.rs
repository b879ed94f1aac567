//! The binary: command line in, exit code out.

use std::process::ExitCode;

#[cfg(target_env = "musl")]
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[allow(clippy::disallowed_methods, reason = "the one place that reads the command line")]
fn main() -> ExitCode {
    portreeve::cli::run(std::env::args_os().collect())
}
