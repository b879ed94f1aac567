//! `map`: the NodePort range as a picture.

use std::process::ExitCode;

use anyhow::bail;

use super::{console::Console, gather::Sources, picture::Form};
use crate::{
    ledger::Board,
    rules::{port_usage, spared},
    sinks::{Outcome, Report},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    gather: Sources,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { gather, output } = args;
    let snapshot = gather.look(spared(&[]), false)?;
    let census = match port_usage(&snapshot) {
        Ok(census) => census,
        Err(gap) => bail!("the NodePort range is not known: {}; say it with --node-port-range", gap.detail),
    };
    output.draw(&census, console)?;
    let outcome: Outcome = Report::of(&snapshot, &Board::default()).outcome();
    Ok(ExitCode::from(outcome as u8))
}
