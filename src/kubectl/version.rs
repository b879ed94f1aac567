//! `version`: the version of this program, and the number of agents with each version.

use std::{collections::BTreeMap, process::ExitCode};

use super::{
    agents::runtime,
    check::{list, query},
    node_snapshots::AgentScope,
    queries::Interrupts,
};
use crate::console::Console;
use portreeve_facts::VERSION;
use portreeve_report::{Wanted, answer_outcome, counted};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    scope: AgentScope,
}

pub(super) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    console.write(|out| writeln!(out, "client  {VERSION}"))?;
    let fleet = runtime()?.block_on(async {
        let agents = args.scope.agent_flags.connect().await?;
        let listed = list(&args.scope, &agents).await?;
        let wanted = Wanted { document: true, ..Wanted::default() };
        anyhow::Ok(query(&args.scope, wanted, &agents, &listed, &mut Interrupts::new()?).await)
    })?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for node in &fleet.nodes {
        *counts.entry(node.version.as_deref().unwrap_or("not known")).or_default() += 1;
    }
    console.write(|out| {
        counts.iter().try_for_each(|(version, count)| writeln!(out, "agents  {version}: {}", counted(*count, "agent")))
    })?;
    if fleet.nodes.is_empty() {
        anyhow::bail!("no agent is listed in namespace {}", args.scope.agent_flags.agent_namespace);
    }
    let lacks = fleet.nodes.iter().any(|node| node.version.is_none());
    Ok(ExitCode::from(answer_outcome(lacks, []) as u8))
}
