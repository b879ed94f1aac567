//! Everything that was found in manifests.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{Linted, port_field_refused, shared};
use crate::{
    OF_MANIFESTS, Rule,
    findings::{PlacedFinding, Severity},
    ids::Rows,
};
use portreeve_facts::{Gap, NodePortRange, Place, Why};

/// What was found, and what was judged.
#[derive(Clone, Debug)]
pub struct LintReport {
    /// What is wrong, by place.
    pub findings: Vec<PlacedFinding>,
    /// What could not be read of the manifests or of the cluster, and where it is written.
    pub failures: Vec<(Gap, Option<Place>)>,
    /// Rules that could not tell of some object, and why.
    pub unknown: Vec<(Rows, Gap)>,
    /// The rules that were chosen.
    pub rules: Vec<Rows>,
    /// Those of them that lack what they compare with, and why.
    pub not_asked: Vec<(Rows, String)>,
    /// How many findings the owners of their objects accept; they are not among the others.
    pub accepted: usize,
    /// How many files were read.
    pub files: usize,
    /// How many objects there were, of whatever kind, read or not.
    pub objects: usize,
    /// How many of them were judged.
    pub judged: usize,
    /// Whether it may be that none is judged.
    pub allow_empty: bool,
    /// How many objects had the name of one that was there already.
    pub again: usize,
    /// How many others there were, by kind.
    pub skipped: BTreeMap<String, usize>,
    /// The NodePort range.
    pub range: NodePortRange,
    /// What the manifests were compared with, where it is something.
    pub against: Option<String>,
    /// Findings milder than this are neither reported nor counted. Where nothing was chosen, all are reported, and those from
    /// [`Severity::Warning`] on count.
    pub min_severity: Option<Severity>,
}

impl LintReport {
    /// The findings that are reported.
    pub fn reported(&self) -> impl Iterator<Item = &PlacedFinding> {
        let mildest = self.min_severity.unwrap_or(Severity::Info);
        self.findings.iter().filter(move |finding| finding.evidence.severity >= mildest)
    }

    /// Whether a finding counts.
    pub fn counts(&self, finding: &PlacedFinding) -> bool {
        finding.evidence.severity >= self.counts_from()
    }

    /// The severity from which on findings count.
    pub fn counts_from(&self) -> Severity {
        self.min_severity.unwrap_or(Severity::Warning)
    }

    /// Whether nothing was judged although something was expected.
    pub fn is_empty(&self) -> bool {
        self.judged == 0 && !self.allow_empty
    }
}

/// What rules say of manifests.
#[derive(Debug, Default)]
pub struct Found {
    /// What is wrong, by place.
    pub findings: Vec<PlacedFinding>,
    /// Rules that could not tell of some object, and why.
    pub unknown: Vec<(Rows, Gap)>,
    /// Rules that lack what they compare with, and why.
    pub not_asked: Vec<(Rows, String)>,
}

impl Found {
    /// A rule could not tell. Where nobody gave what it compares with, nothing failed.
    pub(super) fn leave_open(&mut self, rows: Rows, gap: Gap) {
        if gap.why == Why::NotAsked {
            // One reason is enough: each new Service has no endpoints yet.
            if !self.not_asked.iter().any(|(known, _)| *known == rows) {
                self.not_asked.push((rows, gap.detail));
            }
        } else if !self.unknown.contains(&(rows, gap.clone())) {
            self.unknown.push((rows, gap));
        }
    }
}

/// Runs these rules. The findings are sorted by place, and what is said of one place twice is said once.
pub fn lint(linted: &Linted, rules: &[Rows]) -> Found {
    let live: Vec<&'static Rule> = OF_MANIFESTS.iter().copied().filter(|rule| rules.contains(&rule.rows())).collect();
    let mut found = shared::judge(&live, linted);
    if rules.contains(&port_field_refused::ROWS) {
        found.findings.extend(port_field_refused::check(linted));
    }
    let findings = &mut found.findings;
    findings.sort_by(|one, other| {
        let key = |it: &PlacedFinding| (Reverse(it.evidence.severity), it.rule, it.evidence.variant);
        one.place.cmp(&other.place).then_with(|| key(one).cmp(&key(other)))
    });
    findings.dedup();
    found
}
