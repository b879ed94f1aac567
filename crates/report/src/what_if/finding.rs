//! Findings about one claim, now and then.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use crate::findings_document::Problem;
use portreeve_facts::Vantage;
use portreeve_rules::findings::{Finding, Key, RuleId, Scope, Severity};

/// What becomes of a claim, or of a finding about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum How {
    /// Nothing is wrong now.
    Begins,
    /// Something is wrong now and would be, or nothing is in either.
    Stays,
    /// Nothing would be wrong.
    Ends,
}

impl How {
    /// Of whether there is a finding now and then.
    pub(super) fn of(is_wrong: [bool; 2]) -> Self {
        match is_wrong {
            [false, true] => Self::Begins,
            [true, false] => Self::Ends,
            _ => Self::Stays,
        }
    }

    /// Its word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Begins => "begins",
            Self::Stays => "stays",
            Self::Ends => "ends",
        }
    }
}

/// What of a finding is compared: data, never words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Compared {
    severity: Severity,
    variant: &'static str,
    scope: Scope,
    outcome: &'static str,
    affects: Vec<Vantage>,
}

/// What is the same of findings that change in the same way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct State {
    rule: RuleId,
    now_and_then: [Option<Compared>; 2],
    not_judged: Option<World>,
}

/// The node as it is, or as it would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum World {
    /// As it is.
    Now,
    /// As it would be.
    Then,
}

/// A finding that changes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FindingChange {
    /// What becomes of it. It stays as another variant of the same rule, too, and if it could not be judged as it would be.
    pub(crate) how: How,
    /// The difference, in words.
    pub(crate) difference: String,
    /// When it could not be judged: `now`, so that it may be there already, or `then`, so that it may end.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_judged: Option<World>,
    /// The finding as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) now: Option<Problem>,
    /// The finding as it would be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) then: Option<Problem>,
    #[serde(skip)]
    #[schemars(skip)]
    pub(super) state: State,
}

impl FindingChange {
    /// Its severity, where something would be worse than it is.
    pub(super) fn worse(&self) -> Option<Severity> {
        let [now, then] = [&self.now, &self.then].map(|it| it.as_ref().map(|it| it.severity));
        then.filter(|_| then > now)
    }

    /// Whether it was judged in both worlds, or would not count.
    pub(super) fn is_judged(&self) -> bool {
        self.not_judged.is_none() || self.now.as_ref().is_none_or(|it| it.severity < Severity::Warning)
    }

    /// As it would be, else as it is, in one sentence.
    pub(crate) fn summary(&self) -> &str {
        self.then.as_ref().or(self.now.as_ref()).map_or("", |it| &it.summary)
    }
}

/// The findings about one claim that differ. `held` has those of the other world that could not be judged now and then. From where `is_open`,
/// the answers are not known in one of the worlds, and who is affected there is not compared.
pub(super) fn differences(
    [now, then]: &[Vec<&Finding>; 2],
    held: [&BTreeSet<Key>; 2],
    is_open: impl Fn(Vantage) -> bool,
) -> Vec<FindingChange> {
    let mut pairs: Vec<[Option<&Finding>; 2]> = now.iter().map(|it| [Some(*it), None]).collect();
    // The same variant first: what is left of a rule is another variant of the same.
    let mut others: Vec<&Finding> = Vec::new();
    for finding in then {
        let same = pairs.iter_mut().find(|it| it[0].is_some_and(|now| now.key == finding.key));
        same.map_or_else(|| others.push(finding), |pair| pair[1] = Some(finding));
    }
    for finding in others {
        let is_free = |it: &&mut [Option<&Finding>; 2]| {
            it[1].is_none() && it[0].is_some_and(|now| now.key.rule == finding.key.rule)
        };
        match pairs.iter_mut().find(is_free) {
            Some(pair) => pair[1] = Some(finding),
            None => pairs.push([None, Some(finding)]),
        }
    }
    let mut changes: Vec<FindingChange> = pairs.into_iter().filter_map(|it| change(it, held, &is_open)).collect();
    changes.sort_by(|a, b| b.worse().cmp(&a.worse()).then_with(|| a.state.cmp(&b.state)));
    changes
}

fn change(
    pair: [Option<&Finding>; 2],
    held: [&BTreeSet<Key>; 2],
    is_open: impl Fn(Vantage) -> bool,
) -> Option<FindingChange> {
    let compared = |Finding { key, evidence, .. }: &Finding| Compared {
        severity: evidence.severity,
        variant: key.variant,
        scope: evidence.scope,
        outcome: evidence.outcome,
        affects: evidence.affects.iter().copied().filter(|from| !is_open(*from)).collect(),
    };
    let now_and_then = pair.map(|it| it.map(compared));
    if now_and_then[0] == now_and_then[1] {
        return None;
    }
    let not_judged = match pair {
        [None, Some(then)] if held[0].contains(&then.key) => Some(World::Now),
        [Some(now), None] if held[1].contains(&now.key) => Some(World::Then),
        _ => None,
    };
    let [is_wrong, would_be] = now_and_then.each_ref().map(Option::is_some);
    let how = How::of([is_wrong, would_be || not_judged == Some(World::Then)]);
    let state = State { rule: pair.iter().flatten().next()?.key.rule, now_and_then, not_judged };
    let difference = state.difference();
    let [now, mut then] = pair.map(|it| it.map(Problem::of));
    // What is not there yet has not begun.
    if let Some(then) = &mut then {
        then.since.clear();
    }
    Some(FindingChange { how, difference, not_judged, now, then, state })
}

impl State {
    fn difference(&self) -> String {
        let Self { rule, now_and_then, not_judged } = self;
        let (now, then) = match now_and_then {
            [Some(now), Some(then)] => (now, then),
            [one, other] => {
                let alone = one.as_ref().or(other.as_ref()).map(|it| alone(*rule, it)).unwrap_or_default();
                return match not_judged {
                    None => alone,
                    Some(World::Now) => format!("{alone}; it is not judged now, and may be there already"),
                    Some(World::Then) => format!("{alone}; it is not judged then, and may end"),
                };
            }
        };
        let instead = |then: &str, now: &str| (then != now).then(|| format!("{then} instead of {now}"));
        let missing = |all: &[Vantage], of: &[Vantage]| -> Vec<Vantage> {
            all.iter().copied().filter(|it| !of.contains(it)).collect()
        };
        let too = if now.affects.is_empty() { "affected" } else { "affected, too" };
        let has_outcomes = !now.outcome.is_empty() && !then.outcome.is_empty();
        let words = [
            instead(then.variant, now.variant),
            instead(then.severity.name(), now.severity.name()),
            (then.scope != now.scope)
                .then(|| format!("about the {} instead of the {}", then.scope.name(), now.scope.name())),
            instead(then.outcome, now.outcome).filter(|_| has_outcomes).map(|it| format!("outcome {it}")),
            affected(&missing(&now.affects, &then.affects), "not affected any more"),
            affected(&missing(&then.affects, &now.affects), too),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        format!("{rule}/{}: {}", then.variant, words.join("; "))
    }
}

/// `remote clients and its pods are affected, too`; nothing of none.
fn affected(whom: &[Vantage], how: &str) -> Option<String> {
    let words: Vec<String> = whom.iter().map(Vantage::to_string).collect();
    let (last, others) = words.split_last()?;
    let is_one = others.is_empty() && matches!(whom, [Vantage::Node | Vantage::Loopback]);
    let all = if others.is_empty() { last.clone() } else { format!("{} and {last}", others.join(", ")) };
    Some(format!("{all} {} {how}", if is_one { "is" } else { "are" }))
}

/// `warning listener-on-node-port/loses, affects its loopback`.
fn alone(rule: RuleId, Compared { severity, variant, affects, .. }: &Compared) -> String {
    let affects: Vec<String> = affects.iter().map(Vantage::to_string).collect();
    let affects = if affects.is_empty() { String::new() } else { format!(", affects {}", affects.join(", ")) };
    format!("{severity} {rule}/{variant}{affects}")
}
