//! The JSON document `portreeve.ports/v1` of `map`, `suggest`, `reserve` and `what-if`. Each command has its own part
//! of the document. Later versions of v1 only add fields.

use std::{
    io::{self, Write},
    slice,
    sync::Arc,
};

use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use super::{
    CheckResult,
    findings_document::{Range, Unknown, UnknownOn},
    indented_json::write_indented_json,
    map::PortState,
    outcome::{Open, answer_outcome},
    reservation::ReserveEntry,
    terminal::tidy,
    what_if::WhatIfDocument,
};
use portreeve_facts::{Gap, PortRange, Snapshot, Source, VERSION};
use portreeve_rules::{FreePorts, PortUsage};

/// Ports of nodes. The `verb` says which part follows: the use of ports, free ports, reserved ports, or predicted
/// changes.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(title = "Portreeve ports")]
pub(super) struct PortsDocument<'a> {
    /// Always `portreeve.ports/v1`.
    #[schemars(extend("const" = "portreeve.ports/v1"))]
    schema: &'static str,
    /// The version of the program that wrote the document.
    version: &'static str,
    /// The result. `findings`: `reserve --check` or `what-if` has a finding. `not-checked`: there is no finding, and an
    /// input is unknown. `clear`: every other case. The exit code agrees.
    result: CheckResult,
    /// How many of the nodes were judged.
    judged: usize,
    #[serde(flatten)]
    part: Part<'a>,
}

/// A node, with the time and the version of its scan.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeScan {
    /// The node's name.
    pub node: Arc<str>,
    /// The version of the program that made the scan; absent if the node was not scanned, and in scans of older
    /// versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// The time at which the scan began, RFC 3339; absent if the node was not scanned.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    looked_at: Option<String>,
}

impl NodeScan {
    /// The node of a snapshot, with the time and the version of the scan.
    pub fn of(snapshot: &Snapshot) -> Self {
        let (version, looked_at) = (snapshot.version.as_deref().map(tidy), Some(format!("{:.0}", snapshot.at)));
        Self { version, looked_at, ..Self::none(snapshot.node_name()) }
    }

    /// A node that was not scanned.
    pub fn none(node: &str) -> Self {
        Self { node: tidy(node).into(), version: None, looked_at: None }
    }
}

/// The part of the document for one command.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub(super) enum Part<'a> {
    /// The use of each port of a node's NodePort range.
    Map(MapEntry<'a>),
    /// Free ports.
    Suggest(SuggestEntry<'a>),
    /// Reserved ports of nodes.
    Reserve(ReserveEntry<'a>),
    /// The predicted changes.
    WhatIf(&'a WhatIfDocument),
}

/// The use of each port of a node's NodePort range.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MapEntry<'a> {
    /// The node's name, as in `nodes`.
    node: Arc<str>,
    /// One node, with its scan.
    nodes: &'a [NodeScan],
    /// The NodePort range.
    node_port_range: Range,
    /// The static band; absent if the range is too small for bands. The API server chooses ports in this band last.
    #[serde(skip_serializing_if = "Option::is_none")]
    static_band: Option<PortRange>,
    /// Entries for the whole range. Neighbouring ports with an equal state and owner are one entry.
    ports: Vec<PortsEntry>,
    /// The unread input. The map lacks the facts of this input.
    unknown: Vec<Unknown>,
}

#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct PortsEntry {
    /// The lowest port.
    first: u16,
    /// The highest port.
    last: u16,
    /// The use of the ports.
    state: PortState,
    /// The Service, `namespace/name`, that has the port as a nodePort or healthCheckNodePort.
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    /// Another user of the port, as text. The proxy does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    taken: Option<String>,
}

/// Free ports.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SuggestEntry<'a> {
    /// The free ports: as many as the user wants, or all free ports.
    ports: Vec<u16>,
    /// The nodes and their scans.
    nodes: &'a [NodeScan],
    /// The unread input of nodes. A listed port may be in use on a node with unread input.
    unknown: Vec<UnknownOn<'a>>,
}

/// The JSON Schema (draft 2020-12) of the document.
pub fn ports_schema() -> Schema {
    schema_for!(PortsDocument<'_>)
}

/// Writes the map of a node.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_map_json(node: &NodeScan, usage: &PortUsage, out: &mut dyn Write) -> io::Result<()> {
    let map = MapEntry {
        node: Arc::clone(&node.node),
        nodes: slice::from_ref(node),
        node_port_range: Range::of(&usage.range),
        static_band: usage.static_band,
        ports: ports(usage),
        unknown: usage.unread.iter().map(Unknown::of).collect(),
    };
    write_indented_json(&PortsDocument::new(super::map_result(usage), 1, Part::Map(map)), out)
}

/// The result of `suggest`. `Clear` if the requested number of ports was found, and no unread input could show that a
/// port is in use. For a server on a node, the hostPorts of pods must also have been read.
pub fn free_ports_result(free: &FreePorts, lacks: bool) -> CheckResult {
    let hides_host_ports = free.is_of_hosts() && free.hides(Source::Pods);
    let open = free.unread.iter().map(|(_, gap)| Open::beside_answer(gap));
    answer_outcome(lacks || hides_host_ports || !free.is_known(), open)
}

/// Writes free ports, the nodes, the unread input of each node, and the number of judged nodes.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_free_ports_json(
    result: CheckResult,
    ports: Vec<u16>,
    (nodes, judged): (&[NodeScan], usize),
    unread: &[(String, Gap)],
    out: &mut dyn Write,
) -> io::Result<()> {
    let unread: Vec<(String, Unknown)> = unread.iter().map(|(node, gap)| (tidy(node), Unknown::of(gap))).collect();
    let unknown = unread.iter().map(|(node, what)| UnknownOn { node, what }).collect();
    let suggest = SuggestEntry { ports, nodes, unknown };
    write_indented_json(&PortsDocument::new(result, judged, Part::Suggest(suggest)), out)
}

impl<'a> PortsDocument<'a> {
    pub(super) fn new(result: CheckResult, judged: usize, part: Part<'a>) -> Self {
        Self { schema: "portreeve.ports/v1", version: VERSION, result, judged, part }
    }
}

fn ports(usage: &PortUsage) -> Vec<PortsEntry> {
    let mut entries: Vec<PortsEntry> = Vec::new();
    for port in usage.range.range.iter() {
        let used = usage.used.get(&port);
        let entry = PortsEntry {
            first: port,
            last: port,
            state: PortState::of(usage, port),
            service: used.and_then(|used| Some(tidy(&used.allocated.as_ref()?.0))),
            taken: used.and_then(|used| used.taken.as_deref().map(tidy)),
        };
        match entries.last_mut() {
            Some(last) if (last.state, &last.service, &last.taken) == (entry.state, &entry.service, &entry.taken) => {
                last.last = port;
            }
            _ => entries.push(entry),
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::Snapshot;
    use portreeve_rules::port_usage;

    #[test]
    fn a_map_covers_the_range_once_with_neighbours_that_are_alike_together() {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
        let usage = port_usage(&world).expect("the range is known");
        let entries = ports(&usage);
        let mut next = usage.range.range.first;
        for entry in &entries {
            assert_eq!(entry.first, next);
            next = entry.last + 1;
        }
        assert_eq!(next, usage.range.range.last + 1);
        let of_web: Vec<&PortsEntry> = entries.iter().filter(|it| it.service.is_some()).collect();
        assert_eq!((of_web.len(), of_web[0].first, of_web[0].last), (1, 30080, 30080));
        assert_eq!(of_web[0].service.as_deref(), Some("default/web"));
        assert!(of_web[0].taken.as_deref().is_some_and(|it| it.ends_with("listens")), "{of_web:?}");
        assert!(entries.len() < 10, "{entries:?}");
    }
}
