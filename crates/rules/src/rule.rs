//! The type of a rule.

use super::{
    Limits,
    ids::{Id, Rows},
    socket_needs::SocketNeed,
};
use crate::findings::{Judgements, RuleId, Verdict};
use portreeve_dataplane::Round;
use portreeve_facts::Source;

/// One rule. Rules are values of this type, so no trait is necessary.
#[derive(Debug)]
pub struct Rule {
    /// The id of the rule's findings.
    pub id: &'static Id,
    /// The variants of this id that the rule reports. The first variant is the default for evidence.
    pub variants: &'static [&'static str],
    /// The facts that the rule needs to judge at all.
    pub needs: &'static [Source],
    /// Other facts that the rule uses. A fact of [`super::SELDOM`] is read only if a rule that runs lists the fact here
    /// or in `needs`.
    pub uses: &'static [Source],
    /// The facts about sockets that the rule needs, and the ports of these sockets.
    pub socket_needs: &'static [SocketNeed],
    /// Whether an agent reports a problem after one scan, because the problem is permanent. Otherwise a problem must
    /// last for two scans, because creations, rollouts and restarts cause short problems.
    pub at_once: bool,
    /// The function that judges.
    pub check: fn(&Round<'_>, &Limits) -> Judgements,
}

impl Rule {
    /// A rule that needs only these facts, and whose problems must last for two scans.
    pub const fn of(
        id: &'static Id,
        variants: &'static [&'static str],
        needs: &'static [Source],
        check: fn(&Round<'_>, &Limits) -> Judgements,
    ) -> Self {
        Self { id, variants, needs, uses: &[], socket_needs: &[], at_once: false, check }
    }

    pub(super) const fn uses(self, uses: &'static [Source]) -> Self {
        Self { uses, ..self }
    }

    pub(super) const fn sockets(self, socket_needs: &'static [SocketNeed]) -> Self {
        Self { socket_needs, ..self }
    }

    pub(super) const fn at_once(self) -> Self {
        Self { at_once: true, ..self }
    }

    /// Whether the rule uses these facts, if the facts are in [`super::SELDOM`].
    pub fn reads(&self, source: Source) -> bool {
        self.needs.contains(&source) || self.uses.contains(&source)
    }

    /// The name of the rule's id.
    pub fn name(&self) -> RuleId {
        self.id.name
    }

    /// The id and the variants that the rule reports.
    pub fn rows(&self) -> Rows {
        Rows { rule: self.id.name, variants: self.variants }
    }

    /// The rule's result in this round. Every problem names its variant.
    pub fn judge(&self, round: &Round<'_>, limits: &Limits) -> Judgements {
        let mut judgements = (self.check)(round, limits)?;
        for judgement in &mut judgements {
            if let Verdict::Problem(evidence) = &mut judgement.verdict
                && evidence.variant.is_empty()
            {
                evidence.variant = self.variants.first().copied().unwrap_or_default();
            }
        }
        Ok(judgements)
    }
}
