//! `suggest`: NodePorts that are free, as far as a look at this node tells.

use std::process::ExitCode;

use super::{console::Console, gather::Sources, spare::Count};
use crate::rules::{FreePorts, spared};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    count: Count,
    #[command(flatten)]
    gather: Sources,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { count, gather } = args;
    let snapshot = gather.look(spared(&[]), false)?;
    count.tell(&FreePorts::of(&snapshot), &format!("of node {}, and of no other", snapshot.node_name()), console)
}
