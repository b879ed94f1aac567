//! `owner`: who answers on a port of each node, who gets no connections, and what to do.

use std::{process::ExitCode, sync::Arc};

use super::{
    declared::NoAgentFlags,
    node_snapshots::{AgentScope, judge_node_snapshots},
};
use crate::{
    console::Console,
    owner::{Form, pod_name},
    scope::{Behind, NodeResults, Wanted},
};
use portreeve_facts::{Pod, Snapshot, Unread};
use portreeve_report::{NodeOwner, PortArgument, owners_result, write_owner_json, write_owners};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The port, with a protocol if you want only one: 30080, 30080/udp
    #[arg(value_name = "PORT[/PROTOCOL]")]
    port: PortArgument,
    /// Show the network of this pod. An agent reads a pod's network only while the pod fails, and only the pod's declared and
    /// probed ports
    #[arg(long, value_name = "NAMESPACE/NAME", conflicts_with_all = ["refused", "no_agent"], value_parser = pod_name)]
    pod: Option<String>,
    #[command(flatten)]
    scope: AgentScope,
    #[command(flatten)]
    no_agent_flags: NoAgentFlags,
    /// Also print how to get this nodePort, if the API server refused a Service with this number: *provided port is already
    /// allocated*
    #[arg(long, help_heading = "Output")]
    refused: bool,
    /// The form of the output
    #[arg(short, long, value_enum, value_name = "FORM", help_heading = "Output", default_value_t = Form::Text)]
    output: Form,
}

pub(super) fn run(args: &Args, console: &Console) -> anyhow::Result<ExitCode> {
    let AgentScope { node, agent_flags } = &args.scope;
    if args.no_agent_flags.no_agent {
        let json = args.output == Form::Json;
        return args.no_agent_flags.print(args.port, node, agent_flags, json, console);
    }
    // The answer about a pod does not need the endpoints of Services.
    let behind = if args.pod.is_some() { Behind::NoPort } else { Behind::Port(args.port.number) };
    let wanted = Wanted { behind, ..Wanted::default() };
    let judge = |snapshot: &Snapshot| match &args.pod {
        Some(pod) if is_elsewhere(snapshot, pod) => Ok(None),
        Some(pod) => args.port.owner_in_pod(snapshot, pod, false).map(Some),
        // No free port is suggested, because a port that is free on this node may be in use on another node.
        None => args.port.owner(snapshot, args.refused, None).map(Some),
    };
    let NodeResults { results, partial, oldest, .. } =
        judge_node_snapshots(agent_flags, node, &wanted, |_| Ok(()), judge)?;
    let owner = |(node, result): (_, Result<_, _>)| Some(NodeOwner { node, owner: result.transpose()? });
    let agents = results.len();
    let owners: Vec<NodeOwner> = results.into_iter().filter_map(owner).collect();
    partial.into_iter().chain(oldest).for_each(|note| console.print_note(&note));
    console.write(|out| match args.output {
        Form::Text => write_owners(&owners, &console.style, out),
        Form::Json => write_owner_json(args.port.number, &owners, out),
    })?;
    if let Some(pod) = args.pod.as_ref().filter(|_| owners.is_empty() && agents > 0) {
        anyhow::bail!("pod {pod} is on no queried node");
    }
    if owners.is_empty() {
        anyhow::bail!("no agent is listed in namespace {}, so no port was judged", agent_flags.agent_namespace);
    }
    Ok(ExitCode::from(owners_result(&owners) as u8))
}

fn is_elsewhere(snapshot: &Snapshot, pod: &str) -> bool {
    let is_here = |it: &Arc<Pod>| it.is_named(pod) && it.may_be_on(snapshot.node_name());
    snapshot.cluster.pods.known(Unread::Doubted).is_some_and(|pods| !pods.iter().any(is_here))
}
