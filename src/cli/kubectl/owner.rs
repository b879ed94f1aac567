//! `owner`: who answers on a port of each node, and who loses.

use std::process::ExitCode;

use clap::ValueEnum;

use super::{
    looks::{Looked, looks},
    reach::Reach,
};
use crate::{
    cli::{asked::Asked, console::Console},
    sinks::{CheckResult, NodeOwner, write_owners, write_owners_json},
};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The port, and the protocol where only one is asked about: 30080, 30080/udp
    #[arg(value_name = "PORT[/PROTOCOL]")]
    port: Asked,
    /// Tell it of this node only; may be given several times
    #[arg(long, value_name = "NODE", help_heading = "Agents")]
    node: Vec<String>,
    #[command(flatten)]
    reach: Reach,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
}

/// The form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    Text,
    /// One JSON document, `portreeve.owners/v1`
    Json,
}

pub(super) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    let looked = looks(&args.reach, &args.node, |look| args.port.owned(look))?;
    let owners = looked.into_iter().map(|Looked { node, made }| NodeOwner { node, owned: made });
    let owners: Vec<NodeOwner> = owners.collect();
    console.write(|out| match args.output {
        Form::Text => write_owners(&owners, &console.style, out),
        Form::Json => write_owners_json(args.port.number, &owners, out),
    })?;
    if owners.is_empty() {
        anyhow::bail!("nothing is known: no agent is listed in namespace {}", args.reach.agent_namespace());
    }
    let result = if owners.iter().all(|it| it.owned.is_ok()) { CheckResult::Clear } else { CheckResult::NotChecked };
    Ok(ExitCode::from(result as u8))
}
