//! Runs the rules for a live cluster on the objects that the manifests would make.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    mem,
};

use super::{Linted, accepted::accepts_all, report::Found};
use crate::{
    findings::{Evidence, Judgement, PlacedFinding, Subject, SubjectKind, Verdict},
    ids::Rows,
    {Limits, Opinion, Rule, run_rules},
};
use portreeve_facts::{Claim, ClaimOf, Gap, Manifest, Place, Source, Why};

const MOST_RELATED: usize = 16;

/// Runs the rules, and leaves out findings about objects that are not in the manifests.
pub(super) fn judge(rules: &[&'static Rule], linted: &Linted) -> Found {
    let fields = Fields::of(linted);
    let limits = Limits::default();
    let round = limits.round(&linted.snapshot, None);
    let mut all = Found::default();
    for Opinion { rule, judgements } in run_rules(rules, &round, &limits) {
        let mut findings = BTreeMap::new();
        match judgements {
            Some(Ok(judgements)) => {
                for Judgement { subject, port, verdict, .. } in judgements {
                    match verdict {
                        Verdict::Unknown(gap) if fields.are_about(rule.rows(), &subject, port) => {
                            all.leave_open(rule.rows(), gap, subject.claims(port));
                        }
                        Verdict::Unknown(_) | Verdict::Healthy => {}
                        Verdict::Problem(evidence) => {
                            fields.place(rule, evidence).into_iter().for_each(|it| take(&mut findings, it));
                        }
                    }
                }
            }
            Some(Err(gap)) => all.leave_open(rule.rows(), gap, 0),
            None => {
                let detail = format!("rule {} failed: this is a defect of portreeve", rule.rows());
                all.leave_open(rule.rows(), Gap::new(Source::Services, Why::Malformed, detail), 0);
            }
        }
        all.findings.extend(findings.into_values());
    }
    all
}

/// A field has at most one finding of each variant, even if several ports share an address in the field. The key has
/// the object too, because with a YAML anchor, fields of two objects have one place.
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

/// The fields and objects of the manifests, by the claim, Service or port of a finding. The manifests may contain an
/// object twice.
struct Fields<'a> {
    linted: &'a Linted,
    by_claim: HashMap<ClaimOf, Vec<(&'a Manifest, &'a Claim)>>,
    services: HashMap<(&'a str, &'a str), Vec<&'a Manifest>>,
    ports: HashMap<u16, Vec<&'a Manifest>>,
}

impl<'a> Fields<'a> {
    fn of(linted: &'a Linted) -> Self {
        let mut by_claim: HashMap<_, Vec<_>> = HashMap::new();
        for (manifest, claim) in linted.claims() {
            by_claim.entry(ClaimOf::written(manifest, claim)).or_default().push((manifest, claim));
        }
        let mut services: HashMap<_, Vec<_>> = HashMap::new();
        for it in linted.manifests.iter().filter(|it| it.kind == SubjectKind::Service.name()) {
            services.entry((&*it.namespace, &*it.name)).or_default().push(it);
        }
        let mut ports: HashMap<_, Vec<_>> = HashMap::new();
        for (manifest, (port, _)) in linted.claims().filter_map(|(it, claim)| Some((it, claim.what.port()?))) {
            ports.entry(port).or_default().push(manifest);
        }
        Self { linted, by_claim, services, ports }
    }

    /// Whether a subject is in the manifests: a Service of the manifests, or another subject with a port that the
    /// manifests claim. Manifests that accept all findings of the rule are left out.
    fn are_about(&self, rows: Rows, Subject { kind, namespace, name, .. }: &Subject, port: Option<u16>) -> bool {
        let manifests = match (kind, port) {
            (SubjectKind::Service, _) => self.services.get(&(namespace.as_deref().unwrap_or_default(), name.as_str())),
            (_, Some(port)) => self.ports.get(&port),
            (_, None) => return true,
        };
        manifests.into_iter().flatten().any(|it| !accepts_all(it, rows))
    }

    fn written<'b>(&'b self, claims: &'b [ClaimOf]) -> impl Iterator<Item = (&'a Manifest, &'a Claim)> + 'b {
        claims.iter().filter_map(|claim| self.by_claim.get(claim)).flatten().copied()
    }

    /// The finding at each field that the problem is about. If the problem is about a Service that already exists, the
    /// manifests may have none of the Service's fields. Then the finding is at the ports of pods.
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
            // A second copy of the object is not another object.
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
