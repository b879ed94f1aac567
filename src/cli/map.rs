//! `map`: the NodePort range as a picture.

use std::process::ExitCode;

use anyhow::bail;

use super::{console::Console, gather::Sources, picture::Form};
use crate::{
    ledger::Board,
    rules::{census, spared},
    sinks::Report,
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
    let census = match census(&snapshot) {
        Ok(census) => census,
        Err(gap) => bail!("the NodePort range is not known: {}; say it with --node-port-range", gap.detail),
    };
    output.draw(&census, console)?;
    let result = Report::of(&snapshot, &Board::default()).result();
    Ok(ExitCode::from(result as u8))
}
