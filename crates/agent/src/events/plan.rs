//! What is to be written, and when: a pure state machine from the ledger's changes and the API server's answers to
//! requests. The time is an argument.
//!
//! Each finding waits for its turn, the worst first, and for a token of the budget; one request is on its way at a time.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tracing::warn;

use super::{
    budget::Budget,
    name::HOUR,
    object::{PlannedEvent, is_worth_an_event},
    pause::Pause,
    place::Place,
    request::{Reply, Request, Step, Write},
    spread::Spread,
    telling::Telling,
};
use portreeve_rules::{
    findings::{Finding, Key, Severity},
    ledger::Change,
};

/// Findings that can have Events at a time. Where there are more, the mildest get none.
const OPEN: usize = 1024;

/// What became of Events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Created, or told again through their series.
    pub written: u64,
    /// Found to be there already.
    pub deduplicated: u64,
    /// Not written, because there was no room for them or it took too long.
    pub dropped: u64,
    /// Requests that failed, and findings about objects without a uid.
    pub failed: u64,
}

/// The Events of all findings: written, just written, or waiting for it.
#[derive(Debug)]
pub(super) struct Plan {
    findings: BTreeMap<Key, Telling>,
    budget: Budget,
    counters: Counters,
    pause: Pause,
    spread: Spread,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            findings: BTreeMap::new(),
            budget: Budget::new(),
            counters: Counters::default(),
            pause: Pause::none(),
            spread: Spread::default(),
        }
    }
}

impl Plan {
    /// Takes in what a round changed.
    pub(super) fn offer(&mut self, at: Timestamp, change: &Change, place: &Place) {
        self.forget(at);
        self.know(place);
        match change {
            Change::Raised(finding) | Change::Changed(finding) if is_worth_an_event(finding.evidence.severity) => {
                self.open(at, finding, place);
            }
            Change::Raised(finding) | Change::Changed(finding) | Change::Cleared(finding, _) => {
                self.close(at, &finding.key);
            }
            // As another impact: nothing is over, so no Event says so.
            Change::Became(was, finding) if is_worth_an_event(finding.evidence.severity) => {
                if let Some(telling) = self.findings.remove(was) {
                    self.findings.insert(finding.key.clone(), telling);
                }
                self.open(at, finding, place);
            }
            Change::Became(was, _) => self.close(at, was),
        }
    }

    /// Takes in how many Nodes there are. What waited because that was not known waits no longer than it has to.
    pub(super) fn know(&mut self, place: &Place) {
        self.spread = self.spread.over(place.nodes);
    }

    /// Whether it was ever known how many Nodes there are.
    pub(super) fn knows_nodes(&self) -> bool {
        self.spread.is_known()
    }

    /// The next request, if one is due and within budget. Its answer belongs to [`Plan::answer`].
    pub(super) fn next(&mut self, at: Timestamp) -> Option<Write> {
        self.forget(at);
        if self.pause.end(at) > at || self.budget.ready(at) > at {
            return None;
        }
        let spread = self.spread;
        let able = self.findings.iter_mut().filter(|(_, telling)| telling.due(at, spread) == Some(at));
        let (key, telling) = able.min_by_key(|(_, telling)| telling.rank(at))?;
        let write = telling.send(key, at)?;
        self.budget.take(at);
        Some(write)
    }

    /// When [`Plan::next`] has something, as far as is known now.
    pub(super) fn due(&self, at: Timestamp) -> Option<Timestamp> {
        let due = self.findings.values().filter_map(|telling| telling.due(at, self.spread)).min()?;
        Some(due.max(self.budget.ready(at)).max(self.pause.end(at)))
    }

    /// Takes in the answer to a request.
    pub(super) fn answer(&mut self, at: Timestamp, write: &Write, reply: Reply) {
        self.count(write, &reply);
        self.pause.after(at, &reply, self.spread.longest());
        if let Some(telling) = self.findings.get_mut(&write.key) {
            telling.answer(at, write, reply);
        }
    }

    /// What became of Events since the start.
    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    fn open(&mut self, at: Timestamp, finding: &Finding, place: &Place) {
        let Finding { key, evidence, .. } = finding;
        let Ok(event) = PlannedEvent::of(finding, place) else {
            warn!(rule = %key.name(), subject = %key.subject, "no Event: its object was read without a uid");
            self.counters.failed += 1;
            return self.close(at, key);
        };
        if let Some(telling) = self.findings.get_mut(key) {
            telling.open(evidence.severity, event, at);
        } else if self.make_room(at, evidence.severity) {
            self.findings.insert(key.clone(), Telling::new(evidence.severity, event, at));
        }
    }

    fn close(&mut self, at: Timestamp, key: &Key) {
        if self.findings.get_mut(key).is_some_and(|telling| !telling.close(at)) {
            self.findings.remove(key);
        }
    }

    /// Whether there is room for the Events of one more finding. What is over gives way, and then the least of those that are
    /// written or wait, to a worse one.
    fn make_room(&mut self, at: Timestamp, severity: Severity) -> bool {
        if self.findings.len() < OPEN {
            return true;
        }
        let least = self.findings.iter().map(|(key, telling)| (telling.worth(at), key)).min();
        let Some((worth, key)) = least.map(|(worth, key)| (worth, key.clone())) else { return true };
        let is_done = !worth.0;
        self.counters.dropped += u64::from(!is_done);
        let gives_way = is_done || worth < (true, true, severity, false);
        if gives_way {
            self.findings.remove(&key);
        }
        gives_way
    }

    /// What is over is kept for as long as its Event lives, so that a finding that comes back goes on from it.
    fn forget(&mut self, at: Timestamp) {
        let counters = &mut self.counters;
        self.findings.retain(|_, telling| {
            let Some((since, is_untold)) = telling.over_since() else { return true };
            let is_late = since + HOUR <= at;
            counters.dropped += u64::from(is_late && is_untold);
            !is_late
        });
    }

    fn count(&mut self, write: &Write, reply: &Reply) {
        let counter = match (reply, write.step) {
            (Reply::Written, _) => &mut self.counters.written,
            (Reply::Exists, Step::Tell | Step::End) => &mut self.counters.deduplicated,
            // Who reports it is no news, and what has expired is no failure.
            (Reply::Current(_), _) | (Reply::Missing, Step::Look | Step::TellAgain) => return,
            (Reply::Missing, Step::End) if matches!(write.request, Request::Repeat(..)) => return,
            (Reply::Exists | Reply::Missing | Reply::Forbidden | Reply::Stuck, _)
            | (Reply::Refused | Reply::Unavailable(_), _) => &mut self.counters.failed,
        };
        *counter += 1;
    }
}

#[cfg(test)]
mod tests;
