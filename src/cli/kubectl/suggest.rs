//! `suggest`: NodePorts that are free on every node that has an agent.

use std::process::ExitCode;

use super::{
    looks::{Looked, looks},
    reach::Reach,
};
use crate::{
    cli::{console::Console, spare::Count},
    rules::FreePorts,
    sinks::listed,
};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    count: Count,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    let mut spare = FreePorts::default();
    let looked = looks(&args.reach, &[], |look| {
        spare.absorb(look);
        Ok(())
    })?;
    let agents = looked.len();
    for Looked { node, made } in looked {
        if let Err(gap) = made {
            spare.unread.push((node, gap));
        }
    }
    let agents = listed(agents, args.reach.agent_namespace());
    let scope = format!("of {agents}, and of no node without one");
    args.count.tell(&spare, &scope, console)
}
