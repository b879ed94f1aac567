//! What a rule of manifests is.

use super::{Linted, shared};
use crate::{
    facts::Gap,
    findings::{PlacedFinding, RuleId, Severity},
    rules::Rule,
};

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
    check: Check,
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
        Self { id: RuleId(id), title, ceiling, page, check: Check::Own(check) }
    }

    /// A rule of objects that are there already.
    pub(super) fn shared(rule: &'static Rule) -> Self {
        let Rule { id, title, ceiling, page, .. } = *rule;
        Self { id, title, ceiling, page, check: Check::Shared(rule) }
    }

    /// Its documentation in Markdown: the head of its source file.
    pub fn documentation(&self) -> String {
        Rule::head(self.page)
    }

    /// What it finds, and why where it could not tell.
    pub(super) fn judge(&self, linted: &Linted) -> (Vec<PlacedFinding>, Vec<Gap>) {
        match self.check {
            Check::Shared(rule) => shared::judge(rule, linted),
            Check::Own(check) => (check(linted), Vec::new()),
        }
    }
}
