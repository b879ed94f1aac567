//! Since when: a pure state machine from rounds of judgements to open findings and the changes between them.
//!
//! Never: measures. Time comes in as an argument; the ledger knows no rule, no node and no clock.

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

/// When a round was.
#[derive(Clone, Copy, Debug)]
pub struct RoundTime {
    /// By the clock of the wall, for people.
    pub at: Timestamp,
    /// Since the first round, by a clock that nobody can set: patience counts by it.
    pub since_start: Duration,
}

impl RoundTime {
    /// The first round of all.
    pub fn first(at: Timestamp) -> Self {
        Self { at, since_start: Duration::ZERO }
    }
}

/// One rule's part of a round.
#[derive(Clone, Debug)]
pub struct Turn {
    /// What the rule judges.
    pub rows: Rows,
    /// How many consecutive rounds must show a problem before it is raised: 1 or 2.
    pub patience: u8,
    /// How long a problem that takes more than one round must have been there too: rounds may follow each other fast.
    pub settle: Duration,
    /// Objects that were not read whole: what it had open about them stays, unless it finds it healthy.
    pub unread: Arc<[Subject]>,
    /// Its judgements.
    pub judgements: Judgements,
}

/// Everything known now: what every sink reads.
#[derive(Clone, Debug, Default)]
pub struct Board {
    /// Open findings, worst first, then by key.
    pub findings: Vec<Finding>,
    /// What could not be judged.
    pub unknown: Vec<Unknown>,
}

impl Board {
    fn of(mut findings: Vec<Finding>, unknown: Vec<Unknown>) -> Self {
        findings.sort_by(|a, b| b.evidence.severity.cmp(&a.evidence.severity).then_with(|| a.key.cmp(&b.key)));
        Self { findings, unknown }
    }
}

/// What a round changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A problem is new, and was there for as many rounds as its rule has patience.
    Raised(Finding),
    /// An open problem has another impact, sentence or evidence.
    Changed(Finding),
    /// What was open under this key is another variant now.
    Became(Key, Finding),
    /// A problem is over.
    Cleared(Finding, Clearance),
}

/// How a problem ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearance {
    /// The rule looked at the subject and found it healthy.
    Repaired,
    /// The rule looked, and there was nothing of the kind any more.
    Gone,
}

/// What is open, what is about to be, and what could not be judged.
#[derive(Debug, Default)]
pub struct Ledger {
    open: BTreeMap<Key, Finding>,
    /// Seen, but not yet often enough: first sight and how many rounds.
    pending: BTreeMap<Key, (RoundTime, u8)>,
    unknown: Vec<Unknown>,
}

impl Ledger {
    /// Takes in one round and says what it changed. A rule that could not judge keeps everything it had open, and of one
    /// that was not asked everything stays as it is.
    pub fn advance(&mut self, at: RoundTime, round: impl IntoIterator<Item = Turn>) -> Vec<Change> {
        round.into_iter().flat_map(|turn| self.turn(at, turn)).collect()
    }

    /// Everything known now.
    pub fn board(&self) -> Board {
        Board::of(self.open.values().cloned().collect(), self.unknown.clone())
    }

    /// The same, where no other round follows.
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
                    let claims = usize::from(!claim.is_whole());
                    self.note_unknown(rows, Some(claim.subject.clone()), claims, gap);
                    held.add(claim);
                }
                Verdict::Healthy => {
                    healthy.insert(Claim { subject, port, protocol });
                }
            }
        }
        let seen: BTreeSet<Key> = problems.keys().cloned().collect();
        let mut observed: Vec<Change> = problems
            .into_iter()
            .filter_map(|(key, evidence)| self.observe(at, (turn.patience, turn.settle), key, evidence))
            .collect();
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

    /// The same gap for many subjects of one rule is noted once, about none of them.
    fn note_unknown(&mut self, rows: Rows, subject: Option<Subject>, claims: usize, gap: Gap) {
        match self.unknown.iter_mut().find(|unknown| unknown.rows == rows && unknown.gap == gap) {
            Some(known) => {
                known.subject = None;
                known.claims += claims;
            }
            None => self.unknown.push(Unknown { rows, subject, claims, gap }),
        }
    }

    /// Closes what this rule had open and neither sees nor holds any more. What became another variant stays until that one has
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
            let claim = Claim::of(key);
            rows.have(key.rule, key.variant) && !seen.contains(key) && !held.holds(&claim, healthy.contains(&claim))
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

    fn observe(
        &mut self,
        at: RoundTime,
        (patience, settle): (u8, Duration),
        key: Key,
        evidence: Evidence,
    ) -> Option<Change> {
        // Another impact must last as long as the first one had to; other words and values are taken over at once. A subject
        // that was made anew is another one.
        if let Some(open) = self.open.get(&key)
            && (open.evidence.impact() == evidence.impact() || open.key.subject.uid != key.subject.uid)
        {
            self.pending.remove(&key);
            return (open.evidence != evidence || open.key.subject.uid != key.subject.uid)
                .then(|| Change::Changed(self.reopen(key, evidence)));
        }
        let (since, rounds) =
            self.pending.remove(&key).map_or((at, 1), |(since, rounds)| (since, rounds.saturating_add(1)));
        if rounds < patience || (patience > 1 && at.since_start.saturating_sub(since.since_start) < settle) {
            self.pending.insert(key, (since, rounds));
            return None;
        }
        if self.open.contains_key(&key) {
            return Some(Change::Changed(self.reopen(key, evidence)));
        }
        let finding = Finding { key: key.clone(), evidence, since: since.at };
        self.open.insert(key, finding.clone());
        Some(Change::Raised(finding))
    }

    /// Gives an open finding other evidence. The key counts no uid, so a subject that was made anew is carried over.
    fn reopen(&mut self, key: Key, evidence: Evidence) -> Finding {
        let since = self.open.remove(&key).expect("it is open").since;
        let finding = Finding { key: key.clone(), evidence, since };
        self.open.insert(key, finding.clone());
        finding
    }
}

/// What a judgement is about, whatever the variant.
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

    /// Whether it is about the node or the cluster as a whole, and about no port.
    fn is_whole(&self) -> bool {
        !self.subject.kind.is_object() && self.port.is_none()
    }
}

/// What one rule could not judge in a round.
#[derive(Debug, Default)]
struct Held {
    claims: BTreeSet<Claim>,
    /// Something about the node or the cluster as a whole: any of its findings may be a part of that.
    everything: bool,
}

impl Held {
    fn add(&mut self, claim: Claim) {
        self.everything |= claim.is_whole();
        self.claims.insert(claim);
    }

    /// Whether the finding of this claim may still be true. What was not known of an object, on none of its ports in
    /// particular, was known on none of them; only a port that was found `healthy` is over.
    fn holds(&self, claim: &Claim, healthy: bool) -> bool {
        let of_its_object = || self.claims.contains(&Claim { port: None, protocol: None, ..claim.clone() });
        self.claims.contains(claim) || (!healthy && (self.everything || of_its_object()))
    }
}

#[cfg(test)]
mod tests;
