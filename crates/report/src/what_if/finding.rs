//! Findings about one claim, before and after the change.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{findings_document::Problem, likeness::likeness};
use portreeve_facts::{Affected, Vantage};
use portreeve_rules::findings::{Finding, Key, Severity};

/// The text for two findings that differ only in their sentence.
const SENTENCE: &str = "another sentence";

/// How a claim or a finding changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum How {
    /// There would be a finding that does not exist now.
    Begins,
    /// There is a finding before and after the change, or there is none before and after.
    Stays,
    /// There is a finding now that would no longer exist.
    Ends,
}

impl How {
    pub(super) fn of(is_wrong: bool, would_be: bool) -> Self {
        match (is_wrong, would_be) {
            (false, true) => Self::Begins,
            (true, false) => Self::Ends,
            _ => Self::Stays,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Begins => "begins",
            Self::Stays => "stays",
            Self::Ends => "ends",
        }
    }
}

/// A finding that changes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FindingChange {
    /// How the finding changes. A finding stays if only its variant changes. A finding also stays if it could not be
    /// judged after the change.
    pub(crate) how: How,
    /// The difference, in words.
    pub(crate) difference: String,
    /// Whether the finding was judged before and after the change. If the state before the change was not judged, a
    /// finding whose `how` is `begins` may already exist. If the state after the change was not judged, a finding whose
    /// `how` is `stays` may end.
    judged: bool,
    /// Whether the sentence is the only difference.
    #[serde(skip)]
    reworded: bool,
    /// The finding before the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) now: Option<Problem>,
    /// The finding after the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) then: Option<Problem>,
}

impl FindingChange {
    pub(super) fn worse(&self) -> Option<Severity> {
        let [now, then] = [&self.now, &self.then].map(|it| it.as_ref().map(|it| it.severity));
        then.filter(|_| then > now)
    }

    /// Whether the finding was judged before and after the change. A finding below warning also counts as judged,
    /// because the result does not depend on this finding.
    pub(super) fn is_judged(&self) -> bool {
        self.judged || self.shown().is_none_or(|it| it.severity < Severity::Warning)
    }

    /// Nodes with an equal text share a row. The text is the difference, or the new sentence if nothing else changes.
    pub(super) fn shared(&self, node: &str) -> String {
        let sentence = self.then.as_ref().filter(|_| self.reworded);
        sentence.map_or_else(|| self.difference.clone(), |then| likeness(&then.summary, node))
    }

    pub(crate) fn shown(&self) -> Option<&Problem> {
        self.then.as_ref().or(self.now.as_ref())
    }
}

/// Pairs the findings of the states `now` and `then`. `held[0]` has the findings of `then` that the rules could not
/// judge in `now`. `held[1]` has the findings of `now` that the rules could not judge in `then`. `is_open` returns true
/// for a vantage point if the answer to clients at this point is unknown in one state. The function does not compare
/// whether findings affect clients at an open vantage point.
pub(super) fn differences(
    [now, then]: &[Vec<&Finding>; 2],
    held: [&BTreeSet<Key>; 2],
    is_open: impl Fn(Vantage) -> bool,
) -> Vec<FindingChange> {
    let mut pairs: Vec<[Option<&Finding>; 2]> = now.iter().map(|it| [Some(*it), None]).collect();
    // First, findings with equal keys are paired. Then, findings of one rule with different variants are paired.
    let is_same: [fn(&Key, &Key) -> bool; 2] = [|now, then| now == then, |now, then| now.rule == then.rule];
    let mut others = then.clone();
    for is_same in is_same {
        others.retain(|finding| {
            let is_it = |it: &&mut [Option<&Finding>; 2]| {
                it[1].is_none() && it[0].is_some_and(|now| is_same(&now.key, &finding.key))
            };
            pairs.iter_mut().find(is_it).map(|pair| pair[1] = Some(finding)).is_none()
        });
    }
    pairs.extend(others.into_iter().map(|it| [None, Some(it)]));
    let mut changes: Vec<FindingChange> = pairs.into_iter().filter_map(|it| change(it, held, &is_open)).collect();
    changes.sort_by(|a, b| b.worse().cmp(&a.worse()).then_with(|| a.difference.cmp(&b.difference)));
    changes
}

fn change(
    pair: [Option<&Finding>; 2],
    held: [&BTreeSet<Key>; 2],
    is_open: impl Fn(Vantage) -> bool,
) -> Option<FindingChange> {
    let affects =
        |it: &Finding| -> Affected { it.evidence.affects.iter().copied().filter(|it| !is_open(*it)).collect() };
    let mut reworded = false;
    let (how, judged, difference) = match pair {
        [Some(now), Some(then)] => {
            let (before, after) = (affects(now), affects(then));
            reworded =
                (now.key.variant, now.evidence.impact(), &before) == (then.key.variant, then.evidence.impact(), &after);
            if reworded && now.evidence.summary == then.evidence.summary {
                return None;
            }
            (How::Stays, true, difference(now, then, &before, &after))
        }
        [None, Some(then)] if held[0].contains(&then.key) => (
            How::Begins,
            false,
            format!(
                "{}; the current state was not judged, so the finding may exist already",
                alone(then, &affects(then))
            ),
        ),
        [None, Some(then)] => (How::Begins, true, alone(then, &affects(then))),
        [Some(now), None] if held[1].contains(&now.key) => (
            How::Stays,
            false,
            format!("{}; the new state cannot be judged, so the finding may end", alone(now, &affects(now))),
        ),
        [Some(now), None] => (How::Ends, true, alone(now, &affects(now))),
        [None, None] => return None,
    };
    let [now, mut then] = pair.map(|it| it.map(Problem::of));
    // After the change, a finding has no start time yet.
    if let Some(then) = &mut then {
        then.since.clear();
    }
    Some(FindingChange { how, difference, judged, reworded, now, then })
}

/// A finding of only one state, in words: `warning listener-on-node-port/loses, outcome refused, affects its loopback`.
fn alone(Finding { key, evidence, .. }: &Finding, affects: &Affected) -> String {
    let outcome = Some(evidence.outcome).filter(|it| !it.is_empty()).map(|it| format!("outcome {it}"));
    let name = format!("{} {}", evidence.severity, key.name());
    let affects = in_words(affects).map(|it| format!("affects {it}"));
    [Some(name), outcome, affects].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The difference between two findings, in words: `warning listener-on-node-port/loses: warning instead of critical;
/// remote clients are not affected any more`.
fn difference(now: &Finding, then: &Finding, before: &Affected, after: &Affected) -> String {
    let (was, would_be) = (now.evidence.impact(), then.evidence.impact());
    let instead = |what: &str, now: &str, then: &str| (now != then).then(|| format!("{what}{then} instead of {now}"));
    let affected = |whom: Affected, how: &str| {
        let is_one = whom.len() == 1 && !whom.contains(&Vantage::Remote) && !whom.contains(&Vantage::Pods);
        in_words(&whom).map(|it| format!("{it} {} {how}", if is_one { "is" } else { "are" }))
    };
    let words = [
        instead("", now.key.variant, then.key.variant),
        instead("", was.severity.name(), would_be.severity.name()),
        instead("scope ", was.scope.name(), would_be.scope.name()),
        instead("outcome ", was.outcome, would_be.outcome)
            .filter(|_| !was.outcome.is_empty() && !would_be.outcome.is_empty()),
        affected(before - after, "not affected any more"),
        affected(after - before, if before.is_empty() { "affected" } else { "affected, too" }),
    ];
    let mut words: Vec<String> = words.into_iter().flatten().collect();
    if words.is_empty() {
        words.push(SENTENCE.to_owned());
    }
    format!("{} {}: {}", would_be.severity, then.key.name(), words.join("; "))
}

/// The affected clients, in words: `remote clients, its loopback and its pods`. `None` if there are no clients.
fn in_words(whom: &Affected) -> Option<String> {
    let words: Vec<String> = whom.iter().map(Vantage::to_string).collect();
    let (last, others) = words.split_last()?;
    Some(if others.is_empty() { last.clone() } else { format!("{} and {last}", others.join(", ")) })
}
