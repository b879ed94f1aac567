//! `owner --no-agent`: prints the objects that declare a port. The API server is the only source.

use std::process::ExitCode;

use anyhow::bail;

use super::agents::{AgentFlags, runtime};
use crate::{console::Console, progress::Progress};
use portreeve_cluster::Declared;
use portreeve_dataplane::{Declaration, declarations};
use portreeve_facts::{Gap, Unread};
use portreeve_report::{DeclaredReport, PortArgument, look_once, write_declared, write_declared_json};

/// The file that names the registry of the image. If an image has no registry, each node chooses a registry.
const NAMES: &str = include_str!("../../deploy/names");
const NODE: &str = "NODE";

#[derive(Clone, Debug, clap::Args)]
pub(super) struct NoAgentFlags {
    /// Query no agent: print the objects that claim the port, and a command that scans one node once
    ///
    /// You need the right to `list` Services and Pods in all namespaces. The printed command also lists EndpointSlices and Nodes, and needs
    /// the rights to create, attach to and delete a pod.
    #[arg(long, help_heading = "Agents")]
    pub(super) no_agent: bool,
    /// The image for the printed command, with its registry, instead of the image of this release
    #[arg(long, value_name = "IMAGE", help_heading = "Agents", requires = "no_agent", value_parser = with_registry)]
    image: Option<String>,
}

impl NoAgentFlags {
    pub(super) fn print(
        &self,
        port: PortArgument,
        nodes: &[String],
        agent_flags: &AgentFlags,
        json: bool,
        console: &Console,
    ) -> anyhow::Result<ExitCode> {
        let progress = Progress::start();
        progress.show("reading Services and Pods");
        let declared = runtime()?.block_on(async { anyhow::Ok(agent_flags.connect().await?.declared().await) })?;
        drop(progress);
        let Declared { services, pods, rejected } = declared;
        let unread: Vec<Gap> = [services.gap(), pods.gap()].into_iter().flatten().cloned().chain(rejected).collect();
        if let (Some(gap), Some(_)) = (services.gap(), pods.gap()) {
            bail!("nothing was read: {}", gap.detail);
        }
        let reported = Unread::Reported("DeclaredReport::unread");
        let (services, pods) = (services.known_part(reported), pods.known_part(reported));
        let mut claims: Vec<Declaration> = declarations(services, pods, port.number);
        let is_requested = |node: &String| nodes.is_empty() || nodes.contains(node);
        claims.retain(|it| port.is_about(it.protocol) && it.node.as_ref().is_none_or(is_requested));
        let node = nodes.first().or_else(|| claims.iter().find_map(|it| it.node.as_ref()));
        let image = self.image.clone().unwrap_or_else(released);
        let command =
            look_once(&port.to_string(), node.map_or(NODE, String::as_str), &agent_flags.agent_namespace, &image);
        let report = DeclaredReport { port: port.number, claims: &claims, unread: &unread, command: &command };
        console.write(|out| match json {
            true => write_declared_json(&report, out),
            false => write_declared(&report, &console.style, out),
        })?;
        if node.is_none() {
            console.print_note(&format!("replace {NODE} in the command with a node's name, or set --node"));
        }
        if self.image.is_none() {
            console.print_note(&format!("the node must be able to pull the image {image}; --image sets another image"));
        }
        let namespace = &agent_flags.agent_namespace;
        console.print_note(&format!(
            "namespace {namespace} must exist and must admit pods on the host's network; --agent-namespace sets another namespace"
        ));
        Ok(ExitCode::from(report.result() as u8))
    }
}

/// A node chooses the registry of an image without a registry. As in the chart, a registry has a dot or a port, or is
/// `localhost`.
fn with_registry(image: &str) -> Result<String, String> {
    match image.split_once('/') {
        Some((registry, name)) if !name.is_empty() && (registry == "localhost" || registry.contains(['.', ':'])) => {
            Ok(image.to_owned())
        }
        _ => Err(format!("an image has a registry, like {}", released())),
    }
}

fn released() -> String {
    let registry = NAMES.lines().find_map(|line| line.strip_prefix("REGISTRY=")).unwrap_or_default();
    format!("{registry}:{}", env!("CARGO_PKG_VERSION"))
}

#[test]
fn an_image_has_a_registry() {
    let image = released();
    assert!(image.ends_with(concat!(":", env!("CARGO_PKG_VERSION"))), "{image}");
    for image in [&image, "localhost/x", "node:5000/x:1", "r.example/x@sha256:00"] {
        assert_eq!(with_registry(image).as_deref(), Ok(image));
    }
    for image in ["", "x", "x:1", "r/x:1", "r.example/", "/x", "localhost"] {
        assert!(with_registry(image).is_err(), "{image}");
    }
}
