//! What is wrong: the words in which rules report, and which other crates read.
//!
//! Never: behaves. No I/O, no clock, no thresholds, no Kubernetes client types.

mod effect;
mod evidence;
mod placed;
mod remedy;
mod scope;
mod severity;
mod subject;

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

pub use effect::{Effect, PodRef, ServiceRef};
pub use evidence::{Evidence, Impact};
pub use placed::PlacedFinding;
pub use remedy::{Remedy, Step, StepKind};
pub use scope::Scope;
pub use severity::Severity;
pub use subject::{Subject, SubjectKind};

use crate::ids::Rows;
pub use portreeve_facts::{Affected, Vantage};
use portreeve_facts::{Gap, Protocol};

/// The name of an id in kebab-case: its page and, in PascalCase, the Events' reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RuleId(pub &'static str);

impl RuleId {
    /// The Event reason: `listener-on-node-port` is `ListenerOnNodePort`.
    pub fn reason(self) -> String {
        self.0
            .split('-')
            .flat_map(|word| {
                let mut letters = word.chars();
                letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters)
            })
            .collect()
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

/// What a rule says about one subject. A subject that a rule does not mention is healthy, or gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Whom it is about.
    pub subject: Subject,
    /// The port it is about, where it is about one.
    pub port: Option<u16>,
    /// The protocol, where it is about one.
    pub protocol: Option<Protocol>,
    /// What was found.
    pub verdict: Verdict,
}

impl Judgement {
    /// One that is about no port.
    pub fn of(subject: Subject, verdict: Verdict) -> Self {
        Self { subject, port: None, protocol: None, verdict }
    }
}

/// Clear, raise or hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was looked at, and nothing is wrong.
    Healthy,
    /// Something is wrong.
    Problem(Evidence),
    /// It is not known, and which input was missing.
    Unknown(Gap),
}

impl Verdict {
    /// What is wrong, where something is.
    pub fn into_problem(self) -> Option<Evidence> {
        if let Self::Problem(evidence) = self { Some(evidence) } else { None }
    }

    /// How bad it is, where something is wrong.
    pub fn severity(&self) -> Option<Severity> {
        if let Self::Problem(evidence) = self { Some(evidence.severity) } else { None }
    }
}

/// One rule's round. The outer error means that nothing could be judged: everything known is held.
pub type Judgements = Result<Vec<Judgement>, Gap>;

/// What makes two findings the same one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its id.
    pub rule: RuleId,
    /// The variant of this id.
    pub variant: &'static str,
    /// Whom it is about; the uid does not count.
    pub subject: Subject,
    /// The port, where it is about one.
    pub port: Option<u16>,
    /// The protocol, where it is about one.
    pub protocol: Option<Protocol>,
}

impl Key {
    /// `node-port-claimed-twice/lost`
    pub fn name(&self) -> String {
        format!("{}/{}", self.rule, self.variant)
    }
}

/// An open problem, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What makes it this one.
    pub key: Key,
    /// What was measured, once.
    pub evidence: Evidence,
    /// When it was first seen.
    pub since: Timestamp,
}

/// A rule, or one subject of it, that could not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// What it would have judged.
    pub rows: Rows,
    /// The subject, where only this one is not known.
    pub subject: Option<Subject>,
    /// How many ports and objects could not be judged for it; none where the rule could not judge at all.
    pub claims: usize,
    /// The input that was missing.
    pub gap: Gap,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reason_is_the_id_in_pascal_case() {
        assert_eq!(RuleId("listener-on-node-port").reason(), "ListenerOnNodePort");
    }
}
