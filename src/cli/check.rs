//! `check`: one turn of the crank.

use std::process::ExitCode;

use super::{console::Console, gather::Sources, tell::Telling};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    gather: Sources,
    #[command(flatten)]
    tell: Telling,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { gather, tell } = args;
    tell.tell(&gather.look(tell.connections(), true)?, console)
}
