//! What a rule of manifests is.

use super::Linted;
use crate::{
    Rule,
    findings::{PlacedFinding, RuleId},
    ids::{Id, Rows},
};
/// One rule: a value.
#[derive(Clone, Copy, Debug)]
pub struct LintRule {
    /// What it is about.
    pub id: &'static Id,
    /// The variants of this id that it finds in manifests.
    pub variants: &'static [&'static str],
    /// What it compares manifests with.
    needs: Needs,
    check: Check,
}

/// What a rule compares manifests with; without it nothing is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing, or whatever is there.
    Nothing,
    /// The listeners of a node.
    Listeners,
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
        id: &'static Id,
        variants: &'static [&'static str],
        check: fn(&Linted) -> Vec<PlacedFinding>,
    ) -> Self {
        Self { id, variants, needs: Needs::Nothing, check: Check::Own(check) }
    }

    /// The same rule, which needs something to compare with.
    pub(super) const fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    /// A rule of objects that are there already.
    pub(super) fn shared(rule: &'static Rule) -> Self {
        Self { id: rule.id, variants: rule.variants, needs: Needs::Nothing, check: Check::Shared(rule) }
    }

    /// The name of its id.
    pub fn name(&self) -> RuleId {
        self.id.name
    }

    /// The id and the variants that it finds.
    pub fn rows(&self) -> Rows {
        Rows { rule: self.id.name, variants: self.variants }
    }

    /// Why it cannot be asked, where it lacks what it compares with.
    pub fn lacks(&self, linted: &Linted) -> Option<String> {
        match self.needs {
            Needs::Listeners if linted.snapshot.kernel.listeners.seen().is_none() => {
                Some("compared with no snapshot of a node".to_owned())
            }
            Needs::Nothing | Needs::Listeners => None,
        }
    }

    /// The rule of objects that are there already, where it is one.
    pub(super) fn live(&self) -> Option<&'static Rule> {
        if let Check::Shared(rule) = self.check { Some(rule) } else { None }
    }

    /// What a rule of manifests alone finds.
    pub(super) fn judge(&self, linted: &Linted) -> Vec<PlacedFinding> {
        let Check::Own(check) = self.check else { return Vec::new() };
        let mut findings = check(linted);
        findings.iter_mut().for_each(|it| it.evidence.variant = it.evidence.variant_of(self.variants));
        findings
    }
}
