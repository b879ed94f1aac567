//! What would be otherwise on many nodes if some facts were others: who answers, and what is wrong. For people, and as one JSON
//! document, `portreeve.what-if/v1`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    net::IpAddr,
    sync::Arc,
};

use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use super::{
    CheckResult, Fleet, Style,
    fleet::Incident,
    indented_json::write_indented_json,
    table::write_incidents,
    terminal::{Ink, tidy},
};
use crate::{
    dataplane::{Answered, Ownership},
    facts::{Protocol, Snapshot},
    findings::{Severity, Vantage},
    sinks::names::{NAMED, first_names},
};

/// Where a connection goes, in words that fit every node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
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
    /// Whose it is, for people: the Service, where one claims it.
    of: String,
    /// From where a connection comes.
    from: Vantage,
    /// Where it goes.
    to: Place,
    /// Who answers now: `process`, `pod`, `refused`, `timed-out`, `nowhere`, `unreachable` or `unknown`.
    now: &'static str,
    /// Who would answer.
    then: &'static str,
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

/// What would be otherwise.
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
    /// What is wrong now and would not be.
    ends: &'a [Incident],
}

/// The JSON Schema of the document.
pub fn what_if_schema() -> Schema {
    schema_for!(WhatIfDocument<'_>)
}

/// Who answers on the ports of a node, now and then, node by node.
#[derive(Debug, Default)]
pub struct Answers(BTreeMap<Change, (IpAddr, BTreeSet<Arc<str>>)>);

impl Answers {
    /// Takes in a port of a node, as it is and as it would be.
    pub fn take(&mut self, snapshot: &Snapshot, now: &Ownership, then: &Ownership) {
        let node: Arc<str> = tidy(snapshot.node_name()).into();
        let after: BTreeMap<(Vantage, IpAddr), &Answered> =
            then.answers.iter().map(|it| ((it.from, it.to), it)).collect();
        for before in &now.answers {
            let Some(after) = after.get(&(before.from, before.to)) else { continue };
            let (was, is) = (word(before), word(after));
            if was == is {
                continue;
            }
            let claimant = |of: &Ownership, it: &Answered| Some(of.claimants.get(it.by?)?.name.clone());
            let of = claimant(now, before).or_else(|| claimant(then, after));
            let change = Change {
                port: now.port,
                protocol: now.protocol,
                of: tidy(&of.unwrap_or_default()),
                from: before.from,
                to: place(snapshot, before.to),
                now: was,
                then: is,
            };
            self.0.entry(change).or_insert_with(|| (before.to, BTreeSet::new())).1.insert(Arc::clone(&node));
        }
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
    ends: Vec<Incident>,
}

impl WhatIf {
    /// Of the same agents, as they are and as they would be.
    pub fn of(supposed: Vec<String>, answers: Answers, now: &Fleet, then: &Fleet) -> Self {
        let answers = answers.0.into_iter().map(|(change, (example, nodes))| Changed {
            change,
            example,
            nodes: nodes.into_iter().collect(),
        });
        Self {
            supposed,
            agents: now.agents,
            judged: now.answered,
            answers: answers.collect(),
            begins: then.beyond(now),
            ends: now.beyond(then),
        }
    }

    /// Whether somebody would lose something, else whether all nodes could be judged.
    pub fn result(&self) -> CheckResult {
        let loses = self.answers.iter().any(|it| is_loss(&it.change));
        if loses || self.begins.iter().any(|it| it.problem.severity >= Severity::Warning) {
            CheckResult::Findings
        } else if self.agents > 0 && self.judged == self.agents {
            CheckResult::Clear
        } else {
            CheckResult::NotChecked
        }
    }

    /// Writes the document.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { supposed, agents, judged, answers, begins, ends } = self;
        let (agents, judged) = (*agents, *judged);
        let schema = "portreeve.what-if/v1";
        write_indented_json(&WhatIfDocument { schema, supposed, agents, judged, answers, begins, ends }, out)
    }

    /// Writes it for people: first who would lose, then who would gain, then what would be wrong, and what no more.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write(&self, style: &Style, out: &mut dyn Write) -> io::Result<()> {
        let Self { supposed, agents, judged, answers, begins, ends } = self;
        let heading = format!("what if {}; {judged} of {agents} nodes judged", tidy(&supposed.join(" ")));
        writeln!(out, "{}", style.paint(Ink::Heading, &heading))?;
        let (lost, others): (Vec<&Changed>, Vec<&Changed>) = answers.iter().partition(|it| is_loss(&it.change));
        if lost.is_empty() && others.is_empty() && begins.is_empty() && ends.is_empty() {
            return writeln!(out, "nothing would be otherwise");
        }
        self.write_answers("Would lose an answer: tell these clients first", &lost, style, out)?;
        self.write_answers("Would have another answer", &others, style, out)?;
        for (title, incidents) in [("Would begin: mend it before", begins), ("Would end", ends)] {
            if !incidents.is_empty() {
                writeln!(out, "\n{}", style.paint(Ink::Heading, title))?;
                write_incidents(incidents, *judged, style, out)?;
            }
        }
        Ok(())
    }

    fn write_answers(&self, title: &str, answers: &[&Changed], style: &Style, out: &mut dyn Write) -> io::Result<()> {
        if answers.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n{}", style.paint(Ink::Heading, title))?;
        for Changed { change, example, nodes } in answers {
            let Change { port, protocol, of, from, to, now, then } = change;
            let to = match to {
                Place::Loopback => example.to_string(),
                Place::NodeAddress => "the Node's address".to_owned(),
                Place::OtherAddress => format!("other addresses, such as {example}"),
            };
            let whose = if of.is_empty() { String::new() } else { format!(" ({of})") };
            writeln!(out, "  {port}/{protocol}{whose}, from {from} to {to}: {now} now, then {then}")?;
            let names = format!("{} of {} nodes: {}", nodes.len(), self.judged, first_names(nodes, NAMED));
            writeln!(out, "    {}", style.paint(Ink::Faint, &names))?;
        }
        Ok(())
    }
}

/// Whether a client that is answered now would not be, or by somebody else.
fn is_loss(change: &Change) -> bool {
    matches!(change.now, "pod" | "process")
}
