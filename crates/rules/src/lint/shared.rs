//! Rules of objects that are there already, asked of what the manifests would make.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    mem,
};

use super::Linted;
use crate::{
    findings::{Evidence, PlacedFinding, Verdict},
    {Limits, Opinion, Rule, ask},
};
use portreeve_facts::{Claim, ClaimOf, Gap, Manifest, Place, Source, Why};

/// Fields of other objects that are named with a finding.
const MOST_RELATED: usize = 16;

/// What the rule finds at places of the manifests, and why where it could not tell. What it says of other objects is not about
/// the manifests.
pub(super) fn judge(rule: &'static Rule, linted: &Linted) -> (Vec<PlacedFinding>, Vec<Gap>) {
    let fields = Fields::of(linted);
    let limits = Limits::default();
    let round = limits.round(&linted.snapshot, None);
    let (mut findings, mut unknown) = (BTreeMap::new(), Vec::new());
    for Opinion { judgements, .. } in ask(&[rule], &round, &limits) {
        match judgements {
            Some(Ok(judgements)) => {
                for judgement in judgements {
                    match judgement.verdict {
                        Verdict::Healthy => {}
                        Verdict::Unknown(gap) => unknown.push(gap),
                        Verdict::Problem(evidence) => {
                            fields.place(rule, evidence).into_iter().for_each(|it| take(&mut findings, it));
                        }
                    }
                }
            }
            Some(Err(gap)) => unknown.push(gap),
            None => {
                let detail = format!("rule {} failed, which is a defect of portreeve", rule.rows());
                unknown.push(Gap::new(Source::Services, Why::Malformed, detail));
            }
        }
    }
    (findings.into_values().collect(), unknown)
}

/// A field of an object has one finding of a variant: an address that is shared on several ports is one mistake. With an anchor of
/// YAML two objects may have a field at one place.
fn take(findings: &mut BTreeMap<(Place, String, &'static str), PlacedFinding>, finding: PlacedFinding) {
    match findings.entry((finding.place.clone(), finding.object.clone(), finding.evidence.variant)) {
        Entry::Vacant(entry) => {
            entry.insert(finding);
        }
        Entry::Occupied(mut entry) => {
            let known = entry.get_mut();
            let nothing = Evidence::new(finding.evidence.severity, String::new());
            known.evidence = mem::replace(&mut known.evidence, nothing).merge(finding.evidence);
            for related in finding.related {
                if known.related.len() < MOST_RELATED && !known.related.contains(&related) {
                    known.related.push(related);
                }
            }
        }
    }
}

/// The fields of the manifests by what rules know of them. One object may be there twice.
struct Fields<'a> {
    linted: &'a Linted,
    by_claim: HashMap<ClaimOf, Vec<(&'a Manifest, &'a Claim)>>,
}

impl<'a> Fields<'a> {
    fn of(linted: &'a Linted) -> Self {
        let mut by_claim: HashMap<_, Vec<_>> = HashMap::new();
        for (manifest, claim) in linted.claims() {
            by_claim.entry(ClaimOf::written(manifest, claim)).or_default().push((manifest, claim));
        }
        Self { linted, by_claim }
    }

    fn written<'b>(&'b self, claims: &'b [ClaimOf]) -> impl Iterator<Item = (&'a Manifest, &'a Claim)> + 'b {
        claims.iter().filter_map(|claim| self.by_claim.get(claim)).flatten().copied()
    }

    /// A problem at each field that it is about. Where none of them is in the manifests, as of a Service that is there already,
    /// it is told at the ports of pods that have a part in it: no other judgement is about these.
    fn place(&self, rule: &Rule, mut evidence: Evidence) -> Vec<PlacedFinding> {
        let (about, beside) = (mem::take(&mut evidence.about), mem::take(&mut evidence.beside));
        let of_pods: Vec<ClaimOf> = match self.written(&about).next() {
            None => beside.iter().filter(|claim| claim.is_of_pods()).cloned().collect(),
            Some(_) => Vec::new(),
        };
        let at = if of_pods.is_empty() { &about } else { &of_pods };
        let finding = |(manifest, claim): (&Manifest, &Claim)| {
            let own = (manifest.to_string(), &claim.path);
            let others = self.written(&about).chain(self.written(&beside));
            // A second copy of the object has no part in it.
            let others =
                others.filter(|(manifest, other)| (manifest.to_string(), &other.path) != own).take(MOST_RELATED);
            PlacedFinding {
                related: others.map(|(manifest, claim)| (claim.place.clone(), manifest.to_string())).collect(),
                ..self.linted.finding(rule.name(), (manifest, claim), evidence.clone())
            }
        };
        self.written(at).map(finding).collect()
    }
}
