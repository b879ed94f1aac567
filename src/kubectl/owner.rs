//! `owner`: who answers on a port of each node, who loses, and what to do.

use std::process::ExitCode;

use clap::ValueEnum;

use super::{
    agents::AgentFlags,
    declared::NoAgentFlags,
    node_snapshots::{Behind, NodeResult, NodeResults, judge_node_snapshots},
};
use crate::console::Console;
use portreeve_report::{NodeOwner, PortArgument, owners_result, write_owner_json, write_owners};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The port, and the protocol where only one is asked about: 30080, 30080/udp
    #[arg(value_name = "PORT[/PROTOCOL]")]
    port: PortArgument,
    /// Tell it of this node only; may be given several times
    #[arg(long, value_name = "NODE", help_heading = "Agents")]
    node: Vec<String>,
    #[command(flatten)]
    agent_flags: AgentFlags,
    #[command(flatten)]
    no_agent_flags: NoAgentFlags,
    /// Say also how to have the number, if the API server refused it to a Service: *provided port is already allocated*
    #[arg(long, help_heading = "Output")]
    refused: bool,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
}

/// The form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    Text,
    /// One JSON document, `portreeve.owner/v1`
    Json,
}

pub(super) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    if args.no_agent_flags.no_agent {
        let json = args.output == Form::Json;
        return args.no_agent_flags.tell(args.port, &args.node, &args.agent_flags, json, console);
    }
    let NodeResults { results, partial, oldest } =
        judge_node_snapshots(&args.agent_flags, &args.node, Behind::Port(args.port.number), |snapshot| {
            // What one node shows to be free, another may have in use.
            args.port.owner(snapshot, args.refused, None)
        })?;
    let owners = results.into_iter().map(|NodeResult { node, result }| NodeOwner { node, owner: result });
    let owners: Vec<NodeOwner> = owners.collect();
    partial.into_iter().chain(oldest).for_each(|note| console.print_note(&note));
    console.write(|out| match args.output {
        Form::Text => write_owners(&owners, &console.style, out),
        Form::Json => write_owner_json(args.port.number, &owners, out),
    })?;
    if owners.is_empty() {
        anyhow::bail!("nothing is known: no agent is listed in namespace {}", args.agent_flags.agent_namespace());
    }
    Ok(ExitCode::from(owners_result(&owners) as u8))
}
