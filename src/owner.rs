//! `owner`: who answers on a port of this node, who gets no connections, and what to do.

use std::{process::ExitCode, slice};

use anyhow::anyhow;
use clap::ValueEnum;

use super::{console::Console, sources::Sources};
use portreeve_facts::{Gap, Source};
use portreeve_report::{NodeOwner, PortArgument, write_owner, write_owner_json};
use portreeve_rules::free_port;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The port, with a protocol if you want only one: 30080, 30080/udp
    #[arg(value_name = "PORT[/PROTOCOL]")]
    port: PortArgument,
    /// Read the network of this pod: the process that listens on the port in this network, and the connections that use it
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with = "refused", value_parser = pod_name)]
    pod: Option<String>,
    #[command(flatten)]
    sources: Sources,
    /// Also print how to get this nodePort, if the API server refused a Service with this number: *provided port is already
    /// allocated*
    #[arg(long, help_heading = "Output")]
    refused: bool,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// Text
    Text,
    /// One JSON document, `portreeve.owner/v1`
    Json,
}

pub(super) fn run(args: Args, console: &Console) -> anyhow::Result<ExitCode> {
    let Args { port, pod, sources, refused, output } = args;
    let is_live = sources.is_live();
    let searched = ([port.number].into_iter().collect(), pod.clone());
    let snapshot = sources.snapshot(searched, [].into(), true, console)?;
    let owner = match &pod {
        Some(pod) => port.owner_in_pod(&snapshot, pod, is_live),
        None => port.owner(&snapshot, refused, free_port(&snapshot, port.number).as_ref()),
    };
    let node = NodeOwner { node: snapshot.node_name().to_owned(), owner };
    console.write(|out| match (output, &node.owner) {
        (Form::Json, _) => write_owner_json(port.number, slice::from_ref(&node), out),
        (Form::Text, Ok(owner)) => write_owner(owner, &console.style, out),
        (Form::Text, Err(_)) => Ok(()),
    })?;
    let place = pod.map(|pod| format!(" in pod {pod}")).unwrap_or_default();
    // A scan already printed why the Services were not read.
    let is_printed = |gap: &Gap| {
        let first = snapshot.cluster.rejected.first();
        is_live && gap.source == Source::Services && first.is_none_or(|first| first.detail == gap.detail)
    };
    let unknown = |gap: Gap| {
        let why = if is_printed(&gap) { String::new() } else { format!(": {}", gap.detail) };
        anyhow!("the owner of port {}{place} is not known{why}", port.number)
    };
    Ok(ExitCode::from(node.owner.map_err(unknown)?.result() as u8))
}

/// Parses the `namespace/name` of a pod.
pub(super) fn pod_name(text: &str) -> Result<String, String> {
    let is_name = |part: &str| !part.is_empty() && !part.contains('/');
    match text.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is not the namespace and name of a pod, like shop/web-0")),
    }
}
