//! From a tree to a manifest: which of its fields claim a port or an address, where each is written, and which of them the API
//! server does not take (Kubernetes 1.36 `pkg/apis/core/validation/validation.go`).

use std::{collections::HashSet, net::IpAddr};

use super::node::Node;
use crate::objects::{lenient_ip, short};
use portreeve_facts::{
    ACCEPT, Accepts, Claim, Claimed, FileName, Place, Protocol, Refusal, Refused, WorkloadKind, text,
};

/// The longest name of a rule that is kept, in bytes, and how many names of one object.
const RULE: usize = 64;
const MOST_RULES: usize = 64;

/// The fields of one object.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) claims: Vec<Claim>,
    pub(super) refused: Vec<Refused>,
}

impl Fields {
    fn add(&mut self, claim: Claim, refusal: Option<Refusal>) {
        match refusal {
            Some(why) => self.refused.push(Refused { claim, why }),
            None => self.claims.push(claim),
        }
    }
}

/// Makes places of a document's lines.
pub(super) struct Lines<'a> {
    pub(super) file: &'a FileName,
    /// The line on which the document begins.
    pub(super) first: u64,
    /// The template that helm rendered it from.
    pub(super) template: Option<FileName>,
}

impl Lines<'_> {
    pub(super) fn place(&self, node: &Node) -> Place {
        let (line, column) = node.at;
        let line = self.first + line.saturating_sub(1);
        Place { file: self.file.clone(), line, column, width: node.width, template: self.template.clone() }
    }

    fn claim(&self, path: String, node: &Node, what: Claimed) -> Claim {
        Claim { path, place: self.place(node), what, of_port: None }
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

/// Those of a Service. What is no port or no address is named by whoever converts the object.
pub(super) fn of_service(object: &Node, lines: &Lines<'_>) -> Fields {
    let mut fields = Fields::default();
    let Some(spec) = object.field("spec") else { return fields };
    let text = |key| spec.field(key).and_then(Node::text);
    let refusal = match text("type") {
        None | Some("ClusterIP") => Some(Refusal::NodePortOf("ClusterIP")),
        Some("ExternalName") => Some(Refusal::NodePortOf("ExternalName")),
        Some(_) => None,
    };
    let (mut ports, mut names) = (HashSet::new(), HashSet::new());
    for (index, port) in spec.field("ports").map_or(&[][..], Node::items).iter().enumerate() {
        if let Some((node, number)) = number(port, "port") {
            let what = Claimed::ServicePort(number, protocol(port));
            let mut refuse = |field: &str, node: &Node, why: Refusal| {
                fields.add(lines.claim(format!("spec.ports[{index}].{field}"), node, what), Some(why));
            };
            if !ports.insert(what.port()) {
                refuse("port", node, Refusal::PortTwice);
            }
            let name = port.field("name").filter(|name| name.text().is_some_and(|text| !text.is_empty()));
            if let Some(name) = name.filter(|name| !names.insert(name.text())) {
                refuse("name", name, Refusal::NameTwice);
            }
        }
        if let Some((node, node_port)) = number(port, "nodePort") {
            let path = format!("spec.ports[{index}].nodePort");
            let claim = lines.claim(path, node, Claimed::NodePort(node_port, protocol(port)));
            let name = port.field("name").and_then(Node::text).map(short).unwrap_or_default();
            let of_port = number(port, "port").map(|(_, number)| (name, number));
            fields.add(Claim { of_port, ..claim }, refusal);
        }
    }
    if let Some((node, number)) = number(spec, "healthCheckNodePort") {
        let is_asked = (text("type"), text("externalTrafficPolicy")) == (Some("LoadBalancer"), Some("Local"));
        let claim = lines.claim("spec.healthCheckNodePort".to_owned(), node, Claimed::HealthCheckNodePort(number));
        fields.add(claim, (!is_asked).then_some(Refusal::HealthCheck));
    }
    for (index, node) in spec.field("externalIPs").map_or(&[][..], Node::items).iter().enumerate() {
        if let Some(ip) = node.text().and_then(lenient_ip) {
            fields.add(lines.claim(format!("spec.externalIPs[{index}]"), node, Claimed::ExternalIp(ip)), None);
        }
    }
    fields
}

/// Those of the pods of a workload.
pub(super) fn of_pods(kind: WorkloadKind, object: &Node, lines: &Lines<'_>) -> Fields {
    let mut fields = Fields::default();
    let Some(spec) = object.at_path(kind.pod_spec()) else { return fields };
    let host_network = spec.field("hostNetwork").is_some_and(Node::is_true);
    for list in ["containers", "initContainers"] {
        // Containers run together. Those that begin are compared with nobody.
        let mut together = HashSet::new();
        for (index, container) in spec.field(list).map_or(&[][..], Node::items).iter().enumerate() {
            if list == "initContainers" {
                // Of these, those that run beside the others have ports, too.
                if container.field("restartPolicy").and_then(Node::text) != Some("Always") {
                    continue;
                }
                together.clear();
            }
            for (port_index, port) in container.field("ports").map_or(&[][..], Node::items).iter().enumerate() {
                let path = |field| format!("{}.{list}[{index}].ports[{port_index}].{field}", kind.pod_spec());
                let Some((field, node, what)) = of_port(port, host_network) else { continue };
                let claim = lines.claim(path(field), node, what);
                let refusal = not_the_port(port, host_network && list == "containers")
                    .or_else(|| (!together.insert((what.port(), host_ip(port)))).then_some(Refusal::Twice));
                fields.add(claim, refusal);
            }
        }
    }
    fields
}

/// What an entry of `ports` wants of the node, with the field that says so.
fn of_port(port: &Node, host_network: bool) -> Option<(&'static str, &Node, Claimed)> {
    let protocol = protocol(port);
    match number(port, "hostPort") {
        Some((node, number)) => Some(("hostPort", node, Claimed::HostPort(number, protocol, host_ip(port)))),
        None if host_network => {
            let (node, number) = number(port, "containerPort")?;
            Some(("containerPort", node, Claimed::HostNetworkPort(number, protocol)))
        }
        None => None,
    }
}

fn not_the_port(port: &Node, host_network: bool) -> Option<Refusal> {
    let (_, host_port) = number(port, "hostPort").filter(|_| host_network)?;
    let (_, container_port) = number(port, "containerPort")?;
    (host_port != container_port).then_some(Refusal::NotThePort(container_port))
}

fn host_ip(port: &Node) -> Option<IpAddr> {
    port.field("hostIP").and_then(Node::text).and_then(lenient_ip)
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
