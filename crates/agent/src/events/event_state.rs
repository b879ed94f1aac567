//! One Event: what is known of it on the server, and when something is to be done about it.

use jiff::{SignedDuration, Timestamp};

use super::{
    hash::hash,
    incident::Teller,
    object::PlannedEvent,
    request::{Reply, Request, Seen, Series},
    spread::Delay,
};

/// The waits before an Event is repeated.
const FIRST: [SignedDuration; 2] = [SignedDuration::from_mins(5), SignedDuration::from_mins(10)];
/// The wait before every later time: shorter than the hour for which the API server keeps an Event.
const LATER: SignedDuration = SignedDuration::from_mins(55);
/// An agent that was not the first to write a problem of the cluster tries again after [`LATER`] and up to so many
/// seconds.
const JITTER: u128 = 15 * 60;
/// The waits after refusals in a row that may be lifted double from the first to the second. A server that has just come
/// back empty gets its roles and its namespaces one after the other.
const REFUSED_ONCE: SignedDuration = SignedDuration::from_secs(20);
pub(super) const REFUSED: SignedDuration = SignedDuration::from_mins(10);
/// The end of a problem that was written so shortly before this end is this one, by another agent.
const SAME_END: SignedDuration = SignedDuration::from_mins(1);

/// One Event on its way to the server, and on it.
#[derive(Debug)]
pub(super) struct EventState {
    pub(super) event: PlannedEvent,
    pub(super) stage: Stage,
    /// When something is to be done about it.
    pub(super) due: Timestamp,
    /// The Event that says that it is over, while that is looked for.
    end: Option<Box<PlannedEvent>>,
    refusals: Refusals,
    /// How long this node waits before it does what all nodes do.
    delay: Delay,
}

/// Refusals in a row that may be lifted.
#[derive(Debug)]
pub(super) struct Refusals(u32);

/// What is known of an Event on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not written by this agent.
    Unwritten,
    /// Written by an earlier run of this agent; its series is not known yet.
    Found,
    /// The same, with this series; whether it stands under its own end is not known yet.
    Read(Series),
    /// Written.
    Written(Series),
    /// Written by another agent, which repeats it.
    ByAnotherAgent,
    /// Nothing is to be done any more.
    Done,
}

impl EventState {
    /// One that every node writes from `at` on, each after a delay of its own.
    pub(super) fn new(event: PlannedEvent, at: Timestamp, delay: Delay) -> Self {
        Self { event, stage: Stage::Unwritten, due: at + delay.own, end: None, refusals: Refusals::none(), delay }
    }

    /// It has to wait no longer than this, if it was never asked about.
    pub(super) fn hasten(&mut self, at: Timestamp, delay: Delay) {
        self.delay = delay;
        if self.stage == Stage::Unwritten {
            self.due = self.due.min(at + delay.own);
        }
    }

    /// The Event that the next request is about.
    pub(super) fn target(&self) -> &PlannedEvent {
        match (&self.stage, &self.end) {
            (Stage::Read(_), Some(end)) => end,
            _ => &self.event,
        }
    }

    /// What is to be sent next.
    pub(super) fn request(&self, at: Timestamp) -> Request {
        match self.stage {
            Stage::Found | Stage::Read(_) => Request::Look,
            Stage::Written(series) => Request::Repeat(series.repeated(at)),
            Stage::Unwritten | Stage::ByAnotherAgent | Stage::Done => Request::Create(Box::new(self.event.at(at))),
        }
    }

    /// When something is to be done about it: `at`, or later. Further away than any wait, the clock was set back.
    pub(super) fn due(&self, at: Timestamp) -> Timestamp {
        if self.due > furthest(at) { at } else { self.due.max(at) }
    }

    /// Takes in the answer about an Event that a problem began.
    pub(super) fn answer_opening(&mut self, at: Timestamp, request: &Request, reply: Reply) {
        if let Stage::Read(series) = self.stage {
            return self.answer_end(at, series, reply);
        }
        let refused = at + self.refusals.after(&reply);
        (self.stage, self.due) = match (reply, request) {
            (Reply::Written, Request::Repeat(series)) => (Stage::Written(*series), at + wait(series.count)),
            (Reply::Written, _) => (Stage::Written(Series { count: 1, last: at }), at + wait(1)),
            (Reply::Exists, _) if self.event.teller == Teller::AnyAgent => {
                (Stage::ByAnotherAgent, at + LATER + self.jitter())
            }
            // Agents that start at one moment have all written before the first of them looks.
            (Reply::Exists, _) => (Stage::Found, at + self.delay.longest),
            (Reply::Current(Seen { series, .. }), _) => {
                self.end = Some(Box::new(self.event.resolved()));
                (Stage::Read(series), at)
            }
            (Reply::Missing, Request::Repeat(_) | Request::Look) => (Stage::Unwritten, at),
            (Reply::Missing | Reply::Forbidden | Reply::Stuck, _) => (self.stage, refused),
            (Reply::Refused | Reply::Overtaken, _) => (Stage::Done, at),
            (Reply::Unavailable(_), _) => (self.stage, self.due),
        };
    }

    /// Takes in what the server has of its end. Where that is the newer word, it is told again at once.
    fn answer_end(&mut self, at: Timestamp, series: Series, reply: Reply) {
        if matches!(reply, Reply::Unavailable(_)) {
            return;
        }
        let is_over = matches!(reply, Reply::Current(seen) if seen.series.last >= series.last);
        self.end = None;
        let due = if is_over { at } else { series.last.min(at) + wait(series.count) };
        (self.stage, self.due) = (Stage::Written(series), due);
    }

    /// Takes in the answer about an Event that a problem ended at `since`; `alone` unless another agent writes the
    /// problem's Events.
    pub(super) fn answer_ending(
        &mut self,
        at: Timestamp,
        request: &Request,
        reply: Reply,
        (since, alone): (Timestamp, bool),
    ) {
        let refused = at + self.refusals.after(&reply);
        (self.stage, self.due) = match (reply, request) {
            (Reply::Exists, _) if alone => (Stage::Found, at),
            (Reply::Current(Seen { series, .. }), _) if series.last.min(since) + SAME_END < since => {
                (Stage::Written(series), at)
            }
            (Reply::Missing, Request::Repeat(_) | Request::Look) => (Stage::Unwritten, at),
            (Reply::Unavailable(_), _) => (self.stage, self.due),
            (Reply::Forbidden | Reply::Stuck, _) => (self.stage, refused),
            (Reply::Written | Reply::Exists | Reply::Current(_) | Reply::Missing, _)
            | (Reply::Refused | Reply::Overtaken, _) => (Stage::Done, at),
        };
    }

    /// Differs from agent to agent, so that they do not all try at once.
    fn jitter(&self) -> SignedDuration {
        let seconds = hash(&[&self.event.reporter, &self.event.name]) % JITTER;
        SignedDuration::from_secs(seconds as i64)
    }
}

impl Refusals {
    pub(super) fn none() -> Self {
        Self(0)
    }

    /// Takes in whether a reply is a refusal, and returns how long to wait if it is.
    pub(super) fn after(&mut self, reply: &Reply) -> SignedDuration {
        let wait = refused(self.0);
        self.0 = match reply {
            Reply::Missing | Reply::Forbidden | Reply::Stuck => self.0.saturating_add(1),
            Reply::Unavailable(_) => self.0,
            Reply::Written | Reply::Exists | Reply::Current(_) | Reply::Overtaken | Reply::Refused => 0,
        };
        wait
    }
}

/// The wait after a refusal that followed so many in a row.
pub(super) fn refused(before: u32) -> SignedDuration {
    (REFUSED_ONCE * 2_i32.pow(before.min(8))).min(REFUSED)
}

/// No wait is longer. A time further away was made before the clock was set back.
pub(super) fn furthest(at: Timestamp) -> Timestamp {
    at + LATER + SignedDuration::from_secs(JITTER as i64)
}

/// How long an Event that was written so often is left alone.
pub(super) fn wait(count: u32) -> SignedDuration {
    let written = usize::try_from(count).unwrap_or(usize::MAX);
    FIRST.get(written.saturating_sub(1)).copied().unwrap_or(LATER)
}
