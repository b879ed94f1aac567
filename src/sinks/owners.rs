//! Who owns a port of each of several nodes: for people, and as one JSON document, `portreeve.owners/v1`.

use std::io::{self, Write};

use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use super::{
    Style,
    findings_document::Unknown,
    indented_json::write_indented_json,
    owner::{ProtocolEntry, protocols, write_owner},
    terminal::{Ink, tidy},
};
use crate::{dataplane::Ownership, facts::Gap, findings::Severity};

/// Who owns a port of one node, or why that is not known.
#[derive(Debug)]
pub struct NodeOwner {
    /// The node.
    pub node: String,
    /// By protocol, as for a single node.
    pub owned: Result<Vec<Ownership>, Gap>,
}

/// Who claims a port of each node that has an agent, who answers, and who loses.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(title = "Portreeve owners of a port")]
struct OwnersDocument {
    /// Always `portreeve.owners/v1`.
    #[schemars(extend("const" = "portreeve.owners/v1"))]
    schema: String,
    /// The port.
    port: u16,
    /// One entry for each agent. Of nodes without one nothing is known.
    nodes: Vec<NodeEntry>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct NodeEntry {
    /// The node's name.
    node: String,
    /// The proxy's mode and how it is known, for people; absent where nothing could be reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_mode: Option<String>,
    /// One entry a protocol; absent where nothing could be reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocols: Option<Vec<ProtocolEntry>>,
    /// Why nothing could be reported.
    unknown: Vec<Unknown>,
}

/// The JSON Schema of the document.
pub fn owners_schema() -> Schema {
    schema_for!(OwnersDocument)
}

/// Writes the document.
///
/// # Errors
/// When the writer fails.
pub fn write_owners_json(port: u16, owners: &[NodeOwner], out: &mut dyn Write) -> io::Result<()> {
    let node = |it: &NodeOwner| NodeEntry {
        node: tidy(&it.node),
        proxy_mode: it.owned.as_ref().ok().and_then(|owned| Some(tidy(&owned.first()?.mode))),
        protocols: it.owned.as_ref().ok().map(|owned| protocols(owned)),
        unknown: it.owned.as_ref().err().map(Unknown::of).into_iter().collect(),
    };
    let nodes = owners.iter().map(node).collect();
    let document = OwnersDocument { schema: "portreeve.owners/v1".to_owned(), port, nodes };
    write_indented_json(&document, out)
}

/// Writes it for people, node by node.
///
/// # Errors
/// When the writer fails.
pub fn write_owners(owners: &[NodeOwner], style: &Style, out: &mut dyn Write) -> io::Result<()> {
    for (index, NodeOwner { node, owned }) in owners.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", style.paint(Ink::Heading, &format!("node {}", tidy(node))))?;
        match owned {
            Ok(owned) => write_owner(owned, style, out)?,
            Err(gap) => {
                let why = format!("cannot be told: {}", tidy(&gap.detail));
                writeln!(out, "  {}", style.paint(Ink::Bad(Severity::Warning), &why))?;
            }
        }
    }
    Ok(())
}
