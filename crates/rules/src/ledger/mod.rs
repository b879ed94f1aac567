//! The ledger: the open findings and the times of their start.
//!
//! The ledger is a state machine. The input of the ledger is rounds of judgements. The output is the open findings and
//! their changes. The caller gives the time. The ledger treats all rules and all nodes in the same way.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

use crate::{
    findings::{Evidence, Finding, Judgement, Judgements, Key, Subject, Unknown, Verdict},
    ids::Rows,
};
use portreeve_facts::{Gap, Protocol};

/// The time of a round.
#[derive(Clone, Copy, Debug)]
pub struct RoundTime {
    /// The time of the wall clock, for people.
    pub at: Timestamp,
    /// The time since the first round, by a monotonic clock, for the duration of problems.
    pub since_start: Duration,
}

impl RoundTime {
    /// The time of the first round.
    pub fn first(at: Timestamp) -> Self {
        Self { at, since_start: Duration::ZERO }
    }
}

/// One rule's judgements in a round, and the settings for the rule's findings.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The findings that the rule can report.
    pub rows: Rows,
    /// The ledger raises a problem in the second round or later, after the problem has lasted this long. The number of
    /// rounds is not enough, because two rounds may follow each other quickly. `None` if the ledger raises a problem in
    /// the first round.
    pub settle: Option<Duration>,
    /// Objects that were not read in full. The rule's open findings about these objects stay open, unless the rule
    /// finds the objects healthy.
    pub unread: Arc<[Subject]>,
    /// The rule's judgements.
    pub judgements: Judgements,
}

/// The current findings and unknown results. Every output is made from this value.
#[derive(Clone, Debug, Default)]
pub struct Board {
    /// Open findings, worst first. Findings of equal severity are sorted by key.
    pub findings: Vec<Finding>,
    /// Unknown results.
    pub unknown: Vec<Unknown>,
}

impl Board {
    fn of(mut findings: Vec<Finding>, unknown: Vec<Unknown>) -> Self {
        findings.sort_by(|a, b| b.evidence.severity.cmp(&a.evidence.severity).then_with(|| a.key.cmp(&b.key)));
        Self { findings, unknown }
    }
}

/// A change that a round made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new problem, which lasted for enough rounds.
    Raised(Finding),
    /// The evidence of an open problem changed, or the subject was created again.
    Changed(Finding),
    /// The open problem with this key now has another variant.
    Became(Key, Finding),
    /// A problem has ended.
    Cleared(Finding, Clearance),
}

/// How a problem ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearance {
    /// The rule judged the subject as healthy.
    Repaired,
    /// The rule reports neither the problem nor a healthy subject. For example, the subject was deleted.
    Gone,
}

/// Open findings, problems that have not lasted long enough, and unknown results.
#[derive(Debug, Default)]
pub struct Ledger {
    open: BTreeMap<Key, Finding>,
    /// For each problem that has not lasted long enough: the time of its first round.
    pending: BTreeMap<Key, RoundTime>,
    unknown: Vec<Unknown>,
}

impl Ledger {
    /// Adds one round, and returns the changes. If a rule could not judge, its open findings stay. If a rule did not
    /// run, its findings and unknown results stay.
    pub fn advance(&mut self, at: RoundTime, round: impl IntoIterator<Item = Turn>) -> Vec<Change> {
        round.into_iter().flat_map(|turn| self.turn(at, turn)).collect()
    }

    /// The current findings and unknown results.
    pub fn board(&self) -> Board {
        Board::of(self.open.values().cloned().collect(), self.unknown.clone())
    }

    /// The current findings and unknown results, after the last round.
    pub fn into_board(self) -> Board {
        Board::of(self.open.into_values().collect(), self.unknown)
    }

    fn turn(&mut self, at: RoundTime, turn: Turn) -> Vec<Change> {
        let rows = turn.rows;
        self.unknown.retain(|unknown| unknown.rows != rows);
        let judgements = match turn.judgements {
            Ok(judgements) => judgements,
            Err(gap) => {
                self.note_unknown(rows, None, 0, gap);
                return Vec::new();
            }
        };
        let mut problems: BTreeMap<Key, Evidence> = BTreeMap::new();
        let mut held = Held::default();
        for subject in turn.unread.iter().cloned() {
            held.add(Claim { subject, port: None, protocol: None });
        }
        let mut healthy = BTreeSet::new();
        for Judgement { subject, port, protocol, verdict } in judgements {
            match verdict {
                Verdict::Problem(evidence) => {
                    let key = Key { rule: rows.rule, variant: evidence.variant, subject, port, protocol };
                    let merged = match problems.remove(&key) {
                        Some(first) => first.merge(evidence),
                        None => evidence,
                    };
                    problems.insert(key, merged);
                }
                Verdict::Unknown(gap) => {
                    let claim = Claim { subject, port, protocol };
                    self.note_unknown(rows, Some(claim.subject.clone()), claim.subject.claims(port), gap);
                    held.add(claim);
                }
                Verdict::Healthy => {
                    healthy.insert(Claim { subject, port, protocol });
                }
            }
        }
        let seen: BTreeSet<Key> = problems.keys().cloned().collect();
        let mut observed: Vec<Change> =
            problems.into_iter().filter_map(|(key, evidence)| self.observe(at, turn.settle, key, evidence)).collect();
        let mut changes = Vec::new();
        for (gone, clearance) in self.clear(rows, &seen, &held, &healthy) {
            let claim = Claim::of(&gone.key);
            let raised = observed.iter_mut().find_map(|change| match change {
                Change::Raised(new) if Claim::of(&new.key) == claim => Some((new.clone(), change)),
                _ => None,
            });
            match raised {
                Some((new, change)) => *change = Change::Became(gone.key, new),
                None => changes.push(Change::Cleared(gone, clearance)),
            }
        }
        changes.extend(observed);
        changes
    }

    /// Adds an unknown result. If the rule already has a result with this reason, the two results become one result
    /// without a subject.
    fn note_unknown(&mut self, rows: Rows, subject: Option<Subject>, claims: usize, gap: Gap) {
        match self.unknown.iter_mut().find(|unknown| unknown.rows == rows && unknown.gap == gap) {
            Some(known) => {
                known.subject = None;
                known.claims += claims;
            }
            None => self.unknown.push(Unknown { rows, subject, claims, gap }),
        }
    }

    /// Closes the rule's open findings that this round does not report. A finding stays open if the rule could not
    /// judge its subject or port. If a finding has a new variant, the old variant stays open until the new variant has
    /// lasted long enough.
    fn clear(
        &mut self,
        rows: Rows,
        seen: &BTreeSet<Key>,
        held: &Held,
        healthy: &BTreeSet<Claim>,
    ) -> Vec<(Finding, Clearance)> {
        let becoming: BTreeSet<Claim> = self.pending.keys().filter(|key| seen.contains(key)).map(Claim::of).collect();
        let over = |key: &Key| {
            let not_held = |claim: Claim| !held.holds(&claim, healthy.contains(&claim));
            rows.have(key.rule, key.variant) && !seen.contains(key) && not_held(Claim::of(key))
        };
        self.pending.retain(|key, _| !over(key));
        self.open
            .extract_if(.., |key, _| over(key) && !becoming.contains(&Claim::of(key)))
            .map(|(key, finding)| {
                let clearance = if healthy.contains(&Claim::of(&key)) { Clearance::Repaired } else { Clearance::Gone };
                (finding, clearance)
            })
            .collect()
    }

    fn observe(&mut self, at: RoundTime, settle: Option<Duration>, key: Key, evidence: Evidence) -> Option<Change> {
        // New words and values of a finding replace the old words and values immediately. A new severity, scope or
        // outcome must first last as long as a new problem. If the subject was created again, the new finding replaces
        // the whole old finding immediately.
        if let Some(open) = self.open.get(&key)
            && (open.evidence.impact() == evidence.impact() || open.key.subject.uid != key.subject.uid)
        {
            self.pending.remove(&key);
            return (open.evidence != evidence || open.key.subject.uid != key.subject.uid)
                .then(|| self.put(key, evidence, at.at));
        }
        let first = self.pending.remove(&key);
        let since = first.unwrap_or(at);
        let is_new = |settle: Duration| first.is_none() || at.since_start.saturating_sub(since.since_start) < settle;
        if settle.is_some_and(is_new) {
            self.pending.insert(key, since);
            return None;
        }
        Some(self.put(key, evidence, since.at))
    }

    /// Opens a finding. An open finding keeps its start, even if its subject is created again, because the comparison
    /// of keys ignores the uid.
    fn put(&mut self, key: Key, evidence: Evidence, since: Timestamp) -> Change {
        let open = self.open.remove(&key).map(|open| open.since);
        let finding = Finding { key: key.clone(), evidence, since: open.unwrap_or(since) };
        self.open.insert(key, finding.clone());
        if open.is_some() { Change::Changed(finding) } else { Change::Raised(finding) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    subject: Subject,
    port: Option<u16>,
    protocol: Option<Protocol>,
}

impl Claim {
    fn of(key: &Key) -> Self {
        Self { subject: key.subject.clone(), port: key.port, protocol: key.protocol }
    }
}

/// The subjects that one rule could not judge in a round.
#[derive(Debug, Default)]
struct Held {
    claims: BTreeSet<Claim>,
    /// Whether the rule could not judge the whole node or the whole cluster. If true, each of the rule's open findings
    /// may still be true.
    everything: bool,
}

impl Held {
    fn add(&mut self, claim: Claim) {
        self.everything |= claim.subject.claims(claim.port) == 0;
        self.claims.insert(claim);
    }

    /// Whether a finding with this claim may still be true, because the rule could not judge the claim. If the rule
    /// could not judge an object as a whole, all findings about the object may be true, except for ports that are
    /// `healthy`.
    fn holds(&self, claim: &Claim, healthy: bool) -> bool {
        let of_its_object = || self.claims.contains(&Claim { port: None, protocol: None, ..claim.clone() });
        self.claims.contains(claim) || (!healthy && (self.everything || of_its_object()))
    }
}

#[cfg(test)]
mod tests;
