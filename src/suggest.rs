//! `suggest`: NodePorts that are free, as far as is known from this node.

use std::process::ExitCode;

use super::{console::Console, free_ports::CountFlag, sources::Sources};
use portreeve_rules::{FreePorts, skipped};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    count: CountFlag,
    #[command(flatten)]
    sources: Sources,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { count, sources } = args;
    let snapshot = sources.snapshot(skipped(&[]), false, console)?;
    count.print(&FreePorts::of(&snapshot), &format!("of node {}, and of no other", snapshot.node_name()), console)
}
