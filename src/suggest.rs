//! `suggest`: NodePorts that are free, as far as is known from this node.

use std::{num::NonZeroU16, process::ExitCode};

use anyhow::bail;
use clap::ValueEnum;

use super::{console::Console, sources::Sources};
use portreeve_facts::{Source, Why};
use portreeve_report::{CheckResult, gaps_alike, write_free_ports_json};
use portreeve_rules::{FreePorts, skipped};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    count: CountFlag,
    #[command(flatten)]
    sources: Sources,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { count, sources } = args;
    let snapshot = sources.snapshot(skipped(&[]), false, console)?;
    count.print(&FreePorts::of(&snapshot), &format!("of node {}, and of no other", snapshot.node_name()), console)
}

// How many are wanted, and in which form.
#[derive(Debug, clap::Args)]
pub(super) struct CountFlag {
    /// How many ports to suggest
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    count: NonZeroU16,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
}

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A port a line
    Text,
    /// One JSON document, `portreeve.ports/v1`
    Json,
}

impl CountFlag {
    /// Prints the first free ports, and on standard error of what they are known: `scope`, and what is missing of it.
    ///
    /// # Errors
    /// When there are not that many, or nothing is known to be free.
    pub(super) fn print(&self, free_ports: &FreePorts, scope: &str, console: &Console) -> anyhow::Result<ExitCode> {
        let wanted = usize::from(self.count.get());
        let ports: Vec<u16> = free_ports.ports().take(wanted).collect();
        // Pods, whose hostPorts are taken too, need not be in the files that a person gives.
        let failed = free_ports.unread.iter().any(|(_, gap)| (gap.source, gap.why) != (Source::Pods, Why::NotAsked));
        let is_whole = free_ports.is_known() && ports.len() == wanted && !failed;
        let result = if is_whole { CheckResult::Clear } else { CheckResult::NotChecked };
        console.write(|out| match self.output {
            Form::Text => ports.iter().try_for_each(|port| writeln!(out, "{port}")),
            Form::Json => write_free_ports_json(result, ports.clone(), &free_ports.unread, out),
        })?;
        console
            .print_note("no Service has them, nobody listens there, and no kernel gives them to outgoing connections");
        console.print_note(&format!("as far as is known: this speaks {scope}"));
        for (nodes, gap) in gaps_alike(&free_ports.unread) {
            console.print_note(&format!("not known of {nodes}: {}", gap.detail));
        }
        if !free_ports.is_known() {
            bail!("nothing can be suggested without the Services and the NodePort range");
        }
        if ports.len() < wanted {
            bail!("only {} of {wanted} ports could be suggested", ports.len());
        }
        Ok(ExitCode::from(result as u8))
    }
}
