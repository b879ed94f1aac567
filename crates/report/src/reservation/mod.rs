//! The ports that the nodes of a cluster reserve. There are three forms: text, the format of a platform, and a part of
//! a JSON document.

mod forms;

use std::{
    borrow::Cow,
    collections::HashMap,
    io::{self, Write},
};

use schemars::JsonSchema;
use serde::Serialize;

pub use forms::{ReservationForm, reservation_file};

use super::{
    CheckResult, Style,
    findings_document::Unknown,
    indented_json::write_indented_json,
    names::{NAMED, first_nodes},
    outcome::{Open, outcome},
    ports_document::{NodeScan, Part, PortsDocument},
    terminal::{Ink, tidy},
};
use portreeve_facts::{Gap, PortRange, PortSet, RangeSource};
use portreeve_rules::{
    findings::Severity,
    {FleetReservation, GuardRun, NodeGuard, NodeReservation, ReservedList, counted, ports_in_words, range_in_words},
};

/// The ports that nodes reserve, and the nodes whose ports are unknown.
#[derive(Debug)]
pub struct ReservationReport<'a> {
    /// The nodes that were scanned.
    pub fleet: &'a FleetReservation,
    /// The list of ports to reserve on each node.
    pub list: &'a ReservedList,
    /// Nodes whose ports are unknown, with the reason.
    pub unread: &'a [(String, Gap)],
    /// The sentence about agents that were not queried. `None` if every agent was queried.
    pub partial: Option<&'a str>,
    /// The reason why guards were not listed. Each node may then have a guard. `None` if the guards are known.
    pub unread_guards: Option<&'a Gap>,
}

/// The ports that the nodes of a cluster reserve, and one list of ports for all nodes.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReserveEntry<'a> {
    /// The value of `net.ipv4.ip_local_reserved_ports` for all nodes: ports that any node reserves, NodePorts,
    /// hostPorts, and ports of servers. The kernel takes 4,094 bytes in one write; with `--check`, the value may be
    /// longer. The value is empty if no list leaves every node enough ports for outgoing connections. In this case,
    /// Portreeve compares each node with the node's own ports.
    ip_local_reserved_ports: String,
    /// Whether all NodePorts are in the list. A list with all NodePorts can leave too few ports for outgoing
    /// connections. In this case, the value is false, and the list has only the NodePorts of Services, or is empty.
    whole_node_port_range: bool,
    /// True if no scanned node can give a NodePort, a hostPort or a port of a server to outgoing connections. Portreeve
    /// checks only the ports that it knows. On a node with a running guard, NodePorts without a Service are not
    /// checked.
    covered: bool,
    /// One entry for each agent. Nodes without an agent are not included.
    nodes: Vec<NodeEntry<'a>>,
    /// The sentence about agents that were not queried, as text; absent if every agent was queried.
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<String>,
}

/// The ports that one node reserves.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct NodeEntry<'a> {
    /// One node, with its scan.
    #[serde(flatten)]
    scan: Cow<'a, NodeScan>,
    /// The reserved ports; absent if unknown.
    #[serde(flatten)]
    known: Option<KnownEntry>,
    /// The unknown results of the node.
    unknown: Vec<Unknown>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct KnownEntry {
    /// The NodePort range.
    node_port_range: PortRange,
    /// The source of the range.
    node_port_range_source: RangeSource,
    /// The range from which the kernel chooses ports of outgoing connections.
    ip_local_port_range: PortRange,
    /// The currently reserved ports.
    ip_local_reserved_ports: Vec<PortRange>,
    /// The ports that this node should reserve but does not reserve.
    not_reserved: Vec<PortRange>,
    /// The probability that the kernel chooses a NodePort for an outgoing connection: `2768 of 64512 (4.291 %)`.
    chance_per_connection: String,
    /// The guard of the node, `portreeve guard`; absent if no guard is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    guard: Option<GuardEntry>,
}

/// The guard of a node.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct GuardEntry {
    /// Whether a guard runs. With the source `record`, the value is false if the guard's last successful run is older
    /// than three minutes. With the source `pod`, the guard's container runs.
    running: bool,
    /// `record`: root read the guard's record and lock on the node. `pod`: the API server lists a Ready pod of a guard
    /// on the node.
    source: &'static str,
    /// The ports that the guard has reserved since the node booted; absent if the source is `pod`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved: Option<Vec<PortRange>>,
}

/// Writes the report as JSON. `scans` has the time and the version of each node's scan.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_reservation_json(
    result: CheckResult,
    report: &ReservationReport<'_>,
    scans: &[NodeScan],
    out: &mut dyn Write,
) -> io::Result<()> {
    let ranges = |ports: &PortSet| ports.ranges().to_vec();
    let scans: HashMap<&str, &NodeScan> = scans.iter().map(|it| (&*it.node, it)).collect();
    let scan = |node: &str| {
        let name = tidy(node);
        scans.get(&*name).map_or_else(|| Cow::Owned(NodeScan::none(node)), |it| Cow::Borrowed(*it))
    };
    let known = |it: &NodeReservation| NodeEntry {
        scan: scan(&it.node),
        known: Some(KnownEntry {
            node_port_range: it.range.range,
            node_port_range_source: it.range.source,
            ip_local_port_range: it.ephemeral,
            ip_local_reserved_ports: ranges(&it.reserved),
            not_reserved: ranges(&it.lacks(report.list)),
            chance_per_connection: it.chance(),
            guard: it.guard.as_ref().map(|NodeGuard { run, ports }| GuardEntry {
                running: *run == GuardRun::Runs,
                source: if ports.is_some() { "record" } else { "pod" },
                reserved: ports.as_ref().map(ranges),
            }),
        }),
        unknown: it.unread.iter().chain(report.unread_guards.filter(|_| !report.covers(it))).map(Unknown::of).collect(),
    };
    let unread =
        |(node, gap): &(String, Gap)| NodeEntry { scan: scan(node), known: None, unknown: vec![Unknown::of(gap)] };
    let reserve = ReserveEntry {
        ip_local_reserved_ports: report.list.ports.to_string(),
        whole_node_port_range: report.list.whole_range,
        covered: report.is_covered(),
        nodes: report.fleet.nodes.iter().map(known).chain(report.unread.iter().map(unread)).collect(),
        partial: report.partial.map(tidy),
    };
    write_indented_json(&PortsDocument::new(result, report.fleet.nodes.len(), Part::Reserve(reserve)), out)
}

/// Writes the nodes in groups, with their settings and ports, as text. Nodes that are not covered come first.
///
/// # Errors
/// Fails if the writer fails.
pub fn write_reservation(report: &ReservationReport<'_>, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    for (index, group) in report.groups().into_iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        let (ink, word) = match report.covers(group[0]) {
            true if may_need_more(group[0]) => (Ink::Plain, "perhaps covered"),
            true => (Ink::Good, "covered"),
            false if !report.is_exposed(group[0]) => (Ink::Plain, "perhaps not covered"),
            false if group[0].lacks(report.list).is_empty() => (Ink::Bad(Severity::Warning), "partly covered"),
            false => (Ink::Bad(Severity::Warning), "not covered"),
        };
        let names: Vec<String> = group.iter().map(|node| tidy(&node.node)).collect();
        let total = report.fleet.nodes.len();
        let whose = match names.as_slice() {
            [name] => format!("node {name}"),
            names => format!("{} of {total} nodes: {}", names.len(), first_nodes(names, NAMED)),
        };
        writeln!(out, "{}  {}", style.paint(ink, word), style.paint(Ink::Heading, &whose))?;
        for (name, value) in report.values(group[0]) {
            writeln!(out, "  {name:<24} {value}")?;
        }
    }
    Ok(())
}

/// Whether unread input may hide more ports that the node should reserve.
fn may_need_more(node: &NodeReservation) -> bool {
    node.unread.as_ref().is_some_and(|gap| Open::beside_answer(gap).decides(Severity::Warning))
}

impl<'a> ReservationReport<'a> {
    /// The report about nodes that were all scanned.
    pub fn of(fleet: &'a FleetReservation, list: &'a ReservedList) -> Self {
        Self { fleet, list, unread: &[], partial: None, unread_guards: None }
    }

    /// Whether each scanned node reserves all ports of the list, and does not give other NodePorts to outgoing
    /// connections. A node with a guard needs only NodePorts of Services and ports of servers.
    pub fn is_covered(&self) -> bool {
        self.fleet.nodes.iter().all(|node| self.covers(node))
    }

    fn covers(&self, node: &NodeReservation) -> bool {
        node.lacks(self.list).is_empty() && node.left_exposed(self.list).is_empty()
    }

    /// Whether the node is certainly not covered. If the guards are unknown, the node would not be covered with a guard
    /// either.
    fn is_exposed(&self, node: &NodeReservation) -> bool {
        let with_guard = || node.clone().with_guard(NodeGuard::of_ready_pod());
        !self.covers(node) && (self.unread_guards.is_none() || !self.covers(&with_guard()))
    }

    /// The result. With `check`, a node that is certainly not covered is a finding. Without a finding, the result is
    /// `Clear` if every node was scanned, the list is certainly complete, and with `check`, every node is covered.
    pub fn result(&self, check: bool) -> CheckResult {
        let counts = Severity::Warning;
        let lacks = !self.unread.is_empty() || self.partial.is_some() || self.fleet.ranges_differ();
        let found = (check && self.fleet.nodes.iter().any(|node| self.is_exposed(node))).then_some(counts);
        outcome(found, counts, || lacks || check && !self.is_covered() || self.fleet.nodes.iter().any(may_need_more))
    }

    /// Groups of nodes with equal ports. Nodes that are not covered are first.
    fn groups(&self) -> Vec<Vec<&'a NodeReservation>> {
        let mut groups: Vec<Vec<&NodeReservation>> = Vec::new();
        for node in &self.fleet.nodes {
            let is_equal = |other: &NodeReservation| {
                other.is_like(node)
                    && other.lacks(self.list) == node.lacks(self.list)
                    && self.is_exposed(other) == self.is_exposed(node)
            };
            match groups.iter_mut().find(|group| is_equal(group[0])) {
                Some(group) => group.push(node),
                None => groups.push(vec![node]),
            }
        }
        groups.sort_by_key(|group| (group[0].lacks(self.list).is_empty(), self.covers(group[0])));
        groups
    }

    fn values(&self, node: &NodeReservation) -> Vec<(&'static str, String)> {
        let mut values = vec![
            ("ip_local_port_range", node.ephemeral.to_string()),
            ("ip_local_reserved_ports", ports_in_words(&node.reserved)),
            ("NodePort range", tidy(&range_in_words(&node.range))),
        ];
        if let Some(NodeGuard { run, ports }) = &node.guard {
            let reserved = |state: &str| match ports {
                Some(ports) => format!("{state}; it reserved {} of the reserved ports", ports.len()),
                None => format!("{state}, according to its pod"),
            };
            let state = match run {
                GuardRun::Runs => reserved("runs"),
                GuardRun::Stuck(age) => {
                    let minutes = age.as_secs() / 60;
                    reserved(&format!("holds its lock but has had no successful run for {minutes} minutes"))
                }
                GuardRun::Ended => reserved("does not run"),
            };
            values.push(("guard", state));
        }
        if let Some(gap) = self.unread_guards
            && !self.covers(node)
        {
            values.push(("guard", format!("unknown: {}", tidy(&gap.detail))));
        }
        if !node.lacks(self.list).is_empty() {
            values.push(("not reserved", counted(&node.lacks(self.list))));
        }
        let left = node.left_exposed(self.list).len();
        if left > 0 {
            values.push((
                "left out",
                format!("{left} NodePorts that no Service has: with all of them, too few ports would be left"),
            ));
        }
        if !self.covers(node) {
            values.push(("chance of any NodePort", node.chance()));
        }
        if let Some(gap) = &node.unread {
            values.push(("unknown", format!("ports of servers: {}", tidy(&gap.detail))));
        }
        values
    }
}
