//! Plans the requests about Events. The plan is a pure state machine. The plan's inputs are the time, the ledger's
//! changes, and the API server's answers.
//!
//! Each finding waits for its time and for a token of the budget. The worst finding is first. Only one request is in
//! progress at a time.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::Event;
use tracing::warn;

use super::{
    finding_events::FindingEvents,
    name::HOUR,
    object::{PlannedEvent, is_worth_an_event},
    place::Place,
    spread::Spread,
};
use portreeve_rules::{
    findings::{Finding, Key, Severity},
    ledger::Change,
};

/// The greatest number of findings with Events. If there are more findings, the mildest findings have no Events.
const OPEN: usize = 1024;
const BURST: i32 = 10;
const INTERVAL: SignedDuration = SignedDuration::from_secs(10);
/// While the API server does not answer, the wait between two requests doubles from the first value to the second
/// value. After the API server answers again, the agent writes the missed Events within two scans.
const WAITS: (SignedDuration, SignedDuration) = (SignedDuration::from_secs(2), SignedDuration::from_secs(20));
/// The longest wait that a server can request.
pub(super) const LONGEST: SignedDuration = SignedDuration::from_mins(5);

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Write {
    pub(super) key: Key,
    pub(super) step: Step,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) request: Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Create the Event of this hour, unless it exists.
    Report,
    /// The end of the finding was reported, and the finding is open again. Increase the count of this node's Event.
    ReportAgain,
    /// The finding is over. Read the Event, because it may be from this node.
    Read,
    /// The finding is over, and this node reported it. Write the Event about the end of the finding.
    End,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    Create(Box<Event>),
    /// Set the count and the last time of the Event's series.
    Repeat(i32, Timestamp),
    /// Read the Event's reporting instance. The request changes nothing.
    Read,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Written,
    Exists,
    /// The Event exists. The value is the Event's reporting instance. `None` if the Event has no reporting instance.
    Current(Option<String>),
    /// No Event with this name exists, or the namespace does not exist.
    Missing,
    /// The agent has no right to write the Event in this namespace, until a person changes the rights.
    Forbidden,
    /// The Event cannot be read, or the server refuses the request. A repeated request fails until a person changes
    /// something.
    Stuck,
    /// The server refuses the Event and will always refuse it.
    Refused,
    /// The server is not available now. The value is the wait that the server requests, if any.
    Unavailable(Option<SignedDuration>),
}

/// The results of requests about Events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events that were created, or whose count was increased.
    pub written: u64,
    /// Events that existed already, from this node or from another node.
    pub deduplicated: u64,
    /// Events that the agent did not write, because there were too many findings, or because a write took too long.
    pub dropped: u64,
    /// Failed requests, and findings without an Event because their object has no uid.
    pub failed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    findings: BTreeMap<Key, FindingEvents>,
    budget: Budget,
    counters: Counters,
    pause: Pause,
    spread: Spread,
}

impl Plan {
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
            // The finding has another key now. The finding is still open, so no Event about an end is written.
            Change::Became(was, finding) if is_worth_an_event(finding.evidence.severity) => {
                if let Some(events) = self.findings.remove(was) {
                    self.findings.insert(finding.key.clone(), events);
                }
                self.open(at, finding, place);
            }
            Change::Became(was, _) => self.close(at, was),
        }
    }

    /// Stores the number of Nodes. Until the number is known, a request waits as long as in a very large cluster.
    pub(super) fn know(&mut self, place: &Place) {
        self.spread = self.spread.over(place.nodes);
    }

    pub(super) fn knows_nodes(&self) -> bool {
        self.spread.is_known()
    }

    /// Returns a request that is due now. The caller must pass the answer to [`Plan::answer`].
    pub(super) fn next(&mut self, at: Timestamp) -> Option<Write> {
        self.forget(at);
        if self.pause.end(at) > at || self.budget.ready(at) > at {
            return None;
        }
        let spread = self.spread;
        let able = self.findings.iter_mut().filter(|(_, events)| events.due(at, spread) == Some(at));
        let (key, events) = able.min_by_key(|(_, events)| events.rank(at))?;
        let write = events.send(key, at)?;
        self.budget.take(at);
        Some(write)
    }

    pub(super) fn due(&self, at: Timestamp) -> Option<Timestamp> {
        let due = self.findings.values().filter_map(|events| events.due(at, self.spread)).min()?;
        Some(due.max(self.budget.ready(at)).max(self.pause.end(at)))
    }

    pub(super) fn answer(&mut self, at: Timestamp, write: &Write, reply: Reply) {
        self.count(write, &reply);
        self.pause.after(at, &reply, self.spread.longest());
        if let Some(events) = self.findings.get_mut(&write.key) {
            events.answer(at, write, reply);
        }
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    fn open(&mut self, at: Timestamp, finding: &Finding, place: &Place) {
        let Finding { key, evidence, .. } = finding;
        let last = self.findings.get(key).map(FindingEvents::last);
        let Some(event) = PlannedEvent::of(last, finding, place) else {
            warn!(rule = %key.name(), subject = %key.subject, "no Event is written: its object has no uid");
            self.counters.failed += 1;
            return;
        };
        if let Some(events) = self.findings.get_mut(key) {
            events.open(evidence.severity, event, at);
        } else if self.make_room(at, evidence.severity) {
            self.findings.insert(key.clone(), FindingEvents::new(evidence.severity, event, at));
        }
    }

    fn close(&mut self, at: Timestamp, key: &Key) {
        if self.findings.get_mut(key).is_some_and(|events| !events.close(at)) {
            self.findings.remove(key);
        }
    }

    /// If there are too many findings, forgets an ended finding first. Otherwise forgets the least important finding,
    /// if the new finding is worse.
    fn make_room(&mut self, at: Timestamp, severity: Severity) -> bool {
        if self.findings.len() < OPEN {
            return true;
        }
        let least = self.findings.iter().map(|(key, events)| (events.worth(at), key)).min();
        let Some((worth, key)) = least.map(|(worth, key)| (worth, key.clone())) else { return true };
        let is_done = !worth.0;
        self.counters.dropped += u64::from(!is_done);
        let gives_way = is_done || worth < (true, true, severity, false);
        if gives_way {
            self.findings.remove(&key);
        }
        gives_way
    }

    /// Forgets ended findings whose Event has expired. If a finding opens again before its Event expires, the agent
    /// increases the count of this Event.
    fn forget(&mut self, at: Timestamp) {
        let counters = &mut self.counters;
        self.findings.retain(|_, events| {
            let Some((since, lacks_end)) = events.over_since() else { return true };
            let is_late = since + HOUR <= at;
            counters.dropped += u64::from(is_late && lacks_end);
            !is_late
        });
    }

    fn count(&mut self, write: &Write, reply: &Reply) {
        let counter = match (reply, write.step) {
            (Reply::Written, _) => &mut self.counters.written,
            (Reply::Exists, Step::Report | Step::End) => &mut self.counters.deduplicated,
            // These answers change no counter: a request that reads an Event writes nothing, and an expired Event is
            // normal.
            (Reply::Current(_), _) | (Reply::Missing, Step::Read | Step::ReportAgain) => return,
            (Reply::Missing, Step::End) if matches!(write.request, Request::Repeat(..)) => return,
            (Reply::Exists | Reply::Missing | Reply::Forbidden | Reply::Stuck, _)
            | (Reply::Refused | Reply::Unavailable(_), _) => &mut self.counters.failed,
        };
        *counter += 1;
    }
}

/// A token bucket that stores the time at which the bucket will be full again.
#[derive(Debug, Default)]
struct Budget {
    full: Timestamp,
}

impl Budget {
    fn ready(&self, at: Timestamp) -> Timestamp {
        (self.full_after(at) - INTERVAL * (BURST - 1)).max(at)
    }

    fn take(&mut self, at: Timestamp) {
        self.full = self.full_after(at) + INTERVAL;
    }

    /// The time at which the bucket will be full. If the stored time is later than possible, the clock was set back.
    fn full_after(&self, at: Timestamp) -> Timestamp {
        if self.full > at + INTERVAL * BURST { at } else { self.full.max(at) }
    }
}

#[derive(Debug, Default)]
struct Pause {
    until: Timestamp,
    unanswered: u32,
}

impl Pause {
    /// In a large cluster, each agent delays its requests by up to `spread`. After a failure, an agent also waits at
    /// least for `spread`. So the agents send their next requests at different times.
    fn after(&mut self, at: Timestamp, reply: &Reply, spread: SignedDuration) {
        let Reply::Unavailable(wanted) = reply else {
            self.unanswered = 0;
            return;
        };
        let (first, longest) = WAITS;
        let own = (first * 2_i32.pow(self.unanswered.min(8))).min(longest).max(spread);
        self.unanswered = self.unanswered.saturating_add(1);
        self.until = at + wanted.map_or(own, |wanted| wanted.clamp(own, LONGEST));
    }

    /// The end of the pause. If the stored end is later than the longest possible wait, the clock was set back.
    fn end(&self, at: Timestamp) -> Timestamp {
        if self.until > at + LONGEST { at } else { self.until }
    }
}

#[cfg(test)]
mod tests;
