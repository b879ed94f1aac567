//! The result of lint.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

use jiff::Timestamp;

use super::{Linted, accepted::accepts_all, moved_number, port_field_refused, shared};
use crate::{
    OF_MANIFESTS, Rule,
    findings::{PlacedFinding, Severity, SubjectKind, Unknown},
    ids::Rows,
    node_port_claimed_twice,
};
use portreeve_facts::{Gap, NodePortRange, Place, Why};

/// The findings, and the number of judged objects.
#[derive(Clone, Debug)]
pub struct LintReport {
    /// The findings, sorted by place.
    pub findings: Vec<PlacedFinding>,
    /// Errors of reading the manifests or the cluster, with the place if there is one.
    pub failures: Vec<(Gap, Option<Place>)>,
    /// Rules that could not judge some object. The entries name no subject.
    pub unknown: Vec<Unknown>,
    /// The rules that were chosen.
    pub rules: Vec<Rows>,
    /// The chosen rules that did not run, and the missing input for each rule.
    pub not_run: Vec<(Rows, String)>,
    /// The number of findings that an annotation accepts. `findings` does not contain the accepted findings.
    pub accepted: usize,
    /// How many files were read.
    pub files: usize,
    /// Folders of Helm charts. Lint does not read these folders.
    pub charts: Vec<String>,
    /// One text for each skipped patch that is outside of the kustomization's folder, or that a kustomization also
    /// lists under `resources`.
    pub left_out: Vec<String>,
    /// The number of objects of all kinds, including objects that were not read.
    pub objects: usize,
    /// How many objects were judged.
    pub judged: usize,
    /// The number of objects with the name of an earlier object.
    pub again: usize,
    /// The number of objects that no rule judges, by kind.
    pub skipped: BTreeMap<String, usize>,
    /// The NodePort range.
    pub range: NodePortRange,
    /// The name of the cluster or file with which the manifests were compared, if any.
    pub against: Option<String>,
    /// The time of the cluster or the snapshot with which the manifests were compared. `None` for a file of objects.
    pub looked_at: Option<Timestamp>,
    /// The namespace of objects whose manifests name no namespace. `None` unless the user gives `--against cluster` and
    /// no `--namespace`.
    pub namespace: Option<String>,
    /// The lowest severity that is reported and counted. If `None`, all findings are reported, and findings of
    /// [`Severity::Warning`] and above set the result.
    pub min_severity: Option<Severity>,
}

impl LintReport {
    /// The findings that are reported.
    pub fn reported(&self) -> impl Iterator<Item = &PlacedFinding> {
        let mildest = self.min_severity.unwrap_or(Severity::Info);
        self.findings.iter().filter(move |finding| finding.evidence.severity >= mildest)
    }

    /// Whether a finding sets the result.
    pub fn counts(&self, finding: &PlacedFinding) -> bool {
        finding.evidence.severity >= self.counts_from()
    }

    /// The lowest severity that sets the result.
    pub fn counts_from(&self) -> Severity {
        self.min_severity.unwrap_or(Severity::Warning)
    }
}

/// The results of the rules for manifests.
#[derive(Debug, Default)]
pub struct Found {
    /// The findings, sorted by place.
    pub findings: Vec<PlacedFinding>,
    /// Rules that could not judge some object, with the reason, and the number of ports and objects that the rule could
    /// not judge. The number is 0 if the rule could not judge at all.
    pub unknown: BTreeMap<(Rows, Gap), usize>,
    /// Rules that did not run, and the missing input for each rule.
    pub not_run: Vec<(Rows, String)>,
}

impl Found {
    /// Lists the rule as not run if the user did not give the missing input, otherwise as unknown.
    pub(super) fn leave_open(&mut self, rows: Rows, gap: Gap, claims: usize) {
        if gap.why == Why::NotRequested {
            // One reason for each rule is enough. For example, many new Services have no endpoints yet.
            if !self.not_run.iter().any(|(known, _)| *known == rows) {
                self.not_run.push((rows, gap.detail));
            }
        } else {
            *self.unknown.entry((rows, gap)).or_default() += claims;
        }
    }
}

/// Runs these rules. The findings are sorted by place, without duplicates.
pub fn lint(linted: &Linted, rules: &[Rows]) -> Found {
    let live: Vec<&'static Rule> = OF_MANIFESTS.iter().copied().filter(|rule| rules.contains(&rule.rows())).collect();
    let mut found = shared::judge(&live, linted);
    if rules.contains(&port_field_refused::ROWS) {
        found.findings.extend(port_field_refused::check(linted));
    }
    let of_numbers = node_port_claimed_twice::RULE.rows();
    if rules.contains(&of_numbers) {
        found.findings.extend(moved_number::check(linted));
        let services = linted.manifests.iter().filter(|it| it.kind == SubjectKind::Service.name());
        let judged: HashSet<(&str, &str)> =
            services.filter(|it| !accepts_all(it, of_numbers)).map(|it| (&*it.namespace, &*it.name)).collect();
        for (_, gap) in linted.unsure.iter().filter(|(it, _)| judged.contains(&(&*it.namespace, &*it.name))) {
            found.leave_open(of_numbers, gap.clone(), 1);
        }
    }
    let findings = &mut found.findings;
    findings.sort_by(|one, other| {
        let key = |it: &PlacedFinding| (Reverse(it.evidence.severity), it.rule, it.evidence.variant);
        one.place.cmp(&other.place).then_with(|| key(one).cmp(&key(other)))
    });
    findings.dedup();
    found
}
