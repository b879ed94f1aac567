//! How long the API server is left alone when it does not answer, and a finding about which it alone does not.

use jiff::{SignedDuration, Timestamp};

use super::{
    event_state::{REFUSED, refused},
    request::{Reply, Request},
};

/// How many refusals of a server that did not answer before are not believed: until it has read its roles, it forbids
/// everything.
const DOUBTS: u32 = 3;
/// The waits while the API server does not answer double from the first to the second: what was missed is written within
/// two looks after it is back.
const WAITS: (SignedDuration, SignedDuration) = (SignedDuration::from_secs(2), SignedDuration::from_secs(20));
/// The longest wait that a server may ask for.
pub(super) const LONGEST: SignedDuration = SignedDuration::from_mins(5);

/// Until when nothing is sent.
#[derive(Debug)]
pub(super) struct Pause {
    until: Timestamp,
    /// Requests in a row without an answer.
    unanswered: u32,
    /// Refusals since then.
    doubted: u32,
}

impl Pause {
    pub(super) fn none() -> Self {
        Self { until: Timestamp::MIN, unanswered: 0, doubted: 0 }
    }

    /// Takes in a reply, and returns what is to be believed of it. Agents that wait so long before they write wait as long
    /// as that for a server too: as far apart as they came, they come again. One that answers reads alone is not well.
    pub(super) fn after(
        &mut self,
        at: Timestamp,
        (request, reply): (&Request, Reply),
        spread: SignedDuration,
    ) -> Reply {
        let reply = match reply {
            Reply::Forbidden if self.unanswered > 0 && self.doubted < DOUBTS => {
                self.doubted += 1;
                Reply::Unavailable(None)
            }
            reply => reply,
        };
        match reply {
            Reply::Unavailable(wanted) => self.extend(at, wanted, spread),
            _ if request.is_read() => {}
            _ => (self.unanswered, self.doubted) = (0, 0),
        }
        reply
    }

    /// When it ends. An end further away than any pause is from a clock that was set back.
    pub(super) fn end(&self, at: Timestamp) -> Timestamp {
        if self.until > at + LONGEST { at } else { self.until }
    }

    fn extend(&mut self, at: Timestamp, wanted: Option<SignedDuration>, spread: SignedDuration) {
        let (first, longest) = WAITS;
        let own = (first * 2_i32.pow(self.unanswered.min(8))).min(longest).max(spread);
        self.unanswered = self.unanswered.saturating_add(1);
        self.until = at + wanted.map_or(own, |wanted| wanted.clamp(own, LONGEST));
    }
}

/// That the server does not answer about one finding. Where it answers about others meanwhile, it may be that finding, which is
/// left alone for longer and longer.
#[derive(Debug)]
pub(super) struct Unanswered {
    /// How often in a row, since the server last answered about another.
    pub(super) times: u32,
    /// How often it answered about another meanwhile.
    alone: u32,
    until: Timestamp,
}

impl Unanswered {
    pub(super) fn none() -> Self {
        Self { times: 0, alone: 0, until: Timestamp::MIN }
    }

    /// Takes in a reply about this finding. A server that says when to come back turns away everybody.
    pub(super) fn after(&mut self, request: &Request, reply: &Reply) {
        match reply {
            Reply::Unavailable(None) => self.times = self.times.saturating_add(1),
            Reply::Unavailable(Some(_)) => {}
            _ if request.is_read() => {}
            _ => *self = Self::none(),
        }
    }

    /// The server has done something about another finding. Once that is chance.
    pub(super) fn after_another(&mut self, at: Timestamp) {
        if self.times > 0 {
            let wait = if self.alone > 0 { refused(self.alone - 1) } else { SignedDuration::ZERO };
            (self.times, self.alone, self.until) = (0, self.alone.saturating_add(1), at + wait);
        }
    }

    /// Until when it is left alone.
    pub(super) fn end(&self, at: Timestamp) -> Timestamp {
        if self.until > at + REFUSED { at } else { self.until }
    }
}
