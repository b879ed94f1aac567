//! What tests of rules ask: is there a problem, is it silent, or could it not tell.

use std::sync::Arc;

use super::{Limits, Rule, endpoints_of_concern};
use crate::{
    facts::{Gap, Reading, Snapshot, View},
    findings::{Evidence, Judgement, Judgements, Subject, Verdict},
};

/// A rule says the same whether it knows all endpoints or those of concern.
#[track_caller]
fn ask(rule: &Rule, snapshot: &Snapshot) -> Judgements {
    let said = |snapshot| (rule.check)(View { now: snapshot, before: None }, &Limits::default());
    let mut narrow = snapshot.clone();
    let names = endpoints_of_concern(snapshot);
    if let Reading::Seen(slices) = &mut narrow.cluster.endpoint_slices {
        slices.retain(|slice| names.contains(&slice.service));
        narrow.cluster.endpoints_of = Some(Arc::new(names));
    }
    let judgements = said(snapshot);
    assert_eq!(said(&narrow), judgements, "what {} says follows from endpoints that are not of concern", rule.id);
    judgements
}

/// The evidence against a subject; several judgements of it are merged. Fails when there is none.
#[track_caller]
pub(crate) fn expect_problem(rule: &Rule, snapshot: &Snapshot, subject: &Subject) -> Evidence {
    let judgements = ask(rule, snapshot).expect("the rule can judge");
    let problems = judgements.iter().filter(|judgement| judgement.subject == *subject).filter_map(|judgement| {
        match &judgement.verdict {
            Verdict::Problem(evidence) => Some(evidence.clone()),
            _ => None,
        }
    });
    problems.reduce(Evidence::merge).unwrap_or_else(|| panic!("no problem of {subject} in {judgements:#?}"))
}

/// Fails when there is anything unknown about a subject.
#[track_caller]
pub(crate) fn expect_certain(rule: &Rule, snapshot: &Snapshot, subject: &Subject) {
    let judgements = ask(rule, snapshot).expect("the rule can judge");
    let unknown = |it: &&Judgement| it.subject == *subject && matches!(it.verdict, Verdict::Unknown(_));
    let unknown = judgements.iter().find(unknown);
    assert!(unknown.is_none(), "{subject} is known: {unknown:#?}");
}

/// Fails when there is a problem of, or anything unknown about, a subject.
#[track_caller]
pub(crate) fn expect_healthy(rule: &Rule, snapshot: &Snapshot, subject: &Subject) {
    let judgements = ask(rule, snapshot).expect("the rule can judge");
    let wrong = judgements
        .iter()
        .find(|judgement| judgement.subject == *subject && !matches!(judgement.verdict, Verdict::Healthy));
    assert!(wrong.is_none(), "{subject} should be healthy: {wrong:#?}");
}

/// The gap for which a rule cannot tell, at all or about a subject. Fails when it can.
#[track_caller]
pub(crate) fn expect_unknown(rule: &Rule, snapshot: &Snapshot, subject: &Subject) -> Gap {
    let judgements = match ask(rule, snapshot) {
        Err(gap) => return gap,
        Ok(judgements) => judgements,
    };
    let gap =
        judgements.iter().filter(|judgement| judgement.subject == *subject).find_map(|judgement| {
            match &judgement.verdict {
                Verdict::Unknown(gap) => Some(gap.clone()),
                _ => None,
            }
        });
    gap.unwrap_or_else(|| panic!("nothing unknown about {subject} in {judgements:#?}"))
}
