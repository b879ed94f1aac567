//! Findings that the owner of an object accepts with the annotation `portreeve/accept`.

use std::collections::HashMap;

use super::{Linted, named_of_manifests};
use crate::{
    findings::{PlacedFinding, RuleId},
    ids::{Named, Rows},
};
use portreeve_facts::{ACCEPT, Accepts, Gap, Manifest, Place, Source, Why};

/// The findings that no annotation accepts, and the number of accepted findings. An annotation accepts only findings
/// about the object that has the annotation.
pub fn without_accepted(linted: &Linted, findings: Vec<PlacedFinding>) -> (Vec<PlacedFinding>, usize) {
    let accepting = linted.manifests.iter().filter_map(|manifest| Some((manifest, manifest.accepts.as_ref()?)));
    let by_place: HashMap<&Place, &Accepts> =
        accepting.flat_map(|(manifest, accepts)| manifest.fields().map(move |claim| (&claim.place, accepts))).collect();
    let is_accepted = |finding: &PlacedFinding| {
        by_place.get(&finding.place).is_some_and(|it| names(it, finding.rule, finding.evidence.variant))
    };
    let all = findings.len();
    let others: Vec<PlacedFinding> = findings.into_iter().filter(|finding| !is_accepted(finding)).collect();
    let accepted = all - others.len();
    (others, accepted)
}

fn names(Accepts { rules, .. }: &Accepts, rule: RuleId, variant: &str) -> bool {
    rules.iter().filter_map(|name| Named::parse(name)).any(|named| named.names(rule.0, variant))
}

/// Whether an annotation accepts each finding that a rule could report about the object.
pub(super) fn accepts_all(manifest: &Manifest, rows: Rows) -> bool {
    manifest.accepts.as_ref().is_some_and(|it| rows.variants.iter().all(|variant| names(it, rows.rule, variant)))
}

/// Errors in annotations. A misspelt name accepts nothing, so the user must see the error.
pub fn judge_acceptance(linted: &Linted) -> Vec<(Gap, Place)> {
    linted.manifests.iter().filter_map(complaint).collect()
}

fn complaint(manifest: &Manifest) -> Option<(Gap, Place)> {
    let Accepts { rules, place } = manifest.accepts.as_ref()?;
    let strange: Vec<String> =
        rules.iter().filter(|name| named_of_manifests(name).is_none()).map(|name| format!("{name:?}")).collect();
    let what = match (rules.is_empty(), strange.is_empty()) {
        (true, _) => "names no rule, wanted RULE,RULE".to_owned(),
        (false, false) => format!("names {}, which is no rule that judges manifests", strange.join(", ")),
        (false, true) => return None,
    };
    let detail = format!("{place}: {manifest}: the annotation {ACCEPT} {what}");
    Some((Gap::new(Source::Services, Why::Malformed, detail), place.clone()))
}
