//! The owners of a port on several nodes, as text.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use super::{
    Style,
    likeness::likeness,
    names::{NAMED, first_nodes},
    owner::{NodeOwner, write_owner},
    terminal::{Ink, tidy},
};
use portreeve_rules::findings::Severity;

/// Nodes whose texts are equal, except for names and addresses of nodes and pods.
struct Alike<'a> {
    nodes: Vec<&'a str>,
    first: &'a NodeOwner,
    text: String,
    /// Whether the texts are equal, including the names and addresses of nodes and pods.
    same: bool,
}

/// Writes the text of all nodes. If several nodes have equal texts, the text of the first node is written once.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn write_owners(owners: &[NodeOwner], style: &Style, out: &mut dyn Write) -> io::Result<()> {
    for (index, Alike { nodes, first, same, .. }) in alike(owners)?.into_iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        let heading = match nodes.as_slice() {
            [""] => first_nodes(&nodes, NAMED),
            [node] => format!("node {}", tidy(node)),
            nodes => {
                let names = tidy(&first_nodes(nodes, NAMED));
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
            let why = format!("not known: {}", tidy(&gap.detail));
            writeln!(out, "  {}", style.paint(Ink::Bad(Severity::Warning), &why))
        }
    }
}
