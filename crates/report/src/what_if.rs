//! Predicts the effect of changed settings on many nodes, claim by claim. A claim is a port of a Service, the hostPort
//! of a pod, a listener, or a setting of the node. The result is a part of a JSON document, and is also written as a
//! table.

mod answers;
mod finding;
#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    iter,
    net::IpAddr,
    sync::Arc,
};

use schemars::JsonSchema;
use serde::Serialize;

pub(crate) use self::{
    answers::{Answer, Place},
    finding::{FindingChange, How},
};
use self::{
    answers::{changes, is_answered, lost_elsewhere},
    finding::differences,
};
use super::{
    Report,
    findings_document::{Unknown, tidy_subject},
    fleet::{MOST, Reason, Reasons, common_name},
    indented_json::write_indented_json,
    outcome::{CheckResult, Open, outcome},
    ports_document::{NodeScan, Part, PortsDocument},
    terminal::tidy,
};
use portreeve_dataplane::Ownership;
use portreeve_facts::{Gap, Mode, Protocol, Snapshot, Source, Why};
use portreeve_rules::{
    findings::{Finding, Key, Severity, Subject},
    ledger::Board,
};

pub(crate) const NOT_PREDICTED: &str = "Not predicted: the effect on existing connections and their conntrack entries, and the old rules that a change leaves in the kernel or removes.";

/// A claim: the user of a port, or a setting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub(crate) struct Claim {
    /// The subject: a Service, a pod, a node with its listeners and settings, or the cluster. If nodes have different
    /// subjects, the value is the subject of the first node.
    pub(crate) subject: Subject,
    /// The port; absent for a setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    /// The protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<Protocol>,
    /// The rule that judges the claim, if the claim is a setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rule: Option<&'static str>,
}

impl Claim {
    fn of(key: &Key) -> Self {
        let Key { rule, subject, port, protocol, .. } = key;
        Self { subject: subject.clone(), port: *port, protocol: *protocol, rule: port.is_none().then_some(rule.0) }
    }
}

/// An answer that changes, with its nodes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct AnswerOn {
    #[serde(flatten)]
    pub(crate) answer: Answer,
    /// An address on the first of `nodes`.
    pub(crate) example: IpAddr,
    /// The nodes on which the answer changes.
    pub(crate) nodes: Vec<Arc<str>>,
}

/// One claim, with changes that are equal on some nodes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimChange {
    /// The claim.
    pub(crate) claim: Claim,
    /// All subjects, if they differ from node to node: the Nodes themselves, or pods of one controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) subjects: Vec<Subject>,
    /// Whether the findings about the claim begin, stay or end.
    pub(crate) how: How,
    /// The findings that change, worst first. The sentences are from the first node.
    pub(crate) findings: Vec<FindingChange>,
    /// Connections to the port whose answer would change.
    pub(crate) answers: Vec<AnswerOn>,
    /// The nodes on which the findings change equally. If no finding changes, the list has the nodes on which an answer
    /// changes.
    pub(crate) nodes: Vec<Arc<str>>,
}

impl ClaimChange {
    /// Whether a client would lose its answer, or would get the answer of another program.
    pub(crate) fn is_loss(&self) -> bool {
        self.answers.iter().any(|it| it.answer.is_loss())
    }

    /// The severity of the worst finding after the change. If no finding is left, the result is the severity before the
    /// change.
    fn worst(&self) -> Option<Severity> {
        self.findings.iter().filter_map(FindingChange::shown).map(|it| it.severity).max()
    }
}

/// An unknown result of a node, before or after the change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NotKnown {
    /// The port; absent if the missing fact is about the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<Protocol>,
    /// The reason, as text.
    pub(crate) detail: String,
    /// The missing input, without which the answer on the port is unknown or rules could not judge.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) input: Option<(Source, Why)>,
    /// Whether this unknown answer makes the whole result unknown. If a permission is missing, only unread Services,
    /// sockets or addresses make the result unknown.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) decides: bool,
}

/// An unknown result, and the nodes that have it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct NotKnownOn {
    #[serde(flatten)]
    pub(crate) what: NotKnown,
    /// The nodes on which the result is unknown.
    pub(crate) nodes: Vec<Arc<str>>,
}

/// The predicted changes.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WhatIfDocument {
    /// The changed settings, in the user's words.
    pub(crate) supposed: Vec<String>,
    /// How many agents are listed.
    pub(crate) agents: usize,
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) judged: usize,
    /// The nodes and their scans.
    pub(crate) nodes: Vec<NodeScan>,
    /// The claims that change. Claims whose clients would lose their answer are first. The other claims follow in this
    /// order: findings that begin, findings that stay, findings that end. In each group, the worst finding is first.
    pub(crate) claims: Vec<ClaimChange>,
    /// Results that are unknown before or after the change. It is unknown whether these results change.
    pub(crate) unknown: Vec<NotKnownOn>,
    /// The effects that a scan cannot predict.
    not_predicted: &'static str,
    /// The mode in which clients would lose their answers on addresses that are not in the Node object.
    /// `nodePortAddresses` can prevent this loss. `None` if the setting prevents no loss.
    #[serde(skip)]
    #[schemars(skip)]
    pub(crate) kept_by_addresses: Option<Mode>,
}

impl WhatIfDocument {
    /// `Findings` if a client would lose its answer, or if a finding would become worse. Otherwise `Clear` if all
    /// necessary input was read and judged.
    pub fn result(&self) -> CheckResult {
        let lost = self.claims.iter().any(ClaimChange::is_loss).then_some(Severity::Critical);
        let worse = self.claims.iter().flat_map(|it| &it.findings).filter_map(FindingChange::worse).max();
        let is_judged = self.claims.iter().flat_map(|it| &it.findings).all(FindingChange::is_judged);
        let lacks = self.agents == 0 || self.judged < self.agents || !is_judged;
        outcome(worse.max(lost), Severity::Warning, || lacks || self.unknown.iter().any(|it| it.what.decides))
    }

    /// Writes the document as JSON.
    ///
    /// # Errors
    /// Returns an error if the writer fails.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        write_indented_json(&PortsDocument::new(self.result(), self.judged, Part::WhatIf(self)), out)
    }
}

/// Claims with an equal key are one row: the claim, its change, and the differences.
type RowKey = (Claim, How, Vec<String>);

#[derive(Debug, Default)]
struct Row {
    subjects: BTreeSet<Subject>,
    findings: Vec<FindingChange>,
    answers: BTreeMap<Answer, BTreeMap<Arc<str>, IpAddr>>,
    nodes: BTreeSet<Arc<str>>,
}

/// Collects the changes, node by node.
#[derive(Debug, Default)]
pub struct WhatIf {
    agents: usize,
    judged: usize,
    rows: BTreeMap<RowKey, Row>,
    ports: BTreeMap<NotKnown, BTreeSet<Arc<str>>>,
    reasons: Reasons,
    /// The missing inputs of rules that did not judge, if the inputs have no effect on the result.
    excused: BTreeMap<Source, Reasons>,
    kept_by_addresses: Option<Mode>,
}

impl WhatIf {
    /// Adds a node. In each array, the first element is from before the change, and the second element is from after
    /// the change. `judged` has the findings of a state, and the findings of the other state that the rules could not
    /// judge in this state. For each port of a Service, `ports` has the answers before and after the change.
    pub fn take(
        &mut self,
        snapshots: [&Snapshot; 2],
        judged: &[(Board, BTreeSet<Key>); 2],
        ports: &[(Subject, [Ownership; 2])],
    ) {
        let now = snapshots[0];
        let node: Arc<str> = tidy(now.node_name()).into();
        (self.agents, self.judged) = (self.agents + 1, self.judged + 1);
        let mut claims: BTreeMap<Claim, [Vec<&Finding>; 2]> = BTreeMap::new();
        for (world, (board, _)) in judged.iter().enumerate() {
            for finding in &board.findings {
                claims.entry(Claim::of(&finding.key)).or_default()[world].push(finding);
            }
        }
        let mut answers: BTreeMap<Claim, Vec<(Answer, IpAddr)>> = BTreeMap::new();
        let mut open = BTreeSet::new();
        for (subject, [is, would_be]) in ports {
            let (subject, port, protocol) = (subject.clone(), Some(is.port), Some(is.protocol));
            let claim = Claim { subject, port, protocol, rule: None };
            let changed = changes(now, is, would_be, |from, gap| {
                open.insert((port, protocol, from));
                let (detail, input) = (tidy(&gap.detail), Some((gap.source, gap.why)));
                let decides = Open::of_answer(gap).decides(Severity::Warning);
                let what = NotKnown { port, protocol, detail, input, decides };
                self.ports.entry(what).or_default().insert(Arc::clone(&node));
            });
            if !changed.is_empty() {
                claims.entry(claim.clone()).or_default();
                answers.insert(claim, changed);
            }
        }
        let held = judged.each_ref().map(|(_, held)| held);
        let mut left_out = 0;
        for (claim, findings) in claims {
            let is_open = |from| open.contains(&(claim.port, claim.protocol, from));
            let changed = differences(&findings, held, is_open);
            let answers = answers.remove(&claim).unwrap_or_default();
            if changed.is_empty() && answers.is_empty() {
                continue;
            }
            let may_stay = findings[0].iter().any(|it| held[1].contains(&it.key));
            let how = How::of(!findings[0].is_empty(), !findings[1].is_empty() || may_stay);
            let common = Subject { name: common_name(&claim.subject).to_owned(), uid: None, ..claim.subject.clone() };
            let differences = changed.iter().map(|it| it.shared(&node)).collect();
            let key = (Claim { subject: common, ..claim.clone() }, how, differences);
            if self.rows.len() >= MOST && !self.rows.contains_key(&key) {
                left_out += 1;
                continue;
            }
            self.rows.entry(key).or_default().add(&node, claim.subject, changed, answers);
        }
        for (snapshot, (board, _)) in snapshots.iter().zip(judged.iter()) {
            for it in Report::of(snapshot, board).gaps() {
                let unknown = Unknown::of(it.gap);
                if it.open().decides(Severity::Warning) {
                    self.reasons.take(&node, &Arc::default(), &unknown, true);
                } else if it.rows.is_some() {
                    self.excused.entry(it.gap.source).or_default().take(&node, &Arc::default(), &unknown, false);
                }
            }
        }
        if left_out > 0 {
            let detail = format!(
                "{left_out} claims of this node are not included: the report has at most {MOST} claims that change"
            );
            let gap = Gap::new(Source::Agent, Why::TooMuch, detail);
            self.reasons.take(&node, &Arc::default(), &Unknown::of(&gap), true);
        }
    }

    /// Notes `mode` if the change takes an answer from a client, and if the client would keep the answer with NodePorts
    /// on every address. `served` computes the answers with NodePorts on every address. `take_cure` calls `served` only
    /// if an answer is lost and no earlier call noted the mode.
    ///
    /// # Errors
    /// Returns the error of `served`.
    pub fn take_cure(
        &mut self,
        snapshot: &Snapshot,
        [now, then]: [&Ownership; 2],
        mode: Mode,
        served: impl FnOnce() -> Result<Ownership, Gap>,
    ) -> Result<(), Gap> {
        let lost = lost_elsewhere(snapshot, now, then);
        if self.kept_by_addresses.is_none() && !lost.is_empty() {
            let served = served()?;
            self.kept_by_addresses = lost.iter().any(|it| is_answered(&served, it)).then_some(mode);
        }
        Ok(())
    }

    /// Adds a node that could not be judged.
    pub fn leave_out(&mut self, node: &str, gap: &Gap) {
        self.agents += 1;
        self.reasons.take(&tidy(node).into(), &Arc::default(), &Unknown::of(gap), true);
    }

    /// The document. `supposed` has the changed settings in the user's words. `nodes` has all nodes.
    pub fn finish(self, supposed: Vec<String>, nodes: Vec<NodeScan>) -> WhatIfDocument {
        let Self { agents, judged, rows, ports, reasons, excused, kept_by_addresses } = self;
        let mut claims: Vec<ClaimChange> = rows.into_iter().map(|(key, row)| row.finish(key)).collect();
        claims.sort_by_cached_key(|it| (!it.is_loss(), it.how, Reverse(it.worst()), it.claim.clone()));
        let of_ports = ports.into_iter().map(|(what, nodes)| NotKnownOn { what, nodes: nodes.into_iter().collect() });
        let excused = excused.into_iter().map(|(source, reasons)| (Some(source), reasons));
        let of_nodes = iter::once((None, reasons)).chain(excused).flat_map(|(source, reasons)| {
            reasons.finish().into_iter().map(move |Reason { why, detail, nodes, is_failure: decides, .. }| {
                let input = source.map(|source| (source, why));
                NotKnownOn { what: NotKnown { port: None, protocol: None, detail, input, decides }, nodes }
            })
        });
        let unknown = of_ports.chain(of_nodes).collect();
        let not_predicted = NOT_PREDICTED;
        WhatIfDocument { supposed, agents, judged, nodes, claims, unknown, not_predicted, kept_by_addresses }
    }
}

impl Row {
    fn add(&mut self, node: &Arc<str>, subject: Subject, findings: Vec<FindingChange>, answers: Vec<(Answer, IpAddr)>) {
        if self.nodes.first().is_none_or(|first| node < first) {
            self.findings = findings;
        }
        self.subjects.insert(subject);
        self.nodes.insert(Arc::clone(node));
        for (answer, example) in answers {
            self.answers.entry(answer).or_default().entry(Arc::clone(node)).or_insert(example);
        }
    }

    fn finish(self, (claim, how, _): RowKey) -> ClaimChange {
        let Self { subjects, findings, answers, nodes } = self;
        let first = subjects.first().cloned().unwrap_or_else(|| claim.subject.clone());
        let on = |(answer, on): (Answer, BTreeMap<Arc<str>, IpAddr>)| {
            let example = on.first_key_value().map(|(_, example)| *example)?;
            Some(AnswerOn { answer, example, nodes: on.into_keys().collect() })
        };
        ClaimChange {
            claim: Claim { subject: tidy_subject(&first), ..claim },
            subjects: if subjects.len() > 1 { subjects.iter().map(tidy_subject).collect() } else { Vec::new() },
            how,
            findings,
            answers: answers.into_iter().filter_map(on).collect(),
            nodes: nodes.into_iter().collect(),
        }
    }
}
