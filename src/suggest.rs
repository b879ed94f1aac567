//! `suggest`: NodePorts that are free, or ports of the node, as far as is known from this node.

use std::{num::NonZeroU16, process::ExitCode};

use anyhow::bail;
use clap::ValueEnum;

use super::{console::Console, sources::Sources};
use portreeve_facts::{Gap, Source, Why};
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
    let mut free_ports = count.none();
    free_ports.absorb(&snapshot);
    count.print(&free_ports, &format!("of node {}, and of no other", snapshot.node_name()), console)
}

// How many are wanted, for whom, and in which form.
#[derive(Debug, clap::Args)]
pub(super) struct CountFlag {
    /// How many ports to suggest
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    count: NonZeroU16,
    /// Suggest ports of the nodes instead of NodePorts: for a hostPort, or a server on the host's network, as of a DaemonSet
    #[arg(long)]
    host: bool,
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
    /// Such ports, before the first look.
    pub(super) fn none(&self) -> FreePorts {
        if self.host { FreePorts::of_hosts() } else { FreePorts::default() }
    }

    /// Prints the first free ports, and on standard error of what they are known: `scope`, and what is missing of it.
    ///
    /// # Errors
    /// When there are not that many, or nothing is known to be free.
    pub(super) fn print(&self, free_ports: &FreePorts, scope: &str, console: &Console) -> anyhow::Result<ExitCode> {
        let wanted = usize::from(self.count.get());
        let ports: Vec<u16> = free_ports.ports().take(wanted).collect();
        // Pods, whose hostPorts are taken too, need not be in the files that a person gives who asks for NodePorts.
        let is_excused = |gap: &Gap| !self.host && (gap.source, gap.why) == (Source::Pods, Why::NotAsked);
        let failed = free_ports.unread.iter().any(|(_, gap)| !is_excused(gap));
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
