//! `suggest`: NodePorts, or ports of the nodes, that are free on every node that has an agent.

use std::process::ExitCode;

use super::{
    agents::AgentFlags,
    node_snapshots::{Behind, NodeResult, NodeResults, judge_node_snapshots},
};
use crate::{console::Console, suggest::CountFlag};
use portreeve_report::listed;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    count: CountFlag,
    #[command(flatten)]
    agent_flags: AgentFlags,
}

pub(super) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    let mut free_ports = args.count.none();
    let NodeResults { results, partial, .. } =
        judge_node_snapshots(&args.agent_flags, &[], Behind::NoPort, |snapshot| {
            free_ports.absorb(snapshot);
            Ok(())
        })?;
    let agents = results.len();
    for NodeResult { node, result } in results {
        if let Err(gap) = result {
            free_ports.unread.push((node, gap));
        }
    }
    if let Some(partial) = partial {
        console.print_note(&partial);
    }
    let agents = listed(agents, args.agent_flags.agent_namespace());
    let scope = format!("of {agents}, and of no node without one");
    args.count.print(&free_ports, &scope, console)
}
