//! How long the API server is left alone when it does not answer.

use jiff::{SignedDuration, Timestamp};

use super::request::Reply;

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
    /// as that for a server too.
    pub(super) fn after(&mut self, at: Timestamp, reply: Reply, spread: SignedDuration) -> Reply {
        let reply = match reply {
            Reply::Forbidden if self.unanswered > 0 && self.doubted < DOUBTS => {
                self.doubted += 1;
                Reply::Unavailable(None)
            }
            reply => reply,
        };
        match reply {
            Reply::Unavailable(wanted) => self.extend(at, wanted, spread),
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
        let own = (first * 2_i32.pow(self.unanswered.min(8))).min(longest.max(spread));
        self.unanswered = self.unanswered.saturating_add(1);
        self.until = at + wanted.map_or(own, |wanted| wanted.clamp(own, LONGEST));
    }
}
