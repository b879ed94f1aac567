//! `completion`: the script with which a shell completes the flags.

use std::process::ExitCode;

use clap::Command;
use clap_complete::{Shell, generate};

use super::console::Console;

#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: Args, mut command: Command, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { shell } = args;
    let mut script = Vec::new();
    generate(shell, &mut command, "portreeve", &mut script);
    console.write(|out| out.write_all(&script))?;
    Ok(ExitCode::SUCCESS)
}
