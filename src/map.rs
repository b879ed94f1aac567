//! `map`: the NodePort range as a picture.

use std::process::ExitCode;

use anyhow::bail;

use super::{console::Console, map_output::MapForm, sources::Sources};
use portreeve_report::Report;
use portreeve_rules::{
    ledger::Board,
    {port_usage, skipped},
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sources: Sources,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = MapForm::Text)]
    output: MapForm,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { sources, output } = args;
    let snapshot = sources.snapshot(skipped(&[]), false, console)?;
    let usage = match port_usage(&snapshot) {
        Ok(usage) => usage,
        Err(gap) => bail!("the NodePort range is not known: {}; say it with --node-port-range", gap.detail),
    };
    output.draw(&usage, console)?;
    let result = Report::of(&snapshot, &Board::default()).result();
    Ok(ExitCode::from(result as u8))
}
