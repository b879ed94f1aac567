//! `man`: manual pages in roff.

use std::process::ExitCode;

use clap::Command;
use clap_mangen::Man;
use portreeve_facts::text;

use super::{command_line::UsageError, console::Console};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The command whose page to print, instead of the program's
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

pub(super) fn run(args: Args, mut command: Command, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { command: wanted } = args;
    command.build();
    let command = match wanted {
        None => command,
        Some(name) => subcommand(&command, &name)?,
    };
    let page = Man::new(command);
    console.write(|out| page.render(out))?;
    Ok(ExitCode::SUCCESS)
}

fn subcommand(command: &Command, name: &str) -> Result<Command, UsageError> {
    let Some(found) = command.find_subcommand(name) else {
        let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        return Err(UsageError(format!("no command {name:?}{}", text::did_you_mean(name, &names))));
    };
    Ok(found.clone())
}
