//! How long the API server is left alone when it does not answer.

use jiff::{SignedDuration, Timestamp};

use super::request::Reply;

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
}

impl Pause {
    pub(super) fn none() -> Self {
        Self { until: Timestamp::MIN, unanswered: 0 }
    }

    /// Takes in a reply. Agents that wait so long before they write wait as long as that for a server too: as far apart as
    /// they came, they come again.
    pub(super) fn after(&mut self, at: Timestamp, reply: &Reply, spread: SignedDuration) {
        let Reply::Unavailable(wanted) = reply else {
            self.unanswered = 0;
            return;
        };
        let (first, longest) = WAITS;
        let own = (first * 2_i32.pow(self.unanswered.min(8))).min(longest).max(spread);
        self.unanswered = self.unanswered.saturating_add(1);
        self.until = at + wanted.map_or(own, |wanted| wanted.clamp(own, LONGEST));
    }

    /// When it ends. An end further away than any pause is from a clock that was set back.
    pub(super) fn end(&self, at: Timestamp) -> Timestamp {
        if self.until > at + LONGEST { at } else { self.until }
    }
}
