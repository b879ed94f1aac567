//! `suggest`: free NodePorts, or free ports of the node, according to the facts that were read.

use std::{num::NonZeroU16, process::ExitCode};

use anyhow::bail;
use clap::ValueEnum;

use super::{
    console::Console,
    scope::{NodeResults, Scope, Wanted},
};
use portreeve_facts::Source;
use portreeve_report::{free_ports_result, gaps_alike, write_free_ports_json};
use portreeve_rules::{FreePorts, skipped_for_users};

#[derive(Debug, clap::Args)]
pub(super) struct Args<S: Scope> {
    /// How many ports to print
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    count: NonZeroU16,
    /// Print ports of the nodes instead of NodePorts: for a hostPort, or a server on the host's network
    #[arg(long)]
    host: bool,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
    #[command(flatten)]
    scope: S,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One port on each line
    Text,
    /// One JSON document, `portreeve.ports/v1`
    Json,
}

pub(super) fn run<S: Scope>(args: Args<S>, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { count, host, output, scope } = args;
    let mut free_ports = if host { FreePorts::of_hosts() } else { FreePorts::default() };
    let mut skipped = skipped_for_users();
    if host {
        // A server cannot listen on the local port of a connection, so the scan reads connections.
        skipped.remove(&Source::Clients);
    }
    let wanted = Wanted { skipped, searched: free_ports.to_search(), ..Wanted::default() };
    let NodeResults { results, nodes, partial, oldest, scope, .. } = scope.judge(&wanted, console, |snapshot| {
        free_ports.absorb(snapshot);
        Ok(())
    })?;
    let judged = results.iter().filter(|(_, result)| result.is_ok()).count();
    let silent = results.into_iter().filter_map(|(node, result)| Some((node, result.err()?)));
    free_ports.unread.extend(silent);
    partial.iter().chain(&oldest).for_each(|note| console.print_note(note));
    let wanted = usize::from(count.get());
    let ports: Vec<u16> = free_ports.as_read().take(wanted).collect();
    let are_some_silent = judged < nodes.len();
    let result = free_ports_result(&free_ports, are_some_silent || ports.len() < wanted);
    console.write(|out| match output {
        Form::Text => ports.iter().try_for_each(|port| writeln!(out, "{port}")),
        Form::Json => write_free_ports_json(result, ports.clone(), (&nodes, judged), &free_ports.unread, out),
    })?;
    if !ports.is_empty() {
        known(&free_ports, are_some_silent).iter().for_each(|known| console.print_note(known));
    }
    console.print_note(&format!("scope: {scope}"));
    gaps_alike(&free_ports.unread).iter().for_each(|note| console.print_note(note));
    if !free_ports.is_known() {
        bail!("no port can be suggested without the Services and the NodePort range");
    }
    if ports.len() < wanted {
        bail!("only {} of {wanted} ports could be suggested", ports.len());
    }
    Ok(ExitCode::from(result as u8))
}

fn known(free_ports: &FreePorts, are_some_silent: bool) -> Option<String> {
    let all = [
        (Source::Services, "no Service has these ports"),
        (Source::Listeners, "no process listens on these ports"),
        (Source::Sysctls, "the kernel gives these ports to no outgoing connection"),
    ];
    let known = all.into_iter().filter(|(source, _)| !free_ports.hides(*source));
    let known: Vec<&str> = known.map(|(_, words)| words).collect();
    let place = if are_some_silent { "on the nodes that were read: " } else { "" };
    (!known.is_empty()).then(|| format!("{place}{}", known.join("; ")))
}
