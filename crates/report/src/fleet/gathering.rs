//! Reads the answers of agents one by one. The incidents of an answer are kept, and the answer itself is dropped.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;

use super::{
    incident::{Incident, Incidents, MOST, fingerprint, worst_first},
    node_report::NodeReport,
    unknowns::Reasons,
    view::{Fleet, Partial, Stopped},
};
use crate::{
    findings_document::{Node, Problem, Unknown},
    terminal::tidy,
};
use portreeve_facts::{Gap, Source, Why};
use portreeve_rules::{
    findings::{Scope, Severity},
    ids::{Named, can_be_of_objects},
};

/// The largest number of unwanted incidents that are counted.
const MOST_HIDDEN: usize = 1_000_000;

fn not_kept(count: usize) -> Gap {
    let detail = format!("{count} findings of this node are not included: the report has at most {MOST} incidents");
    Gap::new(Source::Agent, Why::TooMuch, detail)
}

/// The answer of one agent, or the reason why the answer is missing.
#[derive(Clone, Debug)]
pub struct AgentAnswer {
    /// The node of the agent's pod; empty if the pod has no node.
    pub node: String,
    /// The agent's pod.
    pub pod: String,
    /// The body of the agent's answer at `/findings`.
    pub answer: Result<Vec<u8>, Gap>,
}

/// The findings that the user wants. The report lists only the wanted findings, and counts the other incidents.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// If a namespace is set, the user wants only findings whose subject is in this namespace.
    pub namespace: Option<String>,
    /// The user wants only findings of these rules or variants. If the list is empty, the user wants findings of all
    /// rules.
    pub rules: Vec<Named>,
    /// The user wants only findings of at least this severity. With `None`, all findings are reported, and findings of
    /// at least [`Severity::Warning`] set the result.
    pub min_severity: Option<Severity>,
    /// Whether the output is a document with an entry for each agent. The document needs memory for each agent.
    pub document: bool,
}

/// The collected results of the agents that have answered so far.
#[derive(Debug, Default)]
pub struct Gathering {
    agent_namespace: String,
    wanted: Wanted,
    incidents: Incidents,
    nodes: Vec<Node>,
    agents: usize,
    answered: usize,
    answered_nodes: BTreeSet<Arc<str>>,
    oldest: Option<(u64, Arc<str>)>,
    silent: Reasons,
    unseen: Reasons,
    left_out: usize,
    /// Fingerprints of the incidents that the user does not want. The set counts an incident once, even if several
    /// nodes report the incident.
    hidden: BTreeSet<u64>,
}

impl Gathering {
    /// The state before the first answer. `agent_namespace` is the namespace of the agents.
    pub fn new(agent_namespace: &str, wanted: Wanted) -> Self {
        Self { agent_namespace: tidy(agent_namespace), wanted, ..Self::default() }
    }

    /// Adds the answer of an agent.
    pub fn take(&mut self, AgentAnswer { node, pod, answer }: AgentAnswer, now: Timestamp) {
        let report = answer.and_then(|answer| NodeReport::read(&node, &answer, now));
        let (node, pod): (Arc<str>, Arc<str>) = (tidy(&node).into(), tidy(&pod).into());
        self.agents += 1;
        match report {
            Err(gap) => self.without_answer(node, pod, &gap),
            Ok(NodeReport { version, at, age, findings, mut unknown }) => {
                self.answered += 1;
                if self.oldest.as_ref().is_none_or(|(oldest, of)| (age, of) > (*oldest, &node)) {
                    self.oldest = Some((age, Arc::clone(&node)));
                }
                self.answered_nodes.insert(Arc::clone(&node));
                let too_many = findings.iter().filter(|problem| !self.keep(&node, problem)).count();
                if too_many > 0 {
                    unknown.push(Unknown::of(&not_kept(too_many)));
                }
                for unknown in &unknown {
                    self.unseen.take(&node, &pod, unknown, self.wanted.misses(unknown));
                }
                if self.wanted.document {
                    let own = |it: &Problem| it.scope == Scope::Node && self.wanted.wants(it);
                    let mut own: Vec<Problem> = findings.into_iter().filter(own).collect();
                    own.sort_by(worst_first);
                    self.nodes.push(Node {
                        node,
                        pod: Some(pod),
                        version,
                        looked_at: Some(format!("{at:.0}")),
                        age_seconds: Some(age),
                        findings: Some(own),
                        unknown,
                        ..Node::default()
                    });
                }
            }
        }
    }

    /// Keeps a finding that the user wants. Returns false if no space is left. A finding about the cluster is kept even
    /// below the wanted severity, because another node may report a higher severity.
    fn keep(&mut self, node: &Arc<str>, problem: &Problem) -> bool {
        let may_be_wanted = problem.scope == Scope::Cluster && self.wanted.is_in_scope(problem);
        if may_be_wanted || self.wanted.wants(problem) {
            return self.incidents.take(node, problem);
        }
        if self.hidden.len() < MOST_HIDDEN {
            self.hidden.insert(fingerprint(problem));
        }
        true
    }

    /// Adds an agent that was not queried.
    pub fn leave_out(&mut self, node: &str, pod: &str, stopped: Stopped) {
        self.agents += 1;
        self.left_out += 1;
        let gap = Gap::new(Source::Agent, Why::NotRequested, stopped.words());
        self.without_answer(tidy(node).into(), tidy(pod).into(), &gap);
    }

    fn without_answer(&mut self, node: Arc<str>, pod: Arc<str>, gap: &Gap) {
        let unknown = Unknown::of(gap);
        self.silent.take(&node, &pod, &unknown, true);
        if self.wanted.document {
            self.nodes.push(Node { node, pod: Some(pod), unknown: vec![unknown], ..Node::default() });
        }
    }

    /// The result of all queried agents. `stopped` is the reason why other agents were not queried.
    pub fn finish(self, stopped: Option<Stopped>) -> Fleet {
        let partial = stopped.map(|why| Partial { listed: self.agents, queried: self.agents - self.left_out, why });
        let (incidents, hidden): (Vec<Incident>, Vec<Incident>) =
            self.incidents.finish().into_iter().partition(|it| self.wanted.wants(&it.problem));
        let mut nodes = self.nodes;
        nodes.sort_by(|a, b| {
            let order = |it: &Node| (Arc::clone(&it.node), it.looked_at.is_none(), it.pod.clone());
            order(a).cmp(&order(b))
        });
        Fleet {
            agent_namespace: self.agent_namespace,
            partial,
            incidents,
            nodes,
            hidden: self.hidden.len() + hidden.len(),
            agents: self.agents,
            answered: self.answered,
            answered_nodes: self.answered_nodes.len(),
            oldest: self.oldest,
            silent: self.silent.finish(),
            unseen: self.unseen.finish(),
            counts: self.wanted.counts(),
        }
    }
}

impl Fleet {
    /// The result of a complete list of answers.
    pub fn of(agent_namespace: &str, answers: Vec<AgentAnswer>, wanted: &Wanted, now: Timestamp) -> Self {
        let mut gathering = Gathering::new(agent_namespace, wanted.clone());
        answers.into_iter().for_each(|answer| gathering.take(answer, now));
        gathering.finish(None)
    }
}

impl Wanted {
    fn is_in_scope(&self, problem: &Problem) -> bool {
        let here = self.namespace.is_none() || problem.subject.namespace == self.namespace;
        here && (self.rules.is_empty() || self.rules.iter().any(|it| it.names(&problem.rule, &problem.variant)))
    }

    fn counts(&self) -> Severity {
        self.min_severity.unwrap_or(Severity::Warning)
    }

    /// Whether this unknown result could hide a wanted finding that sets the result of the command.
    fn misses(&self, unknown: &Unknown) -> bool {
        let names = |it: &Named, rule: &String| it.names_any(rule, &unknown.variants);
        let of_rule = |rule: &String| self.rules.is_empty() || self.rules.iter().any(|it| names(it, rule));
        let has_objects = |rule: &String| can_be_of_objects(rule, &unknown.variants);
        let is_here = match &unknown.subject {
            _ if self.namespace.is_none() => true,
            Some(subject) if unknown.claims > 0 => subject.namespace == self.namespace,
            // An unknown result about a whole node or about several subjects may hide findings of any namespace.
            _ => unknown.rule.as_ref().is_none_or(has_objects),
        };
        is_here && unknown.rule.as_ref().is_none_or(of_rule) && unknown.open().decides(self.counts())
    }

    fn wants(&self, problem: &Problem) -> bool {
        self.is_in_scope(problem) && problem.severity >= self.min_severity.unwrap_or(Severity::Info)
    }
}
