//! Portreeve's results for a snapshot, and the differences from the recorded answers to test packets.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use portreeve_agent::judge;
use portreeve_dataplane::{Answered, Outcome, Stratum, owner};
use portreeve_facts::{Gap, Protocol, Snapshot};
use portreeve_rules::{
    Limits,
    findings::{Finding, Severity, Vantage},
    ledger::Board,
};

use super::recording::{Recording, Row};

pub struct Judged<'a> {
    pub row: &'a Row,
    pub cells: Vec<Cell>,
    /// The losses that the test packets show, and that Portreeve can know and must report.
    pub shown: Loss,
    /// All losses that the test packets show.
    pub most: Loss,
    pub reported: Loss,
}

pub struct Cell {
    pub from: Vantage,
    pub to: IpAddr,
    pub shown: char,
    pub reported: char,
    /// Whether Portreeve's answer is unknown, and the test permits an unknown answer.
    pub is_unsure: bool,
}

/// The severity of a loss, and the vantage points whose connections do not reach the listener.
pub type Loss = Option<(Severity, BTreeSet<Vantage>)>;

impl Judged<'_> {
    pub fn is_part(&self) -> bool {
        is_part(&self.reported, &self.most)
    }
}

fn is_part(part: &Loss, whole: &Loss) -> bool {
    match (part, whole) {
        (Some((severity, from)), Some((worst, all))) => severity <= worst && from.is_subset(all),
        (part, _) => part.is_none(),
    }
}

impl fmt::Display for Judged<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { bind, protocol, shape, port, .. } = self.row;
        write!(f, "{bind}, {protocol}, {shape}, port {port}")
    }
}

pub fn listeners<'a>(
    recording: &'a Recording,
    snapshot: &'a Snapshot,
    board: &'a Board,
) -> impl Iterator<Item = Judged<'a>> {
    rows(recording).map(move |row| {
        let owned = owned(snapshot, row.protocol, row.port);
        let cell = |(from, to, shown)| {
            let reported = answer(&owned, from, to);
            Cell { from, to, shown, reported, is_unsure: reported == '?' && is_unsure(recording, row, from, to) }
        };
        let cells: Vec<Cell> = recording.cells(row).map(cell).collect();
        let matters = |cell: &&Cell| !cell.is_unsure && !is_meant(recording, row);
        let (most, shown) = (loss(cells.iter()), loss(cells.iter().filter(matters)));
        Judged { row, cells, shown, most, reported: reported(board, row.protocol, row.port) }
    })
}

/// Whether the listener needs no finding, although it loses connections. A load balancer's address that no Node has is
/// on a link only for the Service. A process that listens on every address still gets the connections to the node's own
/// addresses.
fn is_meant(recording: &Recording, row: &Row) -> bool {
    recording.world == APART && row.shape.starts_with("balancer") && ["0.0.0.0", "::"].contains(&row.bind.as_str())
}

fn rows(recording: &Recording) -> impl Iterator<Item = &Row> {
    recording.listeners.iter().filter(|row| !is_open(recording, row))
}

#[track_caller]
pub fn disagreements(recording: &Recording, snapshot: &Snapshot) -> Vec<String> {
    let board = judge(snapshot, &Limits::default());
    let mut wrong = Vec::new();
    for listener in listeners(recording, snapshot, &board) {
        for Cell { from, to, shown, reported, is_unsure } in &listener.cells {
            if shown != reported && !is_unsure {
                wrong.push(format!("{listener}: {from} to {to}\n  packets: {shown}\n  owner:   {reported}"));
            }
        }
        let Judged { shown, reported, .. } = &listener;
        if !is_part(shown, reported) || !listener.is_part() {
            wrong.push(format!("{listener}\n  packets: {shown:?}\n  rules:   {reported:?}"));
        }
    }
    wrong
}

pub fn compared(recording: &Recording) -> usize {
    rows(recording).map(|row| recording.cells(row).count()).sum()
}

/// Whether packets show a fact that Portreeve does not know yet. An external IP can be an address at which Cilium also
/// serves NodePorts. At ports of the NodePort range, Cilium then does not serve the external IP (cilium#44730). Cilium
/// serves no external IP of a disabled family. If another node answers remote clients directly (DSR), packets of these
/// clients were not recorded, but the rules report these clients.
fn is_open(recording: &Recording, row: &Row) -> bool {
    let is = |key: &str, word: &str| recording.settings.get(key).is_some_and(|it| it == word);
    match row.shape.as_str() {
        "external-ip" => is("enable-ipv6", "false") || recording.settings.contains_key("nodeport-addresses"),
        "far" | "internal-local" => is("bpf-lb-mode", "dsr"),
        _ => false,
    }
}

/// The recorded node on which Cilium serves some Services only in part. The load balancers of this node also have
/// addresses of a second device.
const APART: &str = "cilium/world-apart";

/// Addresses of load balancers on a device that Cilium does not use.
const BEYOND: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 244, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, 1))];

/// Whether Portreeve's answer may be unknown. Without socket load balancing, an older Cilium serves other addresses to
/// pods than a newer Cilium, and the settings do not show the version. Cilium's annotations can limit a Service to some
/// nodes, and add endpoints of other clusters. Portreeve does not know the nodes and the endpoints of a Service with
/// these annotations. If two Services have the same address and port, Portreeve does not know which Service is older.
/// If Cilium does not use a device, Portreeve knows no answer at the load balancers' addresses on the device.
fn is_unsure(recording: &Recording, row: &Row, from: Vantage, to: IpAddr) -> bool {
    let is_set = recording.settings.get("bpf-lb-sock-hostns-only").is_some_and(|it| it == "true");
    match row.shape.as_str() {
        "on-other-nodes" | "global" | "global-empty" | "rivals" => true,
        "external-ip-beyond" | "balancer-beyond" if is_set && from == Vantage::Pods => true,
        _ if recording.world == APART && BEYOND.contains(&to) => from == Vantage::Remote,
        _ => !recording.version.is_empty() && is_set && from == Vantage::Pods,
    }
}

fn owned(snapshot: &Snapshot, protocol: Protocol, port: u16) -> BTreeMap<(Vantage, IpAddr), char> {
    let owned = owner(&Limits::default().round(snapshot, None), protocol, port).expect("it can be told");
    let letter = |outcome: &Result<Outcome, Gap>, to| match outcome {
        Ok(Outcome::Listener) => 'L',
        Ok(Outcome::Pod) => 'P',
        Ok(Outcome::Refused) => 'R',
        // A connection to a link-local address may fail with an error, or time out.
        Ok(Outcome::TimedOut) if is_link_local(to) => 'N',
        Ok(Outcome::TimedOut) => 'T',
        Ok(Outcome::Nowhere) => 'N',
        Ok(Outcome::Unreachable) => 'N',
        Err(_) => '?',
    };
    // An answer that depends on an assumption about the node's addresses counts as unknown.
    let reported = |it: &Answered| if it.assumed == Stratum::Served { '?' } else { letter(&it.outcome, it.to) };
    owned.answers.iter().map(|it| ((it.from, it.to), reported(it))).collect()
}

/// A loopback address that is not listed has the answer of 127.0.0.1.
fn answer(owned: &BTreeMap<(Vantage, IpAddr), char>, from: Vantage, to: IpAddr) -> char {
    let listed = [to, IpAddr::from(Ipv4Addr::LOCALHOST)].into_iter().take(1 + usize::from(to.is_loopback()));
    listed.filter_map(|to| owned.get(&(from, to))).next().copied().unwrap_or('?')
}

fn loss<'a>(cells: impl Iterator<Item = &'a Cell>) -> Loss {
    let lost: Vec<_> = cells.filter(|cell| cell.shown != 'L').collect();
    // If only connections of the node to its own link-local address are lost, no warning is needed.
    let matters = lost.iter().any(|cell| cell.from != Vantage::Node || !is_link_local(cell.to));
    let from: BTreeSet<Vantage> = lost.iter().map(|cell| cell.from).collect();
    let severity = if from.contains(&Vantage::Remote) { Severity::Critical } else { Severity::Warning };
    matters.then_some((severity, from))
}

fn reported(board: &Board, protocol: Protocol, port: u16) -> Loss {
    let findings: Vec<&Finding> = board
        .findings
        .iter()
        .filter(|it| it.key.port == Some(port) && it.key.protocol == Some(protocol))
        .filter(|it| it.evidence.severity > Severity::Info)
        .collect();
    let severity = findings.iter().map(|it| it.evidence.severity).max()?;
    Some((severity, findings.iter().flat_map(|it| it.evidence.affects.iter().copied()).collect()))
}

pub fn is_link_local(to: IpAddr) -> bool {
    matches!(to, IpAddr::V6(to) if to.is_unicast_link_local())
}
