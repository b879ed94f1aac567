//! The Events of one finding: that it is open and, once it was cleared, that it is over.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::{
    budget::Budget,
    event_state::{EventState, Stage},
    object::PlannedEvent,
    request::{Reply, Request},
};
use crate::findings::{Scope, Severity};

/// One finding and its Events.
#[derive(Debug)]
pub(super) struct FindingEvents {
    pub(super) severity: Severity,
    scope: Scope,
    opening: EventState,
    /// The Event of another impact that was written before this one could be.
    former: Option<PlannedEvent>,
    ending: Option<Ending>,
    pub(super) in_flight: Option<InFlight>,
}

/// The request that was sent and not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) ticket: u64,
    about_ending: bool,
}

/// That a finding is over.
#[derive(Debug)]
struct Ending {
    since: Timestamp,
    state: EventState,
}

impl FindingEvents {
    /// Of a finding that is open from now on, instead of what was written of it before.
    pub(super) fn new(
        (severity, scope): (Severity, Scope),
        event: PlannedEvent,
        former: Option<&Self>,
        at: Timestamp,
    ) -> Self {
        let former = former.and_then(|former| former.last_written().cloned());
        Self { severity, scope, opening: EventState::new(event, at), former, ending: None, in_flight: None }
    }

    /// Whether this is the Event that says that it is open.
    pub(super) fn is_opened_by(&self, event: &PlannedEvent) -> bool {
        self.opening.event.is_same_as(event)
    }

    /// The finding is open as before, or again. Its words may be others: what the server has stays as it is, what is
    /// created from now on has the new ones.
    pub(super) fn reopen(&mut self, event: PlannedEvent, at: Timestamp) {
        self.opening.event = event;
        let Some(ending) = self.ending.take() else { return };
        let sent = self.in_flight.is_some_and(|request| request.about_ending);
        let unwritten = ending.state.stage == Stage::Unwritten && !sent;
        // Readers of its end have to read that it is open again.
        if !unwritten && self.opening.stage != Stage::ByAnotherAgent {
            self.opening.due = at;
        }
    }

    /// The finding is over. False when nothing was written of it, so that nothing is to be written of its end.
    pub(super) fn close(&mut self, at: Timestamp) -> bool {
        if self.ending.is_some() {
            return true;
        }
        let begun = if self.in_flight.is_some() { Some(&self.opening.event) } else { self.last_written() };
        let Some(event) = begun.map(PlannedEvent::resolved) else { return false };
        self.ending = Some(Ending { since: at, state: EventState::new(event, at) });
        true
    }

    /// Since when it is over, and whether its end was written.
    pub(super) fn ended(&self) -> Option<(Timestamp, bool)> {
        self.ending.as_ref().map(|ending| (ending.since, ending.state.stage == Stage::Done))
    }

    /// Whether anything was written, or may be at this moment.
    pub(super) fn has_begun(&self) -> bool {
        let unwritten = matches!(self.opening.stage, Stage::Unwritten | Stage::Done);
        !unwritten || self.former.is_some() || self.in_flight.is_some()
    }

    /// The Event about which something is to be done.
    pub(super) fn current(&self) -> &EventState {
        self.ending.as_ref().map_or(&self.opening, |ending| &ending.state)
    }

    /// The object whose budget it spends.
    pub(super) fn object(&self) -> &str {
        &self.opening.event.object
    }

    /// From when on a request can be made: `at`, or later; nothing while one is on its way, or if none is needed.
    pub(super) fn ready(&self, at: Timestamp, budget: &Budget) -> Option<Timestamp> {
        let state = self.current();
        if self.in_flight.is_some() || state.stage == Stage::Done {
            return None;
        }
        let due = state.due(at);
        Some(if state.stage == Stage::Found { due } else { due.max(budget.ready(self.object(), at)) })
    }

    /// The next request, which is on its way from now on.
    pub(super) fn send(&mut self, ticket: u64, at: Timestamp) -> Request {
        self.in_flight = Some(InFlight { ticket, about_ending: self.ending.is_some() });
        self.current().request(at)
    }

    /// Takes in the answer to the request on its way.
    pub(super) fn answer(&mut self, at: Timestamp, request: &Request, reply: Reply) {
        match (self.in_flight.take(), &mut self.ending) {
            (Some(InFlight { about_ending: true, .. }), Some(Ending { since, state })) => {
                // Another agent that writes the beginning writes the end too.
                let alone = self.scope == Scope::Node || self.opening.stage != Stage::ByAnotherAgent;
                state.answer_ending(at, request, reply, (*since, alone));
            }
            (Some(InFlight { about_ending: false, .. }), _) => {
                self.opening.answer_opening(at, request, reply, self.scope);
            }
            (Some(InFlight { about_ending: true, .. }), None) | (None, _) => {}
        }
    }

    /// What is new before what is over, that before what is repeated; the worst first, then what waits longest.
    pub(super) fn rank(&self) -> (u8, Reverse<Severity>, Timestamp) {
        let kind = match (&self.ending, self.opening.stage) {
            (None, Stage::Unwritten | Stage::Found) => 0,
            (Some(_), _) => 1,
            (None, Stage::Written(_) | Stage::ByAnotherAgent | Stage::Done) => 2,
        };
        (kind, Reverse(self.severity), self.current().due)
    }

    /// What it would be a loss to forget, least first.
    pub(super) fn worth(&self) -> (bool, Severity, bool) {
        (self.ending.is_none(), self.severity, self.opening.stage != Stage::Unwritten)
    }

    /// The Event that says that it began, if there is one on the server and none yet that it is over.
    fn last_written(&self) -> Option<&PlannedEvent> {
        match self.opening.stage {
            _ if self.ending.is_some() => None,
            Stage::Unwritten | Stage::Done => self.former.as_ref(),
            Stage::Found | Stage::Written(_) | Stage::ByAnotherAgent => Some(&self.opening.event),
        }
    }
}
