//! What is to be written, and when: a pure state machine from the ledger's changes and the API server's answers to
//! requests. The time is an argument.
//!
//! Per finding there is one [`Telling`]: the Event that it is open and, once it was cleared, the one that it is over. A
//! telling waits for its turn, the worst finding first, and for tokens of the budget; at most one request about it is on
//! its way.

use std::{cmp::Reverse, collections::BTreeMap};

use jiff::{SignedDuration, Timestamp};
use tracing::warn;

use super::{
    LIFETIME,
    budget::Budget,
    object::{Event, Place, Series, hash, is_told},
};
use crate::{
    findings::{Finding, Key, Severity, SubjectKind},
    ledger::Change,
    rules::{self, Scope},
};

/// Findings that can be told at a time. Where there are more, the mildest stay untold.
const OPEN: usize = 1024;
/// The waits before an Event is told again.
const AGAIN: [SignedDuration; 2] = [SignedDuration::from_mins(5), SignedDuration::from_mins(10)];
/// The wait before every later time: shorter than [`LIFETIME`].
const LATER: SignedDuration = SignedDuration::from_mins(55);
/// An agent that was not the first to tell a fact of the cluster tries again after [`LATER`] and up to so many seconds.
const JITTER: u128 = 15 * 60;
/// The wait after a refusal that somebody may lift.
const REFUSED: SignedDuration = SignedDuration::from_mins(10);
/// How many refusals of a server that did not answer before are not believed: until it has read its roles, it forbids
/// everything.
const DOUBTS: u32 = 3;
/// The waits while the API server does not answer double from the first to the second: what was missed is told within two
/// looks after it is back.
const SILENT: (SignedDuration, SignedDuration) = (SignedDuration::from_secs(2), SignedDuration::from_secs(20));
/// The longest that a server may send us away for.
const MOST_RESPECT: SignedDuration = SignedDuration::from_mins(5);
/// An end told so shortly before this one is this one, told by another agent.
const SAME_END: SignedDuration = SignedDuration::from_mins(1);

/// What became of Events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Created, or told again through their series.
    pub written: u64,
    /// Found to be there already.
    pub deduplicated: u64,
    /// Not told, because there was no room for them or it took too long.
    pub dropped: u64,
    /// Requests that failed, and findings about objects without a uid.
    pub failed: u64,
}

/// One request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Comes back with the reply.
    pub ticket: u64,
    /// The namespace of the Event.
    pub namespace: String,
    /// The name of the Event.
    pub name: String,
    /// What to do with it.
    pub request: Request,
}

/// What is asked of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Create it.
    Create(Box<Event>),
    /// Say by its series that it is still so.
    Again(Series),
    /// Say what its series is; nothing is written.
    Look,
}

/// What the API server made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is written.
    Written,
    /// There is one of that name already.
    Exists,
    /// This is its series.
    Found(Series),
    /// There is none of that name, or no such namespace.
    Missing,
    /// It may not be written there, as long as nobody changes that.
    Forbidden,
    /// It will never be accepted.
    Refused,
    /// Nothing can be said now; how long the server wants to be left alone, where it said so.
    Unavailable(Option<SignedDuration>),
}

/// Everything that is told, was just told, or waits for it.
#[derive(Debug)]
pub struct Events {
    tellings: BTreeMap<Key, Telling>,
    budget: Budget,
    counters: Counters,
    ticket: u64,
    /// Not before this.
    paused: Timestamp,
    /// Requests in a row that nobody answered.
    silence: u32,
    /// Refusals since then.
    doubts: u32,
}

/// One finding, as it is told.
#[derive(Debug)]
struct Telling {
    severity: Severity,
    scope: Scope,
    opening: Life,
    /// The Event with other words that was told before these could be.
    former: Option<Event>,
    ending: Option<Ending>,
    /// The request that is on its way, and whether it is about the ending.
    flying: Option<(u64, bool)>,
}

/// That a finding is over.
#[derive(Debug)]
struct Ending {
    since: Timestamp,
    life: Life,
}

/// One Event.
#[derive(Debug)]
struct Life {
    event: Event,
    stage: Stage,
    /// When something is to be done about it.
    due: Timestamp,
}

/// What is known of an Event on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not written by us.
    Untold,
    /// Written by another life of this agent, with a series that we do not know yet.
    Exists,
    /// Written.
    Told(Series),
    /// Written by another agent, which tells it again.
    Another,
    /// Nothing is to be done any more.
    Done,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            tellings: BTreeMap::new(),
            budget: Budget::new(),
            counters: Counters::default(),
            ticket: 0,
            paused: Timestamp::MIN,
            silence: 0,
            doubts: 0,
        }
    }
}

impl Events {
    /// Takes in what a round changed.
    pub fn offer(&mut self, at: Timestamp, change: &Change, place: &Place) {
        self.forget(at);
        match change {
            Change::Raised(finding) | Change::Changed(finding) if is_told(finding.evidence.severity) => {
                self.open(at, finding, place);
            }
            Change::Raised(finding) | Change::Changed(finding) | Change::Cleared(finding, _) => {
                self.close(at, &finding.key);
            }
        }
    }

    /// The next request, if one is due and within budget. Its answer belongs to [`Events::answer`].
    pub fn next(&mut self, at: Timestamp) -> Option<Write> {
        self.forget(at);
        if self.ready_again(at) > at {
            return None;
        }
        let budget = &self.budget;
        let able = self.tellings.iter_mut().filter(|(_, telling)| telling.ready(at, budget) == Some(at));
        let (_, telling) = able.min_by_key(|(_, telling)| telling.rank())?;
        self.ticket += 1;
        telling.flying = Some((self.ticket, telling.ending.is_some()));
        let life = telling.current();
        let request = match life.stage {
            Stage::Exists => Request::Look,
            Stage::Told(series) => Request::Again(Series { count: again(series.count), last: at }),
            Stage::Untold | Stage::Another | Stage::Done => Request::Create(Box::new(life.event.told(at))),
        };
        if request != Request::Look {
            self.budget.take(telling.object(), at);
        }
        let metadata = &telling.current().event.metadata;
        Some(Write { ticket: self.ticket, namespace: metadata.namespace.clone(), name: metadata.name.clone(), request })
    }

    /// When [`Events::next`] has something, as far as is known now.
    pub fn due(&self, at: Timestamp) -> Option<Timestamp> {
        let ready = self.tellings.values().filter_map(|telling| telling.ready(at, &self.budget)).min()?;
        Some(ready.max(self.ready_again(at)))
    }

    /// Takes in what became of a request.
    pub fn answer(&mut self, at: Timestamp, write: &Write, reply: Reply) {
        self.count(write, reply);
        let reply = match reply {
            Reply::Forbidden if self.silence > 0 && self.doubts < DOUBTS => {
                self.doubts += 1;
                Reply::Unavailable(None)
            }
            reply => reply,
        };
        match reply {
            Reply::Unavailable(wait) => self.pause(at, wait),
            _ => (self.silence, self.doubts) = (0, 0),
        }
        let mine = |telling: &&mut Telling| telling.flying.is_some_and(|(ticket, _)| ticket == write.ticket);
        // A finding that says something else by now has a new telling; the old one is over.
        let Some(telling) = self.tellings.values_mut().find(mine) else { return };
        let scope = telling.scope;
        match (telling.flying.take(), &mut telling.ending) {
            (Some((_, true)), Some(ending)) => {
                let alone = scope == Scope::Node || telling.opening.stage != Stage::Another;
                ending.answer(at, &write.request, reply, alone);
            }
            (Some((_, false)), _) => telling.opening.answer(at, &write.request, reply, scope),
            (Some((_, true)), None) | (None, _) => {}
        }
    }

    /// What became of Events since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn open(&mut self, at: Timestamp, finding: &Finding, place: &Place) {
        let scope = scope(&finding.key);
        let Ok(event) = Event::of(finding, scope, place) else {
            warn!(rule = %finding.key.rule, subject = %finding.key.subject, "no Event: its object was read without a uid");
            self.counters.failed += 1;
            return self.close(at, &finding.key);
        };
        let severity = finding.evidence.severity;
        match self.tellings.get_mut(&finding.key) {
            Some(telling) if telling.opening.event.metadata == event.metadata => telling.reopen(at),
            known => {
                let former = known.as_ref().and_then(|telling| telling.last_told().cloned());
                let room = known.is_some() || self.make_room(severity);
                if room {
                    let opening = Life { event, stage: Stage::Untold, due: at };
                    let telling = Telling { severity, scope, opening, former, ending: None, flying: None };
                    self.tellings.insert(finding.key.clone(), telling);
                }
            }
        }
    }

    fn close(&mut self, at: Timestamp, key: &Key) {
        let Some(telling) = self.tellings.get_mut(key) else { return };
        if telling.ending.is_some() {
            return;
        }
        let begun = if telling.flying.is_some() { Some(&telling.opening.event) } else { telling.last_told() };
        let Some(event) = begun.map(Event::resolved) else {
            // Nobody was told that it began.
            self.tellings.remove(key);
            return;
        };
        telling.ending = Some(Ending { since: at, life: Life { event, stage: Stage::Untold, due: at } });
    }

    /// Whether one more finding can be told. The least of those that are told or wait gives way to a worse one.
    fn make_room(&mut self, severity: Severity) -> bool {
        if self.tellings.len() < OPEN {
            return true;
        }
        self.counters.dropped += 1;
        let least = self.tellings.iter().min_by_key(|(_, telling)| telling.worth());
        let least = least.map(|(key, telling)| (key.clone(), telling.worth()));
        least.filter(|(_, worth)| *worth < (true, severity, false)).is_some_and(|(key, _)| {
            self.tellings.remove(&key);
            true
        })
    }

    /// Endings are kept for as long as the Event lives, so that a finding that comes back goes on from it.
    fn forget(&mut self, at: Timestamp) {
        let counters = &mut self.counters;
        self.tellings.retain(|_, telling| {
            let Some(ending) = &telling.ending else { return true };
            let late = ending.since + LIFETIME <= at && telling.flying.is_none();
            let untold = matches!(telling.opening.stage, Stage::Untold | Stage::Done);
            let never_told = untold && telling.former.is_none() && telling.flying.is_none();
            counters.dropped += u64::from(late && !never_told && ending.life.stage != Stage::Done);
            !late && !never_told
        });
    }

    fn count(&mut self, write: &Write, reply: Reply) {
        let counter = match (reply, &write.request) {
            (Reply::Written, _) => &mut self.counters.written,
            (Reply::Exists, Request::Create(_)) => &mut self.counters.deduplicated,
            // An Event that has expired, or a look at one that is there, is no failure.
            (Reply::Missing, Request::Again(_) | Request::Look) | (Reply::Found(_), _) => return,
            (Reply::Exists | Reply::Missing | Reply::Forbidden | Reply::Refused | Reply::Unavailable(_), _) => {
                &mut self.counters.failed
            }
        };
        *counter += 1;
    }

    fn pause(&mut self, at: Timestamp, wait: Option<SignedDuration>) {
        let (first, longest) = SILENT;
        let own = (first * 2_i32.pow(self.silence.min(8))).min(longest);
        self.silence = self.silence.saturating_add(1);
        self.paused = at + wait.map_or(own, |wait| wait.clamp(own, MOST_RESPECT));
    }

    /// The end of the pause. One further away than any pause is from a clock that was set back.
    fn ready_again(&self, at: Timestamp) -> Timestamp {
        if self.paused > at + MOST_RESPECT { at } else { self.paused }
    }
}

impl Telling {
    /// The Event that says that it began, if anybody was told and not yet that it is over.
    fn last_told(&self) -> Option<&Event> {
        match self.opening.stage {
            _ if self.ending.is_some() => None,
            Stage::Untold | Stage::Done => self.former.as_ref(),
            Stage::Exists | Stage::Told(_) | Stage::Another => Some(&self.opening.event),
        }
    }

    fn current(&self) -> &Life {
        self.ending.as_ref().map_or(&self.opening, |ending| &ending.life)
    }

    /// The object whose budget it spends.
    fn object(&self) -> &str {
        self.opening.event.regarding.uid.as_deref().unwrap_or_default()
    }

    /// From when on a request can be made: `at`, or later; nothing while one is on its way, or if none is needed.
    fn ready(&self, at: Timestamp, budget: &Budget) -> Option<Timestamp> {
        let life = self.current();
        if self.flying.is_some() || life.stage == Stage::Done {
            return None;
        }
        // Further away than any wait: the clock was set back.
        let due = if life.due > at + LATER + SignedDuration::from_secs(JITTER as i64) { at } else { life.due.max(at) };
        Some(if life.stage == Stage::Exists { due } else { due.max(budget.ready(self.object(), at)) })
    }

    /// What is new before what is over, that before what is told again; the worst first, then what waits longest.
    fn rank(&self) -> (u8, Reverse<Severity>, Timestamp) {
        let news = match (&self.ending, self.opening.stage) {
            (None, Stage::Untold | Stage::Exists) => 0,
            (Some(_), _) => 1,
            (None, Stage::Told(_) | Stage::Another | Stage::Done) => 2,
        };
        (news, Reverse(self.severity), self.current().due)
    }

    /// What it would be a loss to forget, least first.
    fn worth(&self) -> (bool, Severity, bool) {
        (self.ending.is_none(), self.severity, self.opening.stage != Stage::Untold)
    }

    /// The finding is there again, with the same words.
    fn reopen(&mut self, at: Timestamp) {
        let Some(ending) = self.ending.take() else { return };
        let silent = ending.life.stage == Stage::Untold && self.flying.is_none_or(|(_, ending)| !ending);
        // Whoever was told that it is over has to be told that it is not.
        if !silent && self.opening.stage != Stage::Another {
            self.opening.due = at;
        }
    }
}

impl Life {
    fn answer(&mut self, at: Timestamp, request: &Request, reply: Reply, scope: Scope) {
        (self.stage, self.due) = match (reply, request) {
            (Reply::Written, Request::Again(series)) => (Stage::Told(*series), at + wait(series.count)),
            (Reply::Written, _) => (Stage::Told(Series { count: 1, last: at }), at + wait(1)),
            (Reply::Exists, _) if scope == Scope::Cluster => (Stage::Another, at + LATER + self.jitter()),
            (Reply::Exists, _) => (Stage::Exists, at),
            (Reply::Found(series), _) => (Stage::Told(series), series.last.min(at) + wait(series.count)),
            (Reply::Missing, Request::Again(_) | Request::Look) => (Stage::Untold, at),
            (Reply::Missing | Reply::Forbidden, _) => (self.stage, at + REFUSED),
            (Reply::Refused, _) => (Stage::Done, at),
            (Reply::Unavailable(_), _) => (self.stage, self.due),
        };
    }

    /// Differs from agent to agent, so that they do not all try at once.
    fn jitter(&self) -> SignedDuration {
        let seconds = hash(&[self.event.reporter(), &self.event.metadata.name]) % JITTER;
        SignedDuration::from_secs(seconds as i64)
    }
}

impl Ending {
    /// `alone` unless another agent tells the finding, which then tells its end too.
    fn answer(&mut self, at: Timestamp, request: &Request, reply: Reply, alone: bool) {
        let life = &mut self.life;
        (life.stage, life.due) = match (reply, request) {
            (Reply::Exists, _) if alone => (Stage::Exists, at),
            (Reply::Found(series), _) if series.last.min(self.since) + SAME_END < self.since => {
                (Stage::Told(series), at)
            }
            (Reply::Missing, Request::Again(_) | Request::Look) => (Stage::Untold, at),
            (Reply::Unavailable(_), _) => (life.stage, life.due),
            (Reply::Forbidden, _) => (life.stage, at + REFUSED),
            (Reply::Written | Reply::Exists | Reply::Found(_) | Reply::Missing | Reply::Refused, _) => {
                (Stage::Done, at)
            }
        };
    }
}

/// Whose voice tells it. What a rule of the cluster says of a Node, no other node can tell.
fn scope(key: &Key) -> Scope {
    match key.subject.kind {
        SubjectKind::Node => Scope::Node,
        SubjectKind::Service | SubjectKind::Pod | SubjectKind::Cluster => {
            rules::find(key.rule.0).map_or(Scope::Node, |rule| rule.scope)
        }
    }
}

/// How long an Event that was told so often is left alone.
fn wait(count: u32) -> SignedDuration {
    let told = usize::try_from(count).unwrap_or(usize::MAX);
    AGAIN.get(told.saturating_sub(1)).copied().unwrap_or(LATER)
}

/// The API server's count is an `int32`.
fn again(count: u32) -> u32 {
    count.saturating_add(1).clamp(2, i32::MAX.unsigned_abs())
}

#[cfg(test)]
mod tests;
