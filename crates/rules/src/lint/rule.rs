//! What a rule of manifests is.

use super::{Linted, Source, shared};
use crate::{
    Rule,
    findings::{PlacedFinding, RuleId, Severity},
};
use portreeve_facts::Gap;

/// One rule: a value.
#[derive(Clone, Copy, Debug)]
pub struct LintRule {
    /// Its name.
    pub id: RuleId,
    /// Its title: what is wrong, in a few words.
    pub title: &'static str,
    /// The worst severity that it reports.
    pub ceiling: Severity,
    /// Its source file, whose head is its documentation.
    page: &'static str,
    /// What it compares manifests with.
    needs: Needs,
    check: Check,
}

/// What a rule compares manifests with; without it nothing is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing, or whatever is there.
    Nothing,
    /// The pods of a cluster.
    Pods,
    /// The listeners of a node.
    Listeners,
    /// Addresses of a cluster, or the networks of its cluster IPs.
    Addresses,
}

#[derive(Clone, Copy, Debug)]
enum Check {
    /// A rule of objects that are there already.
    Shared(&'static Rule),
    /// A rule of manifests alone.
    Own(fn(&Linted) -> Vec<PlacedFinding>),
}

impl LintRule {
    /// A rule of manifests alone.
    pub(super) const fn new(
        id: &'static str,
        title: &'static str,
        ceiling: Severity,
        page: &'static str,
        check: fn(&Linted) -> Vec<PlacedFinding>,
    ) -> Self {
        Self { id: RuleId(id), title, ceiling, page, needs: Needs::Nothing, check: Check::Own(check) }
    }

    /// The same rule, which needs something to compare with.
    pub(super) const fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    /// A rule of objects that are there already.
    pub(super) fn shared(rule: &'static Rule) -> Self {
        let Rule { id, title, ceiling, page, .. } = *rule;
        Self { id, title, ceiling, page, needs: Needs::Nothing, check: Check::Shared(rule) }
    }

    /// Its documentation in Markdown: the head of its source file.
    pub fn documentation(&self) -> String {
        Rule::head(self.page)
    }

    /// Whether it is about manifests alone. The others are rules of nodes, too.
    pub fn is_own(&self) -> bool {
        matches!(self.check, Check::Own(_))
    }

    /// Why it cannot be asked, where it lacks what it compares with.
    pub fn lacks(&self, linted: &Linted) -> Option<String> {
        let nowhere = linted.source == Source::Nowhere;
        match self.needs {
            Needs::Pods if nowhere => Some("compared with no cluster".to_owned()),
            Needs::Pods => linted.snapshot.cluster.pods.gap().map(|gap| format!("without pods: {}", gap.detail)),
            Needs::Listeners if linted.snapshot.kernel.listeners.seen().is_none() => {
                Some("compared with no snapshot of a node".to_owned())
            }
            Needs::Addresses if nowhere && linted.service_cidrs.is_empty() => {
                Some("compared with no cluster, and no --service-cidr".to_owned())
            }
            Needs::Nothing | Needs::Listeners | Needs::Addresses => None,
        }
    }

    /// What it finds, and why where it could not tell.
    pub(super) fn judge(&self, linted: &Linted) -> (Vec<PlacedFinding>, Vec<Gap>) {
        match self.check {
            Check::Shared(rule) => shared::judge(rule, linted),
            Check::Own(check) => (check(linted), Vec::new()),
        }
    }
}
