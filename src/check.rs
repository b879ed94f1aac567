//! `check`: one snapshot, judged and printed.

use std::{mem, process::ExitCode};

use super::{console::Console, report::ReportFlags, sources::Sources};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    report: ReportFlags,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { sources, report } = args;
    let snapshot = sources.snapshot(report.skipped(), true, console)?;
    let ended = report.print(&snapshot, console);
    // The process ends, and its memory as a whole with it.
    mem::forget(snapshot);
    ended
}
