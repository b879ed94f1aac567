//! What a rule is.

use super::{
    Limits,
    ids::{Id, Rows},
    socket_needs::SocketNeed,
};
use crate::findings::{Judgements, RuleId, Severity, Verdict};
use portreeve_dataplane::Round;
use portreeve_facts::Source;

/// One rule: a value, not a trait.
#[derive(Debug)]
pub struct Rule {
    /// The id of its findings.
    pub id: &'static Id,
    /// The variants of this id that it reports. Evidence without a variant has the first one.
    pub variants: &'static [&'static str],
    /// The facts without which it cannot judge at all.
    pub needs: &'static [Source],
    /// The facts of [`super::SELDOM`] that it uses too.
    pub uses: &'static [Source],
    /// The sockets that it needs, and on which ports.
    pub socket_needs: &'static [SocketNeed],
    /// How long a problem must last before an agent reports it.
    pub patience: Patience,
    /// The rule itself.
    pub check: fn(&Round<'_>, &Limits) -> Judgements,
}

impl Rule {
    /// A rule without other inputs, whose problems must last for two scans.
    pub const fn of(
        id: &'static Id,
        variants: &'static [&'static str],
        needs: &'static [Source],
        check: fn(&Round<'_>, &Limits) -> Judgements,
    ) -> Self {
        Self { id, variants, needs, uses: &[], socket_needs: &[], patience: Patience::TwoScans, check }
    }

    pub(super) const fn uses(self, uses: &'static [Source]) -> Self {
        Self { uses, ..self }
    }

    pub(super) const fn sockets(self, socket_needs: &'static [SocketNeed]) -> Self {
        Self { socket_needs, ..self }
    }

    pub(super) const fn at_once(self) -> Self {
        Self { patience: Patience::One, ..self }
    }

    /// Whether it uses these facts, if they belong to [`super::SELDOM`].
    pub fn reads(&self, source: Source) -> bool {
        self.needs.contains(&source) || self.uses.contains(&source)
    }

    /// The name of its id.
    pub fn name(&self) -> RuleId {
        self.id.name
    }

    /// The id and the variants that it reports.
    pub fn rows(&self) -> Rows {
        Rows { rule: self.id.name, variants: self.variants }
    }

    /// The worst severity that it reports.
    pub fn ceiling(&self) -> Severity {
        self.rows().ceiling()
    }

    /// The rule's result in this round. Every problem names its variant.
    pub fn judge(&self, round: &Round<'_>, limits: &Limits) -> Judgements {
        let mut judgements = (self.check)(round, limits)?;
        for judgement in &mut judgements {
            if let Verdict::Problem(evidence) = &mut judgement.verdict {
                evidence.variant = evidence.variant_of(self.variants);
            }
        }
        Ok(judgements)
    }
}

/// How long a problem must last before an agent reports it. `check` has no patience: it makes one scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Two scans in a row: short states of creation, roll-out and restarts are not reported.
    TwoScans,
    /// One scan: the problem is permanent.
    One,
}
