//! `map`: the NodePort range of a node as a picture.

use std::process::ExitCode;

use anyhow::bail;

use super::{agents::AgentFlags, node_snapshots::judge_one_snapshot};
use crate::{console::Console, map::MapForm};
use portreeve_report::first_nodes;
use portreeve_rules::port_usage;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The node, if there is more than one agent
    #[arg(long, value_name = "NODE", help_heading = "Agents")]
    node: Option<String>,
    #[command(flatten)]
    agent_flags: AgentFlags,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = MapForm::Text)]
    output: MapForm,
}

pub(super) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    let (node, result) = judge_one_snapshot(&args.agent_flags, args.node.as_slice(), console, port_usage)?;
    match result {
        Err(gap) => bail!("the NodePort range of {} cannot be drawn: {}", first_nodes(&[node.node], 1), gap.detail),
        Ok(port_usage) => args.output.draw(&node, &port_usage, console),
    }
}
