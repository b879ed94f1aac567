//! Reports the objects that declare a port, in a cluster without agents. The report is text, or a part of the JSON
//! document of `owner`.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    CheckResult, Style,
    findings_document::Unknown,
    indented_json::write_indented_json,
    outcome::{Open, answer_outcome},
    owner::OwnerDocument,
    terminal::{Ink, tidy},
};
use portreeve_dataplane::{Declaration, DeclaredField};
use portreeve_facts::{Gap, Protocol, Why, text::shell_word};
use portreeve_rules::findings::Severity;

/// The largest number of objects in the text.
const MOST: usize = 64;

/// The objects that declare a port of nodes, according to the API server. No node was scanned.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeclaredEntry {
    /// Every object that claims the port.
    claims: Vec<ClaimEntry>,
    /// Unread input. Unread objects may also claim the port.
    unknown: Vec<Unknown>,
    /// A shell command that scans a node once and then deletes its pod.
    command: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ClaimEntry {
    /// The protocol.
    protocol: Protocol,
    /// The field: `nodePort`, `healthCheckNodePort`, `hostPort`, or `hostNetwork` for a port of a pod on the host's network.
    field: String,
    /// The kind of the object: `Service` or `Pod`.
    kind: String,
    /// The namespace.
    namespace: String,
    /// The name.
    name: String,
    /// The node of a pod; absent for a Service and for a pod that is not scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
}

/// A port, the objects that claim the port, and a command that scans a node.
#[derive(Debug)]
pub struct DeclaredReport<'a> {
    /// The port.
    pub port: u16,
    /// The objects that claim the port.
    pub claims: &'a [Declaration],
    /// The unread input.
    pub unread: &'a [Gap],
    /// The command that scans a node.
    pub command: &'a str,
}

impl DeclaredReport<'_> {
    /// `Clear` if all necessary input was read. If the user has no right to read some input, the result is
    /// `NotChecked`. For an agent's profile, a missing right is normal, but here the user lacks the right.
    pub fn result(&self) -> CheckResult {
        let is_refused = self.unread.iter().any(|gap| gap.why == Why::NotPermitted);
        answer_outcome(is_refused, self.unread.iter().map(Open::of_answer))
    }
}

/// Writes the report as the JSON document of `owner`.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_declared_json(report: &DeclaredReport<'_>, out: &mut dyn Write) -> io::Result<()> {
    let claim = |it: &Declaration| ClaimEntry {
        protocol: it.protocol,
        field: field(it.field).to_owned(),
        kind: kind(it.field).to_owned(),
        namespace: tidy(&it.namespace),
        name: tidy(&it.name),
        node: it.node.as_deref().map(tidy),
    };
    let declared = DeclaredEntry {
        claims: report.claims.iter().map(claim).collect(),
        unknown: report.unread.iter().map(Unknown::of).collect(),
        command: tidy(report.command),
    };
    write_indented_json(&OwnerDocument::declared(report.port, report.result(), declared), out)
}

/// Writes the report as text.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_declared(report: &DeclaredReport<'_>, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let heading = format!("port {}: the objects that declare it; no node was scanned", report.port);
    writeln!(out, "{}", style.paint(Ink::Heading, &heading))?;
    if report.claims.is_empty() {
        writeln!(out, "  no object that was read claims this port")?;
    }
    for it in report.claims.iter().take(MOST) {
        let place = match (&it.node, kind(it.field)) {
            (Some(node), _) => format!("on node {node}"),
            (None, "Pod") => "on no node yet".to_owned(),
            (None, _) => "on each node".to_owned(),
        };
        let who = tidy(&format!("{} {}/{}", kind(it.field), it.namespace, it.name));
        writeln!(out, "  {:<4}  {who}, {} {}", it.protocol, field(it.field), tidy(&place))?;
    }
    if report.claims.len() > MOST {
        writeln!(out, "  and {} more; -o json has all", report.claims.len() - MOST)?;
    }
    for gap in report.unread {
        let line = format!("  not known: {}", tidy(&gap.detail));
        writeln!(out, "{}", style.paint(Ink::Bad(Severity::Warning), &line))?;
    }
    writeln!(
        out,
        "\nOnly a scan of the node shows who listens and who answers. This command scans the node once and deletes its pod:\n"
    )?;
    writeln!(out, "  {}", style.paint(Ink::Command, &tidy(report.command)))
}

/// The shell command that starts a pod, scans the node from the pod, and deletes the pod. kubectl reads the objects
/// with the user's rights, and sends the objects to the pod. The pod runs in the host's network, without root and
/// without capabilities. `port` may contain a protocol, like the argument of `owner`.
pub fn look_once(port: &str, node: &str, namespace: &str, image: &str) -> String {
    let overrides = serde_json::json!({"spec": {
        "nodeName": node, "hostNetwork": true, "activeDeadlineSeconds": 120, "automountServiceAccountToken": false,
        "tolerations": [{"operator": "Exists"}], "securityContext": {"runAsNonRoot": true, "runAsUser": 65534},
    }});
    format!(
        "kubectl get services,endpointslices,pods,nodes -A -o yaml | kubectl run portreeve-look -n {} --rm -i --quiet \
         --restart=Never --image={} --overrides={} -- owner {port} --services - --node {}",
        shell_word(namespace),
        shell_word(image),
        shell_word(&overrides.to_string()),
        shell_word(node),
    )
}

fn field(field: DeclaredField) -> &'static str {
    match field {
        DeclaredField::NodePort => "nodePort",
        DeclaredField::HealthCheckNodePort => "healthCheckNodePort",
        DeclaredField::HostPort => "hostPort",
        DeclaredField::HostNetwork => "hostNetwork",
    }
}

fn kind(field: DeclaredField) -> &'static str {
    match field {
        DeclaredField::NodePort | DeclaredField::HealthCheckNodePort => "Service",
        DeclaredField::HostPort | DeclaredField::HostNetwork => "Pod",
    }
}
