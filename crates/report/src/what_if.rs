//! What would change on many nodes if some facts were others: who answers, and what is wrong. As one JSON document,
//! `portreeve.what-if/v1`, and for people (`text`).

mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    net::IpAddr,
    sync::Arc,
};

use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use super::{
    Fleet,
    fleet::{Incident, are_of_one_matter},
    indented_json::write_indented_json,
    outcome::{CheckResult, outcome},
    terminal::tidy,
};
use portreeve_dataplane::{Answered, Ownership};
use portreeve_facts::{Gap, Mode, Protocol, Snapshot, Source, Why};
use portreeve_rules::findings::{Severity, Vantage};

/// Where a connection goes, in words that fit every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Place {
    /// 127.0.0.1, or another address of loopback.
    Loopback,
    /// The address of the Node object.
    NodeAddress,
    /// Another address of the node.
    OtherAddress,
}

/// Connections that would have another answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Change {
    /// The port.
    port: u16,
    /// Its protocol.
    protocol: Protocol,
    /// Who answers or refuses now, for people: a Service, a pod with a hostPort, a process; where nobody does, who would.
    of: String,
    /// From where a connection comes.
    from: Vantage,
    /// Where it goes.
    to: Place,
    /// Who answers now: `process`, `pod`, `refused`, `timed-out`, `nowhere` or `unreachable`.
    now: &'static str,
    /// Who would answer.
    then: &'static str,
    /// Whose the port would be, where that is somebody else.
    #[serde(skip_serializing_if = "Option::is_none")]
    then_of: Option<String>,
}

/// A change, and where.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct Changed {
    #[serde(flatten)]
    change: Change,
    /// An address of the first of the nodes that was asked about.
    example: IpAddr,
    /// The nodes on which it would be so.
    nodes: Vec<Arc<str>>,
}

/// What is not known of the nodes as they are or as they would be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct NotKnown {
    /// The port and its protocol; absent where a fact of the node is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<Protocol>,
    /// Why.
    detail: String,
    /// What it is, for people.
    #[serde(skip)]
    #[schemars(skip)]
    input: Option<(Source, Why)>,
}

/// The same, and where.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct NotKnownOn {
    #[serde(flatten)]
    what: NotKnown,
    /// The nodes on which it is not known.
    nodes: Vec<Arc<str>>,
}

/// What would change.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(title = "Portreeve what-if")]
struct WhatIfDocument<'a> {
    /// Always `portreeve.what-if/v1`.
    #[schemars(extend("const" = "portreeve.what-if/v1"))]
    schema: &'static str,
    /// What was supposed, as it was typed.
    supposed: &'a [String],
    /// How many agents are listed, and how many of their nodes could be judged.
    agents: usize,
    judged: usize,
    /// Connections to ports of Services that would have another answer.
    answers: &'a [Changed],
    /// What would be wrong that is not now, worst first; `nodes` are those on which it would begin.
    begins: &'a [Incident],
    /// What is wrong now and would be in another way: worse, less severe, or with another outcome; each as it would be.
    changes: &'a [Incident],
    /// What is wrong now and would not be.
    ends: &'a [Incident],
    /// What is not known of the nodes as they are or as they would be; what of that would change is not told.
    unknown: &'a [NotKnownOn],
}

/// The JSON Schema of the document.
pub fn what_if_schema() -> Schema {
    schema_for!(WhatIfDocument<'_>)
}

/// Who answers on the ports of a node, now and then, node by node.
#[derive(Debug, Default)]
pub struct Answers {
    changes: BTreeMap<Change, (IpAddr, BTreeSet<Arc<str>>)>,
    unknown: BTreeMap<NotKnown, BTreeSet<Arc<str>>>,
    /// The mode in which answers on other addresses of a node are lost that `nodePortAddresses` would keep.
    kept_by_addresses: Option<Mode>,
}

impl Answers {
    /// Takes in a port of a node, as it is and as it would be.
    pub fn take(&mut self, snapshot: &Snapshot, now: &Ownership, then: &Ownership) {
        let node: Arc<str> = tidy(snapshot.node_name()).into();
        let after: BTreeMap<(Vantage, IpAddr), &Answered> =
            then.answers.iter().map(|it| ((it.from, it.to), it)).collect();
        for before in &now.answers {
            let Some(after) = after.get(&(before.from, before.to)) else { continue };
            if let Err(gap) = after.outcome.as_ref().and(before.outcome.as_ref()) {
                let what = NotKnown {
                    port: Some(now.port),
                    protocol: Some(now.protocol),
                    detail: tidy(&gap.detail),
                    input: Some((gap.source, gap.why)),
                };
                self.unknown.entry(what).or_default().insert(Arc::clone(&node));
                continue;
            }
            let claimant = |of: &Ownership, it: &Answered| Some(tidy(&of.claimants.get(it.by?)?.name));
            let (of, then_of) = (claimant(now, before), claimant(then, after));
            let (was, is) = (word(before), word(after));
            // Of two Services with one number another one may win.
            if was == is && (of == then_of || !is_answer(was)) {
                continue;
            }
            let change = Change {
                port: now.port,
                protocol: now.protocol,
                from: before.from,
                to: place(snapshot, before.to),
                now: was,
                then: is,
                then_of: then_of.clone().filter(|it| of.as_ref().is_some_and(|of| of != it)),
                of: of.or(then_of).unwrap_or_default(),
            };
            let nodes = &mut self.changes.entry(change).or_insert_with(|| (before.to, BTreeSet::new())).1;
            nodes.insert(Arc::clone(&node));
        }
    }

    /// Takes in what becomes of the same port where NodePorts are served on every address, in this mode. `served` is asked only where
    /// it can tell something new.
    ///
    /// # Errors
    /// As `served`.
    pub fn take_cure(
        &mut self,
        snapshot: &Snapshot,
        (now, then): (&Ownership, &Ownership),
        mode: Mode,
        served: impl FnOnce() -> Result<Ownership, Gap>,
    ) -> Result<(), Gap> {
        let is_answered = |of: &Ownership, at: &Answered| {
            of.answers.iter().any(|it| (it.from, it.to) == (at.from, at.to) && is_answer(word(it)))
        };
        let is_lost = |it: &&Answered| place(snapshot, it.to) == Place::OtherAddress && is_answer(word(it));
        let lost: Vec<&Answered> = now.answers.iter().filter(is_lost).filter(|it| !is_answered(then, it)).collect();
        if self.kept_by_addresses.is_none() && !lost.is_empty() {
            let served = served()?;
            self.kept_by_addresses = lost.iter().any(|it| is_answered(&served, it)).then_some(mode);
        }
        Ok(())
    }
}

fn word(answered: &Answered) -> &'static str {
    answered.outcome.as_ref().map_or("unknown", |outcome| outcome.name())
}

fn place(snapshot: &Snapshot, ip: IpAddr) -> Place {
    match snapshot.own_node() {
        _ if ip.is_loopback() => Place::Loopback,
        Some(node) if node.addresses.iter().any(|it| it.ip == ip) => Place::NodeAddress,
        _ => Place::OtherAddress,
    }
}

/// The difference of a whole fleet.
pub struct WhatIf {
    supposed: Vec<String>,
    agents: usize,
    judged: usize,
    answers: Vec<Changed>,
    begins: Vec<Incident>,
    changes: Vec<Incident>,
    /// The severity of the worst of those that would be worse than now.
    worse: Option<Severity>,
    ends: Vec<Incident>,
    unknown: Vec<NotKnownOn>,
    kept_by_addresses: Option<Mode>,
}

impl WhatIf {
    /// Of the same agents, as they are and as they would be.
    pub fn of(supposed: Vec<String>, answers: Answers, now: &Fleet, then: &Fleet) -> Self {
        let mut ends = now.beyond(then);
        let (otherwise, mut begins): (Vec<_>, Vec<_>) =
            then.beyond(now).into_iter().partition(|it| ends.iter().any(|before| is_the_same(it, before)));
        // What would begin has not begun.
        begins.iter_mut().for_each(|it| it.problem.since.clear());
        let was = |it: &Incident| {
            ends.iter().filter(|before| is_the_same(it, before)).map(|before| before.problem.severity).max()
        };
        let worse =
            otherwise.iter().filter(|it| Some(it.problem.severity) > was(it)).map(|it| it.problem.severity).max();
        ends.retain(|before| {
            !otherwise
                .iter()
                .any(|it| is_the_same(it, before) && before.nodes.iter().all(|node| it.nodes.contains(node)))
        });
        let Answers { changes, unknown, kept_by_addresses } = answers;
        let answers = changes.into_iter().map(|(change, (example, nodes))| Changed {
            change,
            example,
            nodes: nodes.into_iter().collect(),
        });
        let of_ports = unknown.into_iter().map(|(what, nodes)| NotKnownOn { what, nodes: nodes.into_iter().collect() });
        let unseen =
            then.silent.iter().chain(&then.unseen).filter(|reason| reason.is_failure).map(|reason| NotKnownOn {
                what: NotKnown { port: None, protocol: None, detail: reason.detail.clone(), input: None },
                nodes: reason.nodes.clone(),
            });
        Self {
            supposed,
            agents: now.agents,
            judged: now.answered,
            answers: answers.collect(),
            begins,
            changes: otherwise,
            worse,
            ends,
            unknown: of_ports.chain(unseen).collect(),
            kept_by_addresses,
        }
    }

    /// Whether somebody would lose something, else whether all of all nodes could be judged.
    pub fn result(&self) -> CheckResult {
        let lost = self.answers.iter().any(|it| is_loss(&it.change)).then_some(Severity::Critical);
        let worst = self.begins.iter().map(|it| it.problem.severity).chain(lost).chain(self.worse).max();
        let is_whole = self.agents > 0 && self.judged == self.agents && self.unknown.is_empty();
        outcome(worst, Severity::Warning, || !is_whole)
    }

    /// Writes the document.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { supposed, agents, judged, answers, begins, changes, ends, unknown, .. } = self;
        let (agents, judged, schema) = (*agents, *judged, "portreeve.what-if/v1");
        let document = WhatIfDocument { schema, supposed, agents, judged, answers, begins, changes, ends, unknown };
        write_indented_json(&document, out)
    }
}

fn is_answer(word: &str) -> bool {
    matches!(word, "pod" | "process")
}

/// Whether an incident would be what another one is, in another way, on nodes that have that.
fn is_the_same(then: &Incident, now: &Incident) -> bool {
    are_of_one_matter(&then.problem, &now.problem) && then.nodes.iter().all(|node| now.nodes.contains(node))
}

/// Whether a client that is answered now would not be, or by somebody else.
fn is_loss(change: &Change) -> bool {
    is_answer(change.now)
}
