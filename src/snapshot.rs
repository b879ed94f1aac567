//! `snapshot`: prints everything that one scan reads. Command lines are left out, because users send the document to
//! other people.

use std::process::ExitCode;

use super::{console::Console, sources::Sources};
use portreeve_facts::Snapshot;
use portreeve_report::Report;
use portreeve_rules::ledger::Board;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    sources: Sources,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { sources } = args;
    let snapshot = sources.snapshot(Default::default(), [].into(), false, console)?;
    console.write(|out| {
        serde_json::to_writer_pretty(&mut *out, &snapshot)?;
        writeln!(out)
    })?;
    Ok(end(&snapshot))
}

/// The exit code of a printed snapshot. No rule ran, so the exit code depends only on unread inputs.
pub(super) fn end(snapshot: &Snapshot) -> ExitCode {
    ExitCode::from(Report::of(snapshot, &Board::default()).result() as u8)
}
