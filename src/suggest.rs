//! `suggest`: NodePorts that are free, or ports of the node, as far as is known from this node.

use std::{num::NonZeroU16, process::ExitCode};

use anyhow::bail;

use super::{console::Console, sources::Sources};
use portreeve_facts::{Gap, Source, Why};
use portreeve_report::{CheckResult, gaps_alike};
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

// How many are wanted, and for whom.
#[derive(Debug, clap::Args)]
pub(super) struct CountFlag {
    /// How many ports to suggest
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    count: NonZeroU16,
    /// Suggest ports of the nodes instead of NodePorts: for a hostPort, or a server on the host's network, as of a DaemonSet
    #[arg(long)]
    host: bool,
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
        console.write(|out| ports.iter().try_for_each(|port| writeln!(out, "{port}")))?;
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
        // Pods, whose hostPorts are taken too, need not be in the files that a person gives who asks for NodePorts.
        let is_excused = |gap: &Gap| !self.host && (gap.source, gap.why) == (Source::Pods, Why::NotAsked);
        let failed = free_ports.unread.iter().any(|(_, gap)| !is_excused(gap));
        Ok(ExitCode::from(if failed { CheckResult::NotChecked } else { CheckResult::Clear } as u8))
    }
}
