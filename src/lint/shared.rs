//! Rules of objects that are there already, asked of what the manifests would make.

use std::collections::HashMap;

use super::Linted;
use crate::{
    facts::{Claim, Gap, Manifest, Source, View, Why},
    findings::{Evidence, Judgement, PlacedFinding, SubjectKind, Verdict},
    rules::{Limits, Opinion, Rule, ask},
};

/// Fields of other objects that are named with a finding.
const MOST_RELATED: usize = 16;

/// Fields by the number that they claim.
type ByNumber<'a> = HashMap<u16, Vec<(&'a Manifest, &'a Claim)>>;

/// What the rule finds at places of the manifests, and why where it could not tell. What it says of other objects is not about
/// the manifests.
pub(super) fn judge(rule: &'static Rule, linted: &Linted) -> (Vec<PlacedFinding>, Vec<Gap>) {
    let mut by_number = ByNumber::new();
    for (manifest, claim) in linted.claims() {
        if let Some((number, _)) = claim.what.port() {
            by_number.entry(number).or_default().push((manifest, claim));
        }
    }
    let view = View { now: &linted.snapshot, before: None };
    let (mut findings, mut unknown) = (Vec::new(), Vec::new());
    for Opinion { judgements, .. } in ask(&[rule], view, &Limits::default()) {
        match judgements {
            Some(Ok(judgements)) => {
                for judgement in judgements {
                    match judgement.verdict {
                        Verdict::Healthy => {}
                        Verdict::Unknown(gap) => unknown.push(gap),
                        Verdict::Problem(ref evidence) => {
                            findings.extend(placed(rule, linted, &by_number, &judgement, evidence));
                        }
                    }
                }
            }
            Some(Err(gap)) => unknown.push(gap),
            None => {
                let detail = format!("rule {} failed, which is a defect of portreeve", rule.id);
                unknown.push(Gap::new(Source::Services, Why::Malformed, detail));
            }
        }
    }
    (findings, unknown)
}

/// A judgement at each field that it is about.
fn placed(
    rule: &Rule,
    linted: &Linted,
    by_number: &ByNumber<'_>,
    judgement: &Judgement,
    evidence: &Evidence,
) -> Vec<PlacedFinding> {
    let Judgement { subject, port, protocol, .. } = judgement;
    let all = port.and_then(|port| by_number.get(&port)).map_or(&[][..], Vec::as_slice);
    let is_about = |manifest: &Manifest, claim: &Claim| match subject.kind {
        SubjectKind::Service => {
            let name = (Some(manifest.namespace.as_str()), manifest.name.as_str());
            claim.what.of_service().is_some() && name == (subject.namespace.as_deref(), subject.name.as_str())
        }
        // One of the workloads that its evidence names.
        _ => claim.what.of_pods().is_some() && is_named(evidence, &manifest.to_string()),
    };
    let own = all.iter().filter(|(manifest, claim)| {
        claim.what.port().map(|(_, protocol)| protocol) == *protocol && is_about(manifest, claim)
    });
    let finding = |&(manifest, claim): &(&Manifest, &Claim)| {
        // The API server compares numbers of Services, whatever the protocol; nodes compare ports of pods by both.
        let has_a_part = |other: &Claim| {
            let both = claim.what.of_service().is_some() && other.what.of_service().is_some();
            other.place != claim.place && (both || other.what.port() == claim.what.port())
        };
        let others = all.iter().filter(|(_, other)| has_a_part(other)).take(MOST_RELATED);
        PlacedFinding {
            related: others.map(|(manifest, claim)| (claim.place.clone(), manifest.to_string())).collect(),
            ..linted.finding(rule.id, (manifest, claim), evidence.clone())
        }
    };
    own.map(finding).collect()
}

/// Whether a value of the evidence begins with this name, or the evidence leaves names out.
fn is_named(evidence: &Evidence, name: &str) -> bool {
    let names = |value: &str| value.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    evidence.values.iter().any(|(_, value)| names(value) || value.starts_with("and "))
}
