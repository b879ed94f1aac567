//! What Portreeve says of a snapshot, and where packets say something else.

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

/// A listener: what packets showed, and what Portreeve says of it.
pub struct Judged<'a> {
    /// The listener.
    pub row: &'a Row,
    /// Its cells.
    pub cells: Vec<Cell>,
    /// What it loses, by packets, as far as Portreeve can know, and has to tell.
    pub shown: Loss,
    /// What it loses by all of them.
    pub most: Loss,
    /// The same by the rules.
    pub told: Loss,
}

/// Who answers a client, to the letter.
pub struct Cell {
    /// Where the client is.
    pub from: Vantage,
    /// The address that it asks.
    pub to: IpAddr,
    /// Who answered.
    pub shown: char,
    /// Who is said to answer.
    pub told: char,
    /// Whether that may stay unknown, and does.
    pub is_unsure: bool,
}

/// How bad it is, and from where the listener is lost.
pub type Loss = Option<(Severity, BTreeSet<Vantage>)>;

impl Judged<'_> {
    /// Whether the rules tell no more than packets showed.
    pub fn is_part(&self) -> bool {
        is_part(&self.told, &self.most)
    }
}

fn is_part(part: &Loss, whole: &Loss) -> bool {
    match (part, whole) {
        (Some((severity, from)), Some((worst, all))) => severity <= worst && from.is_subset(all),
        (part, _) => part.is_none(),
    }
}

/// The listener, for people.
impl fmt::Display for Judged<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { bind, protocol, shape, port, .. } = self.row;
        write!(f, "{bind}, {protocol}, {shape}, port {port}")
    }
}

/// Every listener of a recording of which Portreeve can tell.
pub fn listeners<'a>(
    recording: &'a Recording,
    snapshot: &'a Snapshot,
    board: &'a Board,
) -> impl Iterator<Item = Judged<'a>> {
    rows(recording).map(move |row| {
        let owned = owned(snapshot, row.protocol, row.port);
        let cell = |(from, to, shown)| {
            let told = answer(&owned, from, to);
            Cell { from, to, shown, told, is_unsure: told == '?' && is_unsure(recording, row, from, to) }
        };
        let cells: Vec<Cell> = recording.cells(row).map(cell).collect();
        let matters = |cell: &&Cell| !cell.is_unsure && !is_meant(recording, row);
        let (most, shown) = (loss(cells.iter()), loss(cells.iter().filter(matters)));
        Judged { row, cells, shown, most, told: told(board, row.protocol, row.port) }
    })
}

/// Whether nothing need be told of it: an address of a load balancer that is no Node's is on a link for its Service, and a process that
/// listens on every address keeps the node's own.
fn is_meant(recording: &Recording, row: &Row) -> bool {
    recording.world == APART && row.shape.starts_with("balancer") && ["0.0.0.0", "::"].contains(&row.bind.as_str())
}

fn rows(recording: &Recording) -> impl Iterator<Item = &Row> {
    recording.listeners.iter().filter(|row| !is_open(recording, row))
}

/// The cells in which packets and Portreeve differ, in words: who owns each port, and what the rules say of it.
#[track_caller]
pub fn disagreements(recording: &Recording, snapshot: &Snapshot) -> Vec<String> {
    let board = judge(snapshot, &Limits::default());
    let mut wrong = Vec::new();
    for listener in listeners(recording, snapshot, &board) {
        for Cell { from, to, shown, told, is_unsure } in &listener.cells {
            if shown != told && !is_unsure {
                wrong.push(format!("{listener}: {from} to {to}\n  packets: {shown}\n  owner:   {told}"));
            }
        }
        let Judged { shown, told, .. } = &listener;
        if !is_part(shown, told) || !listener.is_part() {
            wrong.push(format!("{listener}\n  packets: {shown:?}\n  rules:   {told:?}"));
        }
    }
    wrong
}

/// How many cells [`disagreements`] compares.
pub fn compared(recording: &Recording) -> usize {
    rows(recording).map(|row| recording.cells(row).count()).sum()
}

/// Whether packets show what Portreeve cannot tell yet: Cilium does not serve an external IP at a port of the NodePort range
/// where it is an address of NodePorts too (cilium#44730), and no external IP of a family that is turned off. Where far nodes
/// answer remote clients by themselves (DSR), those are not asked, and the rules tell of them.
fn is_open(recording: &Recording, row: &Row) -> bool {
    let is = |key: &str, word: &str| recording.settings.get(key).is_some_and(|it| it == word);
    match row.shape.as_str() {
        "external-ip" => is("enable-ipv6", "false") || recording.settings.contains_key("nodeport-addresses"),
        "far" | "internal-local" => is("bpf-lb-mode", "dsr"),
        _ => false,
    }
}

/// The node whose Services Cilium serves in part. Its load balancers have addresses of a second device too.
const APART: &str = "cilium/world-apart";

/// Load balancers' addresses on a device that is none of Cilium's.
const BEYOND: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 244, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x244, 0, 0, 0, 0, 0, 1))];

/// Whether it may stay unknown: an older Cilium serves other addresses to pods whose sockets it leaves alone, and its settings
/// do not show that it is older. So may, of Services of Cilium's own annotations, which nodes are meant, whether other clusters have
/// endpoints, and which of two came first; and what becomes of what arrives for a load balancer's address on a device that is none of Cilium's,
/// at any port.
fn is_unsure(recording: &Recording, row: &Row, from: Vantage, to: IpAddr) -> bool {
    let is_set = recording.settings.get("bpf-lb-sock-hostns-only").is_some_and(|it| it == "true");
    match row.shape.as_str() {
        "on-other-nodes" | "global" | "global-empty" | "rivals" => true,
        "external-ip-beyond" | "balancer-beyond" if is_set && from == Vantage::Pods => true,
        _ if recording.world == APART && BEYOND.contains(&to) => from == Vantage::Remote,
        _ => !recording.version.is_empty() && is_set && from == Vantage::Pods,
    }
}

/// Who is said to answer each question about a port.
fn owned(snapshot: &Snapshot, protocol: Protocol, port: u16) -> BTreeMap<(Vantage, IpAddr), char> {
    let owned = owner(&Limits::default().round(snapshot, None), protocol, port).expect("it can be told");
    let letter = |outcome: &Result<Outcome, Gap>, to| match outcome {
        Ok(Outcome::Listener) => 'L',
        Ok(Outcome::Pod) => 'P',
        Ok(Outcome::Refused) => 'R',
        // Who asks a link-local address may or may not be told that it leads nowhere.
        Ok(Outcome::TimedOut) if is_link_local(to) => 'N',
        Ok(Outcome::TimedOut) => 'T',
        Ok(Outcome::Nowhere) => 'N',
        Ok(Outcome::Unreachable) => 'N',
        Err(_) => '?',
    };
    // What is assumed of this node's addresses is told as such, and is no answer.
    let told = |it: &Answered| if it.assumed == Stratum::Served { '?' } else { letter(&it.outcome, it.to) };
    owned.answers.iter().map(|it| ((it.from, it.to), told(it))).collect()
}

/// One of these answers; loopback addresses that are not listed fare like 127.0.0.1.
fn answer(owned: &BTreeMap<(Vantage, IpAddr), char>, from: Vantage, to: IpAddr) -> char {
    let listed = [to, IpAddr::from(Ipv4Addr::LOCALHOST)].into_iter().take(1 + usize::from(to.is_loopback()));
    listed.filter_map(|to| owned.get(&(from, to))).next().copied().unwrap_or('?')
}

/// What packets show.
fn loss<'a>(cells: impl Iterator<Item = &'a Cell>) -> Loss {
    let lost: Vec<_> = cells.filter(|cell| cell.shown != 'L').collect();
    // What the node alone loses, and only to its own link-local address, is not worth a warning.
    let matters = lost.iter().any(|cell| cell.from != Vantage::Node || !is_link_local(cell.to));
    let from: BTreeSet<Vantage> = lost.iter().map(|cell| cell.from).collect();
    let severity = if from.contains(&Vantage::Remote) { Severity::Critical } else { Severity::Warning };
    matters.then_some((severity, from))
}

/// What the rules say.
fn told(board: &Board, protocol: Protocol, port: u16) -> Loss {
    let findings: Vec<&Finding> = board
        .findings
        .iter()
        .filter(|it| it.key.port == Some(port) && it.key.protocol == Some(protocol))
        .filter(|it| it.evidence.severity > Severity::Info)
        .collect();
    let severity = findings.iter().map(|it| it.evidence.severity).max()?;
    Some((severity, findings.iter().flat_map(|it| it.evidence.affects.iter().copied()).collect()))
}

/// Whether it is a link-local address.
pub fn is_link_local(to: IpAddr) -> bool {
    matches!(to, IpAddr::V6(to) if to.is_unicast_link_local())
}
