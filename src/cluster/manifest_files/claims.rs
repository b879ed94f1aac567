//! From a tree to a manifest: which of its fields claim a port or an address, and where each is written.

use std::sync::Arc;

use super::node::Node;
use crate::{
    cluster::field_values::lenient_ip,
    facts::{ACCEPT, Accepts, Claim, Claimed, Place, Protocol, WorkloadKind, text},
};

/// The longest name of a rule that is kept, in bytes, and how many names of one object.
const RULE: usize = 64;
const MOST_RULES: usize = 64;

/// Makes places of a document's lines.
pub(super) struct Lines<'a> {
    pub(super) file: &'a Arc<str>,
    /// The line on which the document begins.
    pub(super) first: u64,
    /// The template that helm rendered it from.
    pub(super) template: Option<Arc<str>>,
}

impl Lines<'_> {
    pub(super) fn place(&self, node: &Node) -> Place {
        let (line, column) = node.at;
        let line = self.first + line.saturating_sub(1);
        Place { file: Arc::clone(self.file), line, column, width: node.width, template: self.template.clone() }
    }

    fn claim(&self, path: String, node: &Node, what: Claimed) -> Claim {
        Claim { path, place: self.place(node), what }
    }
}

/// Rules whose findings the object accepts.
pub(super) fn accepts(object: &Node, lines: &Lines<'_>) -> Option<Accepts> {
    let node = object.at_path("metadata.annotations")?.field(ACCEPT)?;
    let written = node.text().unwrap_or_default();
    let names = written.split(',').map(str::trim).filter(|name| !name.is_empty());
    let rules = names.take(MOST_RULES).map(|name| text::clean(name, RULE)).collect();
    Some(Accepts { rules, place: lines.place(node) })
}

/// The claims of a Service. What is no port or no address is named by whoever converts the object.
pub(super) fn of_service(object: &Node, lines: &Lines<'_>) -> Vec<Claim> {
    let Some(spec) = object.field("spec") else { return Vec::new() };
    let mut claims = Vec::new();
    for (index, port) in spec.field("ports").map_or(&[][..], Node::items).iter().enumerate() {
        if let Some((node, number)) = number(port, "nodePort") {
            let path = format!("spec.ports[{index}].nodePort");
            claims.push(lines.claim(path, node, Claimed::NodePort(number, protocol(port))));
        }
    }
    if let Some((node, number)) = number(spec, "healthCheckNodePort") {
        claims.push(lines.claim("spec.healthCheckNodePort".to_owned(), node, Claimed::HealthCheckNodePort(number)));
    }
    for (index, node) in spec.field("externalIPs").map_or(&[][..], Node::items).iter().enumerate() {
        if let Some(ip) = node.text().and_then(lenient_ip) {
            claims.push(lines.claim(format!("spec.externalIPs[{index}]"), node, Claimed::ExternalIp(ip)));
        }
    }
    claims
}

/// The claims of the pods of a workload.
pub(super) fn of_pods(kind: WorkloadKind, object: &Node, lines: &Lines<'_>) -> Vec<Claim> {
    let Some(spec) = object.at_path(kind.pod_spec()) else { return Vec::new() };
    let host_network = spec.field("hostNetwork").is_some_and(Node::is_true);
    let mut claims = Vec::new();
    for list in ["containers", "initContainers"] {
        for (index, container) in spec.field(list).map_or(&[][..], Node::items).iter().enumerate() {
            // Of the init containers, those that run beside the others have ports, too.
            let stays = container.field("restartPolicy").and_then(Node::text) == Some("Always");
            if list == "initContainers" && !stays {
                continue;
            }
            for (port_index, port) in container.field("ports").map_or(&[][..], Node::items).iter().enumerate() {
                let path = |field| format!("{}.{list}[{index}].ports[{port_index}].{field}", kind.pod_spec());
                let protocol = protocol(port);
                match number(port, "hostPort") {
                    Some((node, number)) => {
                        claims.push(lines.claim(path("hostPort"), node, Claimed::HostPort(number, protocol)));
                    }
                    None if host_network => claims.extend(number(port, "containerPort").map(|(node, number)| {
                        lines.claim(path("containerPort"), node, Claimed::HostNetworkPort(number, protocol))
                    })),
                    None => {}
                }
            }
        }
    }
    claims
}

/// A port that is not 0, which stands for none.
fn number<'a>(of: &'a Node, field: &str) -> Option<(&'a Node, u16)> {
    let node = of.field(field)?;
    let number = u16::try_from(node.number()?).ok().filter(|number| *number != 0)?;
    Some((node, number))
}

fn protocol(port: &Node) -> Protocol {
    match port.field("protocol").and_then(Node::text) {
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        _ => Protocol::Tcp,
    }
}
