//! That a node gives its voice back: it reads the gate and, if it still holds it, marks it as over.

use jiff::Timestamp;

use super::{
    event_state::Refusals,
    object::PlannedEvent,
    request::{Hold, Reply, Request},
};

/// A voice on its way back.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) gate: PlannedEvent,
    stage: Stage,
    pub(super) due: Timestamp,
    refusals: Refusals,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Whether this node holds it is to be read.
    Unread,
    /// It holds it in this version of the gate.
    Held(String),
}

/// What became of a voice that is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Released {
    /// It is still on its way.
    NotYet,
    /// It was this node's.
    Back,
    /// It was not this node's any more.
    NotHeld,
}

impl Release {
    pub(super) fn new(gate: PlannedEvent, due: Timestamp) -> Self {
        Self { gate, stage: Stage::Unread, due, refusals: Refusals::none() }
    }

    /// What is to be sent next.
    pub(super) fn request(&self) -> Request {
        match &self.stage {
            Stage::Unread => Request::Look,
            Stage::Held(version) => {
                Request::Hold(Hold { version: version.clone(), mark: self.gate.mark(true), series: None })
            }
        }
    }

    /// Takes in the answer.
    pub(super) fn answer(&mut self, at: Timestamp, reply: &Reply) -> Released {
        let refused = self.refusals.after(reply);
        match reply {
            Reply::Current(seen) if seen.holder() == Some(self.gate.mark(false)) => {
                self.stage = Stage::Held(seen.version.clone());
                Released::NotYet
            }
            // It was marked before, and the answer was lost.
            Reply::Current(seen) if seen.holder() == Some(self.gate.mark(true)) => Released::Back,
            Reply::Written => Released::Back,
            Reply::Forbidden | Reply::Stuck => {
                (self.stage, self.due) = (Stage::Unread, at + refused);
                Released::NotYet
            }
            Reply::Unavailable(_) => {
                self.stage = Stage::Unread;
                Released::NotYet
            }
            Reply::Current(_) | Reply::Exists | Reply::Missing | Reply::Overtaken | Reply::Refused => Released::NotHeld,
        }
    }
}
