//! `suggest`: NodePorts that are free on every node that has an agent.

use std::process::ExitCode;

use super::{
    looks::{Looked, looks},
    reach::Reach,
};
use crate::{
    cli::{console::Console, spare::Count},
    rules::Spare,
};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    count: Count,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    let mut spare = Spare::default();
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
    let namespace = args.reach.agent_namespace();
    let agents = if agents == 1 { "the one agent" } else { &format!("the {agents} agents") };
    let scope = format!("of {agents} listed in namespace {namespace}, and of no node without one");
    args.count.tell(&spare, &scope, console)
}
