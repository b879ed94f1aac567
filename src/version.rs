//! `version`: the version of this program.

use std::process::ExitCode;

use super::console::Console;
use portreeve_facts::VERSION;

pub(super) fn run(console: &Console) -> anyhow::Result<ExitCode> {
    console.write(|out| writeln!(out, "portreeve {VERSION}"))?;
    Ok(ExitCode::SUCCESS)
}
