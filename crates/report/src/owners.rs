//! Who owns a port of each of several nodes: for people, and as one JSON document, `portreeve.owners/v1`.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use super::{
    Style,
    findings_document::Unknown,
    indented_json::write_indented_json,
    likeness::likeness,
    names::{NAMED, first_names},
    owner::{AdviceEntry, PortOwner, ProtocolEntry, advised, protocols, redirections_not_read, unread, write_owner},
    terminal::{Ink, tidy},
};
use portreeve_facts::{Gap, Mode};
use portreeve_rules::findings::Severity;

/// Who owns a port of one node, or why that is not known.
#[derive(Debug)]
pub struct NodeOwner {
    /// The node.
    pub node: String,
    /// As for a single node.
    pub owner: Result<PortOwner, Gap>,
}

/// Who claims a port of each node that has an agent, who answers, who loses, and what to do.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(title = "Portreeve owners of a port")]
struct OwnersDocument {
    /// Always `portreeve.owners/v1`.
    #[schemars(extend("const" = "portreeve.owners/v1"))]
    schema: String,
    /// The port.
    port: u16,
    /// The pod in whose own network the port is, `namespace/name`; absent on nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    /// One entry for each agent. Of nodes without one nothing is known.
    nodes: Vec<NodeEntry>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct NodeEntry {
    /// The node's name.
    node: String,
    /// The proxy's mode; absent where it is not known or nothing could be reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_mode: Option<Mode>,
    /// The proxy's mode and how it is known, for people; absent where nothing could be reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_mode_in_words: Option<String>,
    /// One entry a protocol; absent where nothing could be reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocols: Option<Vec<ProtocolEntry>>,
    /// Why redirections of hostPorts were not read, for people, where pods of the node have hostPorts: none is assumed to be left behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    redirections_not_read: Option<String>,
    /// What to do, by the case in which it helps; absent where nothing could be reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<Vec<AdviceEntry>>,
    /// What was not read and may claim the port too, or why nothing could be reported.
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
        proxy_mode: it.owner.as_ref().ok().and_then(|it| it.owned.first()?.proxy_mode),
        proxy_mode_in_words: it.owner.as_ref().ok().and_then(|it| Some(tidy(&it.owned.first()?.mode))),
        protocols: it.owner.as_ref().ok().map(|it| protocols(&it.owned)),
        redirections_not_read: it.owner.as_ref().ok().and_then(|it| redirections_not_read(&it.owned)),
        advice: it.owner.as_ref().ok().map(|it| advised(&it.advice)),
        unknown: match &it.owner {
            Ok(owner) => unread(&owner.owned).iter().map(Unknown::of).collect(),
            Err(gap) => vec![Unknown::of(gap)],
        },
    };
    let nodes = owners.iter().map(node).collect();
    let pod = owners.iter().find_map(|it| it.owner.as_ref().ok()?.pod.as_deref()).map(tidy);
    let document = OwnersDocument { schema: "portreeve.owners/v1".to_owned(), port, pod, nodes };
    write_indented_json(&document, out)
}

/// Nodes of which the same is true, but for names and addresses of nodes and pods.
struct Alike<'a> {
    nodes: Vec<&'a str>,
    /// The first of them.
    first: &'a NodeOwner,
    /// Its text.
    text: String,
    /// Whether all have the very same.
    same: bool,
}

/// Writes it for people: once for all nodes of which the same is true, as it is on the first of them.
///
/// # Errors
/// When the writer fails.
pub fn write_owners(owners: &[NodeOwner], style: &Style, out: &mut dyn Write) -> io::Result<()> {
    for (index, Alike { nodes, first, same, .. }) in alike(owners)?.into_iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        let heading = match nodes.as_slice() {
            [node] => format!("node {}", tidy(node)),
            nodes => {
                let names = tidy(&first_names(nodes, NAMED));
                let whose = if same { String::new() } else { format!("; as on {}", tidy(nodes[0])) };
                format!("{} of {} nodes: {names}{whose}", nodes.len(), owners.len())
            }
        };
        writeln!(out, "{}", style.paint(Ink::Heading, &heading))?;
        write_one(first, style, out)?;
    }
    Ok(())
}

fn alike(owners: &[NodeOwner]) -> io::Result<Vec<Alike<'_>>> {
    let plain = Style { width: usize::from(u16::MAX), colour: false, program: String::new() };
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut all: Vec<Alike<'_>> = Vec::new();
    for owner in owners {
        let mut text = Vec::new();
        write_one(owner, &plain, &mut text)?;
        let text = String::from_utf8(text).map_err(io::Error::other)?;
        let place = *places.entry(likeness(&text, &owner.node)).or_insert(all.len());
        match all.get_mut(place) {
            Some(alike) => {
                alike.nodes.push(&owner.node);
                alike.same &= alike.text == text;
            }
            None => all.push(Alike { nodes: vec![&owner.node], first: owner, text, same: true }),
        }
    }
    Ok(all)
}

fn write_one(NodeOwner { owner, .. }: &NodeOwner, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    match owner {
        Ok(owner) => write_owner(owner, style, out),
        Err(gap) => {
            let why = format!("cannot be told: {}", tidy(&gap.detail));
            writeln!(out, "  {}", style.paint(Ink::Bad(Severity::Warning), &why))
        }
    }
}
