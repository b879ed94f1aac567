//! `check`: one turn of the crank.

use std::{mem, process::ExitCode};

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
    let snapshot = gather.look(tell.spared(), true)?;
    let told = tell.tell(&snapshot, console);
    // The process ends, and its memory as a whole with it.
    mem::forget(snapshot);
    told
}
