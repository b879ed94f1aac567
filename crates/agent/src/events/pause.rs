//! The pause after which the agent sends requests again, if the API server does not answer.

use jiff::{SignedDuration, Timestamp};

use super::request::Reply;

/// The waits double from the first to the second while the API server does not answer. Missed Events are written within two scans
/// after it answers again.
const WAITS: (SignedDuration, SignedDuration) = (SignedDuration::from_secs(2), SignedDuration::from_secs(20));
/// The longest wait that a server can request.
pub(super) const LONGEST: SignedDuration = SignedDuration::from_mins(5);

/// The time until which no request is sent.
#[derive(Debug)]
pub(super) struct Pause {
    until: Timestamp,
    /// The number of requests in a row without an answer.
    unanswered: u32,
}

impl Pause {
    pub(super) fn none() -> Self {
        Self { until: Timestamp::MIN, unanswered: 0 }
    }

    /// Notes a reply. In a large cluster each agent delays its requests by up to `spread`. After a failure they keep at least this
    /// delay, so that they do not come back together.
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

    /// The end of the pause. An end that is too far away is from before the clock was set back.
    pub(super) fn end(&self, at: Timestamp) -> Timestamp {
        if self.until > at + LONGEST { at } else { self.until }
    }
}
