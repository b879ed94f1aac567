//! One turn: the cluster, what it makes us want to know of the node, the node, the rules, the ledger.

use std::{collections::BTreeSet, fmt, io};

use jiff::{SignedDuration, Timestamp};
use tracing::{debug, info};

use super::wanted;
use crate::{
    cluster::{self, ClusterSource},
    facts::{Gap, NodePortRange, OwnPort, PortSet, Reading, SNAPSHOT_SCHEMA, Said, Snapshot, Source, View, Why},
    findings::RuleId,
    kernel::Host,
    ledger::{Board, Change, Ledger, Turn},
    rules::{self, Limits, Opinion, Patience, RULES, Rule},
};

/// What one look needs to know in advance.
#[derive(Clone, Debug)]
pub struct Crank {
    /// Where the cluster is told.
    pub cluster: ClusterSource,
    /// This node's name in the cluster, where a person or the downward API said it.
    pub node: Option<String>,
    /// The node.
    pub host: Host,
    /// What a person said about the node.
    pub said: Said,
    /// The NodePort range, where a person said it.
    pub node_port_range: Option<NodePortRange>,
    /// Ports whose sockets' holders are wanted besides those that rules ask about.
    pub owner_ports: PortSet,
    /// What nobody will ask about.
    pub spared: BTreeSet<Source>,
    /// Whether command lines of processes may be kept; they can hold secrets.
    pub command_lines: bool,
}

/// What a look is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Services, EndpointSlices, Pods, Nodes.
    Cluster,
    /// Sockets, settings, addresses, the proxy.
    Node,
    /// The rules.
    Rules,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cluster => "reading the cluster",
            Self::Node => "reading the node",
            Self::Rules => "judging",
        })
    }
}

impl Crank {
    /// Gathers everything once, on the calling thread alone; each step is announced. `at` is the time of the look.
    ///
    /// # Errors
    /// As [`cluster::read_now`].
    pub fn gather(&self, at: Timestamp, announce: impl Fn(Step)) -> io::Result<Snapshot> {
        let Self { cluster: source, node, host, said, node_port_range, owner_ports, spared, command_lines } = self;
        announce(Step::Cluster);
        // By its name a node is found that nobody named.
        let hostname = if node.is_none() { host.hostname() } else { String::new() };
        let mut cluster = cluster::read_now(source, node.as_deref(), &hostname)?;
        if let Some(range) = node_port_range {
            cluster.node_port_range = Reading::Seen(range.clone());
        }
        info!(origin = %cluster.origin, services = cluster.services.seen().map(Vec::len), "read the cluster");

        announce(Step::Node);
        let mut wanted = wanted(&cluster, *command_lines);
        wanted.owner_ports = wanted.owner_ports.union(owner_ports);
        // A person who looks once is shown what an agent finds in a while.
        wanted.bound_on_purpose = true;
        wanted.spared.clone_from(spared);
        let kernel = host.read(&wanted);
        info!(listeners = kernel.listeners.seen().map(Vec::len), sockets = %kernel.socket_source, "read the node");
        let own_port = OwnPort::not_asked();
        Ok(Snapshot { schema: SNAPSHOT_SCHEMA.to_owned(), at, said: said.clone(), kernel, cluster, own_port })
    }
}

/// Judges one look by itself, without patience: what is wrong in it is told.
pub fn judge(snapshot: &Snapshot, limits: &Limits) -> Board {
    judge_by(RULES, snapshot, limits)
}

/// The same by some rules only.
pub fn judge_by(rules: &[&'static Rule], snapshot: &Snapshot, limits: &Limits) -> Board {
    let mut ledger = Ledger::default();
    let opinions = rules::ask(rules, View { now: snapshot, before: None }, limits);
    turn(opinions, snapshot.at, Pace::AtOnce, &mut ledger);
    ledger.into_board()
}

/// How patient a turn is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// One look is all there is.
    AtOnce,
    /// Each rule has its own patience, and what needs two looks must have lasted this long.
    Patient(SignedDuration),
}

/// What a turn changed, and which rules panicked in it.
#[derive(Debug)]
pub(super) struct Turned {
    pub(super) changes: Vec<Change>,
    pub(super) panicked: Vec<RuleId>,
}

/// Takes what the rules said of the look at that time into the ledger.
pub(super) fn turn(
    opinions: impl IntoIterator<Item = Opinion>,
    at: Timestamp,
    pace: Pace,
    ledger: &mut Ledger,
) -> Turned {
    let mut panicked = Vec::new();
    let round = opinions.into_iter().map(|opinion| {
        panicked.extend(opinion.judgements.is_none().then_some(opinion.rule.id));
        part(opinion, pace)
    });
    let changes = ledger.advance(at, round);
    Turned { changes, panicked }
}

/// A rule that panicked could not tell.
fn part(Opinion { rule, judgements }: Opinion, pace: Pace) -> Turn {
    debug!(rule = rule.id.0, panicked = judgements.is_none(), "judged");
    let judgements = judgements.unwrap_or_else(|| {
        let source = rule.needs.first().copied().unwrap_or(Source::Listeners);
        let detail = format!("rule {} failed on these facts; please report it with a snapshot", rule.id);
        Err(Gap::new(source, Why::Malformed, detail))
    });
    let (patience, settle) = match (pace, rule.patience) {
        (Pace::Patient(settle), Patience::TwoScans) => (2, settle),
        _ => (1, SignedDuration::ZERO),
    };
    Turn { rule: rule.id, patience, settle, judgements }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_panicked_could_not_tell_and_is_named() {
        let turn = part(Opinion { rule: RULES[0], judgements: None }, Pace::AtOnce);
        let gap = turn.judgements.expect_err("nothing could be judged");
        assert!(gap.detail.contains(RULES[0].id.0), "{}", gap.detail);
    }

    #[test]
    fn one_look_is_told_without_patience() {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
        let board = judge(&world, &Limits::default());
        assert!(board.findings.iter().any(|finding| finding.key.port == Some(30080)), "{board:#?}");
        assert!(board.findings.iter().all(|finding| finding.since == world.at));
    }
}
