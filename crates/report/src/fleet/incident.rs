//! An incident: one problem on any number of nodes. All nodes report the same rule, variant, subject, port, protocol,
//! severity and outcome. The summary is from the first node in the order of names.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    findings_document::{Problem, Value},
    likeness::{controlled, likeness},
};
use portreeve_facts::Protocol;
use portreeve_rules::findings::{Scope, Severity, Subject, SubjectKind, Vantage};

/// The largest number of incidents that are kept. A hostile agent can report any number of incidents.
pub(crate) const MOST: usize = 20_000;
const DIFFERENCES: usize = 20;

/// One problem with all nodes that report it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// The finding as the first node reports it. Two fields are for all nodes: `since` is the earliest time, and
    /// `affects` has all affected clients.
    #[serde(flatten)]
    pub(crate) problem: Problem,
    /// The node from which the words of the incident are; absent in a report of one node.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub words_of: Arc<str>,
    /// The node on which the problem began first; absent in a report of one node.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub since_of: Arc<str>,
    /// All nodes whose agents report the problem.
    pub nodes: Vec<Arc<str>>,
    /// The subjects, if they differ from node to node: the Nodes themselves, or pods of one controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<Subject>,
    /// The values that are different on other nodes: `summary`, `affects`, `remedy`, or the name of a piece of
    /// evidence. Names and addresses of nodes and pods may always differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<String>,
    /// Whether all nodes report the same summary.
    #[serde(skip)]
    pub same_words: bool,
}

/// Findings with equal keys are one incident. For a finding about the cluster, the severity and the outcome are not in
/// the key.
type Key = (
    Scope,
    String,
    String,
    SubjectKind,
    Option<String>,
    String,
    Option<u16>,
    Option<Protocol>,
    Option<(Severity, String)>,
);

#[derive(Debug, Default)]
pub(super) struct Incidents(BTreeMap<Key, Gathered>);

#[derive(Debug)]
struct Gathered {
    problem: Arc<Problem>,
    words_of: Arc<str>,
    /// The finding of the agent that answered first. Later findings are compared with this finding.
    reference: Arc<Problem>,
    reference_of: Arc<str>,
    since: String,
    since_of: Arc<str>,
    affects: BTreeSet<Vantage>,
    nodes: Vec<Arc<str>>,
    subjects: BTreeSet<Subject>,
    differs: BTreeSet<String>,
    same_words: bool,
}

impl Incidents {
    /// Adds the finding of a node. Returns false for a new incident if there are already [`MOST`] incidents.
    pub(super) fn take(&mut self, node: &Arc<str>, problem: &Problem) -> bool {
        let is_full = self.0.len() >= MOST;
        match self.0.entry(key(problem)) {
            Entry::Vacant(_) if is_full => return false,
            Entry::Vacant(place) => drop(place.insert(Gathered::of(node, problem))),
            Entry::Occupied(mut known) => known.get_mut().add(node, problem),
        }
        true
    }

    pub(super) fn finish(self) -> Vec<Incident> {
        let mut incidents: Vec<Incident> = self.0.into_values().map(Gathered::finish).collect();
        incidents.sort_by(|a, b| worst_first(&a.problem, &b.problem));
        incidents
    }
}

impl Gathered {
    fn of(node: &Arc<str>, problem: &Problem) -> Self {
        let shared = Arc::new(problem.clone());
        Self {
            problem: Arc::clone(&shared),
            words_of: Arc::clone(node),
            reference: shared,
            reference_of: Arc::clone(node),
            since: problem.since.clone(),
            since_of: Arc::clone(node),
            affects: problem.affects.iter().copied().collect(),
            nodes: vec![Arc::clone(node)],
            subjects: BTreeSet::from([problem.subject.clone()]),
            differs: BTreeSet::new(),
            same_words: true,
        }
    }

    fn add(&mut self, node: &Arc<str>, problem: &Problem) {
        self.compare(node, problem);
        // The summary and the severity must be from the same finding.
        let worse = problem.severity > self.problem.severity;
        if worse || (problem.severity == self.problem.severity && *node < self.words_of) {
            (self.problem, self.words_of) = (Arc::new(problem.clone()), Arc::clone(node));
        }
        if (time(&problem.since), node) < (time(&self.since), &self.since_of) {
            (self.since, self.since_of) = (problem.since.clone(), Arc::clone(node));
        }
        self.affects.extend(&problem.affects);
        self.nodes.push(Arc::clone(node));
        if !self.subjects.contains(&problem.subject) {
            self.subjects.insert(problem.subject.clone());
        }
    }

    fn compare(&mut self, node: &str, problem: &Problem) {
        let Self { reference, reference_of, differs, same_words, .. } = self;
        *same_words &= reference.summary == problem.summary;
        let alike = |one: &str, other: &str| one == other || likeness(one, reference_of) == likeness(other, node);
        let all_alike = |one: &[&str], other: &[&str]| {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| alike(one, other))
        };
        let mut note = |name: &str| {
            if differs.len() < DIFFERENCES && !differs.contains(name) {
                differs.insert(name.to_owned());
            }
        };
        if !alike(&reference.summary, &problem.summary) {
            note("summary");
        }
        if reference.affects != problem.affects {
            note("affects");
        }
        let [one, other] = [&**reference, problem].map(|it| it.remedy.iter().map(String::as_str).collect::<Vec<_>>());
        if !all_alike(&one, &other) {
            note("remedy");
        }
        if reference.evidence == problem.evidence {
            return;
        }
        // A map stays fast if a hostile agent sends a hundred thousand names.
        let mut by_name: BTreeMap<&str, [Vec<&str>; 2]> = BTreeMap::new();
        for (side, of) in [&**reference, problem].into_iter().enumerate() {
            for Value { name, value } in &of.evidence {
                by_name.entry(name).or_default()[side].push(value);
            }
        }
        for (name, [one, other]) in &by_name {
            if !all_alike(one, other) {
                note(name);
            }
        }
    }

    fn finish(self) -> Incident {
        let Self { problem, words_of, reference, since, since_of, affects, mut nodes, subjects, same_words, .. } = self;
        drop(reference);
        let mut problem = Arc::unwrap_or_clone(problem);
        (problem.since, problem.affects) = (since, affects.into_iter().collect());
        nodes.sort();
        nodes.dedup();
        let subjects = if subjects.len() > 1 { subjects.into_iter().collect() } else { Vec::new() };
        let differs = self.differs.into_iter().collect();
        Incident { problem, words_of, since_of, nodes, subjects, differs, same_words }
    }
}

impl Incident {
    pub(crate) fn on(node: &Arc<str>, problem: Problem) -> Self {
        let nobody: Arc<str> = "".into();
        Self {
            problem,
            words_of: Arc::clone(&nobody),
            since_of: nobody,
            nodes: vec![Arc::clone(node)],
            subjects: Vec::new(),
            differs: Vec::new(),
            same_words: true,
        }
    }
}

/// Parses a time. A malformed text becomes the latest possible time.
fn time(text: &str) -> Timestamp {
    text.parse().unwrap_or(Timestamp::MAX)
}

pub(super) fn fingerprint(problem: &Problem) -> u64 {
    let mut hasher = DefaultHasher::new();
    key(problem).hash(&mut hasher);
    hasher.finish()
}

pub(crate) fn common_name(subject: &Subject) -> &str {
    match subject.kind {
        // A Node subject is always the agent's own Node, so its name differs from node to node.
        SubjectKind::Node => "",
        SubjectKind::Pod => controlled(&subject.name).unwrap_or(&subject.name),
        _ => &subject.name,
    }
}

fn key(problem: &Problem) -> Key {
    let Problem { rule, variant, severity, scope, subject, port, protocol, outcome, .. } = problem;
    let name = match subject.kind {
        SubjectKind::Node if *scope == Scope::Cluster => &subject.name,
        _ => common_name(subject),
    };
    let impact = (*scope == Scope::Node).then(|| (*severity, outcome.clone()));
    (
        *scope,
        rule.clone(),
        variant.clone(),
        subject.kind,
        subject.namespace.clone(),
        name.to_owned(),
        *port,
        *protocol,
        impact,
    )
}

pub(super) fn worst_first(a: &Problem, b: &Problem) -> Ordering {
    let key = |it: &Problem| (it.rule.clone(), it.variant.clone(), it.subject.clone(), it.port, it.protocol);
    b.severity.cmp(&a.severity).then_with(|| key(a).cmp(&key(b)))
}
