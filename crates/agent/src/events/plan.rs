//! What is to be written, and when: a pure state machine from the ledger's changes and the API server's answers to
//! requests. The time is an argument.
//!
//! Each finding waits for its turn, the worst first, and for tokens of the budget; at most one request about it is on its
//! way.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use tracing::warn;

use super::{
    budget::Budget,
    finding_events::FindingEvents,
    object::{PlannedEvent, is_worth_an_event},
    pause::Pause,
    place::Place,
    request::{Hold, Reply, Request, Write},
    spread::Spread,
};
use portreeve_rules::{
    findings::{Finding, Key, Severity},
    ledger::Change,
};

/// Findings that can have Events at a time. Where there are more, the mildest get none.
const OPEN: usize = 1024;
/// How long the API server keeps an Event that nobody touches: kube-apiserver's `--event-ttl` by default.
const LIFETIME: SignedDuration = SignedDuration::from_hours(1);

/// What became of Events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Created, or repeated through their series.
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
pub struct Plan {
    findings: BTreeMap<Key, FindingEvents>,
    budget: Budget,
    counters: Counters,
    ticket: u64,
    pause: Pause,
    spread: Spread,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            findings: BTreeMap::new(),
            budget: Budget::new(),
            counters: Counters::default(),
            ticket: 0,
            pause: Pause::none(),
            spread: Spread::default(),
        }
    }
}

impl Plan {
    /// Takes in what a round changed.
    pub fn offer(&mut self, at: Timestamp, change: &Change, place: &Place) {
        self.forget(at);
        self.know(at, place);
        match change {
            Change::Raised(finding) | Change::Changed(finding) if is_worth_an_event(finding.evidence.severity) => {
                self.open(at, finding, place);
            }
            Change::Raised(finding) | Change::Changed(finding) | Change::Cleared(finding, _) => {
                self.close(at, &finding.key);
            }
            // As another impact: nothing is over, so no Event says so.
            Change::Became(was, finding) if is_worth_an_event(finding.evidence.severity) => {
                if let Some(events) = self.findings.remove(was) {
                    self.findings.insert(finding.key.clone(), events);
                }
                self.open(at, finding, place);
            }
            Change::Became(was, _) => self.close(at, was),
        }
    }

    /// Takes in how many Nodes there are. What waited because that was not known waits no longer than it has to.
    pub fn know(&mut self, at: Timestamp, place: &Place) {
        let was_known = self.knows_nodes();
        self.spread = self.spread.over(place.nodes);
        if !was_known && self.knows_nodes() {
            self.findings.values_mut().for_each(|events| events.hasten(at, self.spread));
        }
    }

    /// Whether it was ever known how many Nodes there are.
    pub fn knows_nodes(&self) -> bool {
        self.spread.is_known()
    }

    /// The next request, if one is due and within budget. Its answer belongs to [`Plan::answer`].
    pub fn next(&mut self, at: Timestamp) -> Option<Write> {
        self.forget(at);
        if self.pause.end(at) > at {
            return None;
        }
        let budget = &self.budget;
        let able = self.findings.values_mut().filter(|events| events.ready(at, budget) == Some(at));
        let events = able.min_by_key(|events| events.rank(at))?;
        self.ticket += 1;
        let (PlannedEvent { namespace, name, .. }, request) = events.send(self.ticket, at);
        let write = Write { ticket: self.ticket, namespace: namespace.clone(), name: name.clone(), request };
        if write.request.is_light() {
            self.budget.take_look(at);
        } else {
            self.budget.take(events.object(), at);
        }
        Some(write)
    }

    /// When [`Plan::next`] has something, as far as is known now.
    pub fn due(&self, at: Timestamp) -> Option<Timestamp> {
        let ready = self.findings.values().filter_map(|events| events.ready(at, &self.budget)).min()?;
        Some(ready.max(self.pause.end(at)))
    }

    /// Takes in the answer to a request.
    pub fn answer(&mut self, at: Timestamp, write: &Write, reply: Reply) {
        self.count(write, &reply);
        let reply = self.pause.after(at, (&write.request, reply), self.spread.longest());
        let its = |events: &FindingEvents| events.in_flight.is_some_and(|it| it.ticket == write.ticket);
        // A finding of another impact by now has new Events; the old ones are over.
        let is_answer = !write.request.is_read() && !matches!(reply, Reply::Unavailable(_));
        let about = self.findings.iter_mut().find(|(_, events)| its(events)).map(|(key, events)| {
            events.unanswered.after(&write.request, &reply);
            events.answer(at, &write.request, reply);
            key.clone()
        });
        if is_answer {
            let others = self.findings.iter_mut().filter(|(key, _)| Some(*key) != about.as_ref());
            others.for_each(|(_, events)| events.unanswered.after_another(at));
        }
    }

    /// What became of Events since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn open(&mut self, at: Timestamp, finding: &Finding, place: &Place) {
        let Finding { key, evidence, .. } = finding;
        let Ok(event) = PlannedEvent::of(finding, place) else {
            warn!(rule = %key.name(), subject = %key.subject, "no Event: its object was read without a uid");
            self.counters.failed += 1;
            return self.close(at, key);
        };
        match self.findings.get_mut(key) {
            Some(known) if known.is_opened_by(&event) => known.reopen(event, at),
            known => {
                let delay = self.spread.delay(&event.node, &event.name);
                let events = FindingEvents::new(evidence.severity, event, known.as_deref(), (at, delay));
                if known.is_some() || self.make_room(evidence.severity) {
                    self.findings.insert(key.clone(), events);
                }
            }
        }
    }

    fn close(&mut self, at: Timestamp, key: &Key) {
        let spread = self.spread;
        let is_unwritten = |events: &mut FindingEvents| !events.close(at, spread);
        if self.findings.get_mut(key).is_some_and(is_unwritten) {
            self.findings.remove(key);
        }
    }

    /// Whether there is room for the Events of one more finding. The least of those that are written or wait gives way to
    /// a worse one.
    fn make_room(&mut self, severity: Severity) -> bool {
        if self.findings.len() < OPEN {
            return true;
        }
        self.counters.dropped += 1;
        let least = self.findings.iter().min_by_key(|(_, events)| events.worth());
        let least = least.map(|(key, events)| (key.clone(), events.worth()));
        least.filter(|(_, worth)| *worth < (true, severity, false)).is_some_and(|(key, _)| {
            self.findings.remove(&key);
            true
        })
    }

    /// Endings are kept for as long as the Event lives, so that a finding that comes back goes on from it.
    fn forget(&mut self, at: Timestamp) {
        let counters = &mut self.counters;
        self.findings.retain(|_, events| {
            let Some((since, end_is_written)) = events.ended() else { return true };
            let late = since + LIFETIME <= at && events.in_flight.is_none();
            let begun = events.has_begun();
            counters.dropped += u64::from(late && begun && !end_is_written);
            !late && begun
        });
    }

    fn count(&mut self, write: &Write, reply: &Reply) {
        let counter = match (reply, &write.request) {
            // Who holds a voice is no news of a finding.
            (Reply::Written, Request::Hold(Hold { series: None, .. })) => return,
            (Reply::Written, _) => &mut self.counters.written,
            (Reply::Exists, Request::Create(_)) | (Reply::Current(_), Request::Find) => &mut self.counters.deduplicated,
            // An Event that has expired, a look at one that is there, or to come second is no failure.
            (Reply::Missing, Request::Repeat(_) | Request::Find | Request::Look | Request::Hold(_))
            | (Reply::Current(_) | Reply::Overtaken, _) => return,
            (Reply::Exists | Reply::Missing | Reply::Forbidden | Reply::Stuck, _)
            | (Reply::Refused | Reply::Unavailable(_), _) => &mut self.counters.failed,
        };
        *counter += 1;
    }
}

#[cfg(test)]
mod tests;
