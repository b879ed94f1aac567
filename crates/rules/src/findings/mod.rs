//! The types of problems. Rules make values of these types, and other crates read the values.
//!
//! These types are plain data.

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
pub(crate) use evidence::REFUSED;
pub use evidence::{Evidence, Impact};
pub use placed::PlacedFinding;
pub use remedy::{Remedy, Step, StepKind};
pub use scope::Scope;
pub use severity::Severity;
pub use subject::{Subject, SubjectKind};

use crate::{ids::Rows, wording::capital};
pub use portreeve_facts::{Affected, Vantage};
use portreeve_facts::{Gap, Protocol};

/// The name of an id in kebab-case. The id's page in the documentation has the same name. The Event reason is the name
/// in PascalCase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RuleId(pub &'static str);

impl RuleId {
    /// The Event reason: `listener-on-node-port` is `ListenerOnNodePort`.
    pub fn reason(self) -> String {
        self.0.split('-').map(capital).collect()
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

/// The result of a rule for one subject. A subject without a judgement is healthy or was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The subject.
    pub subject: Subject,
    /// The port, if there is one.
    pub port: Option<u16>,
    /// The protocol, if there is one.
    pub protocol: Option<Protocol>,
    /// The verdict.
    pub verdict: Verdict,
}

impl Judgement {
    /// A judgement without a port.
    pub fn of(subject: Subject, verdict: Verdict) -> Self {
        Self { subject, port: None, protocol: None, verdict }
    }

    /// A judgement for each verdict about one subject. Without a verdict, the subject is healthy.
    pub(crate) fn each(subject: &Subject, verdicts: impl IntoIterator<Item = Verdict>) -> Vec<Self> {
        let mut all: Vec<_> = verdicts.into_iter().map(|verdict| Self::of(subject.clone(), verdict)).collect();
        if all.is_empty() {
            all.push(Self::of(subject.clone(), Verdict::Healthy));
        }
        all
    }

    /// A verdict about one port of a subject.
    pub fn on_port(subject: Subject, (protocol, port): (Protocol, u16), verdict: Verdict) -> Self {
        Self { subject, port: Some(port), protocol: Some(protocol), verdict }
    }
}

/// The conclusion of a rule about a subject. According to the verdict, the ledger (the list of open findings) opens,
/// keeps or closes the finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rule judged the subject and found no problem.
    Healthy,
    /// The rule found this problem.
    Problem(Evidence),
    /// The rule could not judge, because this input is missing.
    Unknown(Gap),
}

impl Verdict {
    /// The problem, if there is one.
    pub fn into_problem(self) -> Option<Evidence> {
        if let Self::Problem(evidence) = self { Some(evidence) } else { None }
    }

    /// The severity of the problem, if there is one.
    pub fn severity(&self) -> Option<Severity> {
        if let Self::Problem(evidence) = self { Some(evidence.severity) } else { None }
    }
}

/// The judgements of one rule in a round. `Err` means that the rule could not judge, so all its open findings stay
/// open.
pub type Judgements = Result<Vec<Judgement>, Gap>;

/// The key of a finding. Two findings with equal keys are the same finding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The id.
    pub rule: RuleId,
    /// The variant of this id.
    pub variant: &'static str,
    /// The subject. Comparisons of keys ignore the subject's uid.
    pub subject: Subject,
    /// The port, if there is one.
    pub port: Option<u16>,
    /// The protocol, if there is one.
    pub protocol: Option<Protocol>,
}

impl Key {
    /// The id and the variant: `node-port-claimed-twice/lost`
    pub fn name(&self) -> String {
        format!("{}/{}", self.rule, self.variant)
    }
}

/// An open problem, and the time of its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The finding's key.
    pub key: Key,
    /// The measured evidence.
    pub evidence: Evidence,
    /// The time at which a scan first found the problem.
    pub since: Timestamp,
}

/// A rule that could not judge at all, or could not judge one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The findings that the rule could have reported.
    pub rows: Rows,
    /// The subject that the rule could not judge. `None` for several ports or objects, and if the rule could not judge
    /// at all.
    pub subject: Option<Subject>,
    /// The number of ports and objects that could not be judged. 0 if the rule could not judge at all.
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

    #[test]
    fn a_key_has_the_name_of_its_id_and_variant() {
        let (rule, subject) = (RuleId("listener-on-node-port"), Subject::node("n1", None));
        let key = Key { rule, variant: "loses", subject, port: None, protocol: None };
        assert_eq!(key.name(), "listener-on-node-port/loses");
    }
}
