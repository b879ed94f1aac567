//! The evidence of a problem. The rule that finds the problem builds the evidence once.

use std::fmt;

use super::{Remedy, Scope, Severity, remedy};
use crate::wording::MOST_LISTED;
use portreeve_facts::{Affected, ClaimOf, Vantage};

/// The outcome for an object in a manifest that the API server will refuse.
pub(crate) const REFUSED: &str = "api-server-refuses";

/// One problem, ready to be reported. The Event, the JSON, the table and the tests use this value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The severity.
    pub severity: Severity,
    /// Whether the problem is about this node or about the cluster.
    pub scope: Scope,
    /// One sentence that does not change from scan to scan, without pids, counters or times.
    pub summary: String,
    /// Names and values, in the reading order. A name may occur several times.
    pub values: Vec<(&'static str, String)>,
    /// The variant: one of the [variants](crate::ids::Variant) that the rule reports. Empty means the rule's first
    /// variant.
    pub variant: &'static str,
    /// The outcome for the subject: a word from the rule's closed list, never a name or a number. Empty if the variant
    /// has only one outcome, unless the API server will refuse the object.
    pub outcome: &'static str,
    /// The vantage points from which connections are lost.
    pub affects: Affected,
    /// The remedies, the most direct first. Each remedy alone is enough.
    pub remedies: Vec<Remedy>,
    /// The fields that the problem is about, if the rule judges manifests too. Lint reports the problem at these
    /// fields.
    pub about: Vec<ClaimOf>,
    /// Other fields that contribute to the problem.
    pub beside: Vec<ClaimOf>,
}

/// If one of these parts of a problem changes, the problem is reported again. The other parts may change from scan to
/// scan. For example, while a proxy does not answer, fewer vantage points are certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impact {
    /// The severity.
    pub severity: Severity,
    /// Whether the problem is about this node or about the cluster.
    pub scope: Scope,
    /// The outcome.
    pub outcome: &'static str,
}

impl Evidence {
    /// A problem of this node in one sentence.
    pub fn new(severity: Severity, summary: impl Into<String>) -> Self {
        Self {
            severity,
            scope: Scope::Node,
            summary: summary.into(),
            values: Vec::new(),
            variant: "",
            outcome: "",
            affects: Affected::new(),
            remedies: Vec::new(),
            about: Vec::new(),
            beside: Vec::new(),
        }
    }

    /// Marks the problem as a problem of the cluster: all nodes report the same problem.
    #[must_use]
    pub fn in_cluster(mut self) -> Self {
        self.scope = Scope::Cluster;
        self
    }

    /// Sets the variant, if the rule has several variants.
    #[must_use]
    pub fn variant(mut self, variant: &'static str) -> Self {
        self.variant = variant;
        self
    }

    /// Sets the outcome, if the rule has several outcomes. Each outcome has its own Event.
    #[must_use]
    pub fn outcome(mut self, outcome: &'static str) -> Self {
        self.outcome = outcome;
        self
    }

    /// Whether the API server will refuse an object in a manifest because of this problem.
    pub fn is_refused(&self) -> bool {
        self.outcome == REFUSED
    }

    /// The impact on clients.
    pub fn impact(&self) -> Impact {
        Impact { severity: self.severity, scope: self.scope, outcome: self.outcome }
    }

    /// Adds a value.
    #[must_use]
    pub fn value(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.values.push((name, value.to_string()));
        self
    }

    /// Adds several values under one name.
    #[must_use]
    pub fn each(mut self, name: &'static str, values: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        self.values.extend(values.into_iter().map(|value| (name, value.to_string())));
        self
    }

    /// Adds the first values of a list that may be long, and the number of the other values.
    #[must_use]
    pub fn list(self, name: &'static str, values: impl ExactSizeIterator<Item = impl fmt::Display>) -> Self {
        let all = values.len();
        self.each(name, values.take(MOST_LISTED)).and_more(name, all, MOST_LISTED)
    }

    /// Adds the number of the values that a shortened list leaves out: `and 3 more`. Adds nothing if the list is
    /// complete.
    #[must_use]
    pub fn and_more(self, name: &'static str, all: usize, listed: usize) -> Self {
        match all.saturating_sub(listed) {
            0 => self,
            more => self.value(name, format_args!("and {more} more")),
        }
    }

    /// Adds the vantage points from which connections are lost.
    #[must_use]
    pub fn affects(mut self, vantages: impl IntoIterator<Item = Vantage>) -> Self {
        self.affects.extend(vantages);
        self
    }

    /// Adds a remedy, as an alternative to the earlier remedies.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Remedy>) -> Self {
        self.remedies.push(remedy.into());
        self
    }

    /// Adds the fields that the problem is about.
    #[must_use]
    pub fn about(mut self, claims: impl IntoIterator<Item = ClaimOf>) -> Self {
        self.about.extend(claims);
        self
    }

    /// Adds other fields that contribute to the problem.
    #[must_use]
    pub fn beside(mut self, claims: impl IntoIterator<Item = ClaimOf>) -> Self {
        self.beside.extend(claims);
        self
    }

    /// Merges two problems of one subject, port and protocol. The worse problem keeps its sentence and severity.
    /// Vantage points and values are merged, and each remedy ends both problems. A problem of this node stays a problem
    /// of this node after the merge, because a report of another node must not replace the problem.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let (mut worse, milder) = if other.severity > self.severity { (other, self) } else { (self, other) };
        for value in milder.values {
            if !worse.values.contains(&value) {
                worse.values.push(value);
            }
        }
        worse.scope = worse.scope.min(milder.scope);
        worse.remedies = remedy::of_both(worse.remedies, milder.remedies);
        worse.affects.extend(milder.affects);
        for (all, more) in [(&mut worse.about, milder.about), (&mut worse.beside, milder.beside)] {
            let new: Vec<ClaimOf> = more.into_iter().filter(|it| !all.contains(it)).collect();
            all.extend(new);
        }
        worse
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_this_node_in_part_is_about_this_node() {
        let here = || Evidence::new(Severity::Info, "here");
        let everywhere = || Evidence::new(Severity::Critical, "everywhere").in_cluster();
        for merged in [here().merge(everywhere()), everywhere().merge(here())] {
            assert_eq!((merged.scope, merged.severity), (Scope::Node, Severity::Critical));
            assert_eq!(merged.summary, "everywhere");
        }
        assert_eq!(everywhere().merge(everywhere()).scope, Scope::Cluster);
    }

    #[test]
    fn an_impact_is_made_of_no_words() {
        let problem = Evidence::new(Severity::Warning, "it is wrong").affects([Vantage::Remote]);
        let reworded = Evidence { summary: "it is still wrong".to_owned(), ..problem.clone() };
        assert_eq!(
            reworded.affects([Vantage::Pods]).value("pid", 7).remedy(remedy::Step::advice("move it to 30001")).impact(),
            problem.impact()
        );
        for other in [
            Evidence { severity: Severity::Critical, ..problem.clone() },
            problem.clone().in_cluster(),
            problem.clone().outcome("refused"),
        ] {
            assert_ne!(other.impact(), problem.impact());
        }
    }
}
