//! `map`: the NodePort range as a picture.

use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;

use super::{console::Console, sources::Sources};
use portreeve_report::{NodeScan, map_result, write_map, write_map_json, write_svg};
use portreeve_rules::{PortUsage, port_usage, skipped_for_users};

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
    let snapshot = sources.snapshot(Default::default(), skipped_for_users(), false, console)?;
    let usage = match port_usage(&snapshot) {
        Ok(usage) => usage,
        Err(gap) => bail!("the NodePort range is not known: {}; set it with --node-port-range", gap.detail),
    };
    output.draw(&NodeScan::of(&snapshot), &usage, console)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum MapForm {
    /// One character for each port, for a terminal
    Text,
    /// A self-contained picture for documents
    Svg,
    /// One JSON document, `portreeve.ports/v1`
    Json,
}

impl MapForm {
    pub(super) fn draw(self, node: &NodeScan, usage: &PortUsage, console: &Console) -> anyhow::Result<ExitCode> {
        console.write(|out| match self {
            Self::Text => write_map(usage, &console.style, out),
            Self::Svg => write_svg(usage, out),
            Self::Json => write_map_json(node, usage, out),
        })?;
        Ok(ExitCode::from(map_result(usage) as u8))
    }
}
