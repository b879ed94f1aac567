//! The Events of one finding: that it is open and, once it was cleared, that it is over.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::{
    budget::Budget,
    event_state::{EventState, Stage},
    incident::Teller,
    object::PlannedEvent,
    pause::Unanswered,
    release::{Release, Released},
    request::{Reply, Request},
    spread::{Delay, Spread},
    voice::{Stands, Voice},
};
use portreeve_rules::findings::Severity;

/// One finding and its Events.
#[derive(Debug)]
pub(super) struct FindingEvents {
    pub(super) severity: Severity,
    opening: Opening,
    /// The Event of another impact that was written before this one could be.
    former: Option<PlannedEvent>,
    /// The voice that is given back, before anything else is written.
    release: Option<Release>,
    ending: Option<Ending>,
    pub(super) in_flight: Option<InFlight>,
    pub(super) unanswered: Unanswered,
}

/// The Event that says that it is open.
#[derive(Debug)]
enum Opening {
    /// One that this agent writes, or any.
    Single(Box<EventState>),
    /// One of those of an incident.
    Voice(Box<Voice>),
}

/// The request that was sent and not answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) ticket: u64,
    about: About,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Opening,
    Release,
    Ending,
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
        severity: Severity,
        event: PlannedEvent,
        former: Option<&Self>,
        (at, delay): (Timestamp, Delay),
    ) -> Self {
        let release = former.and_then(|former| former.held_gate(at));
        let former = former.and_then(|former| former.last_written().cloned());
        let opening = match event.as_gate() {
            Some(gate) => Opening::Voice(Box::new(Voice::new(event, gate, at, delay))),
            None => Opening::Single(Box::new(EventState::new(event, at, delay))),
        };
        let unanswered = Unanswered::none();
        Self { severity, opening, former, release, ending: None, in_flight: None, unanswered }
    }

    /// Whether this is the Event that says that it is open.
    pub(super) fn is_opened_by(&self, event: &PlannedEvent) -> bool {
        self.opening.event().is_same_as(event)
    }

    /// The finding is open as before, or again. Its words may be others: what the server has stays as it is, what is
    /// created from now on has the new ones.
    pub(super) fn reopen(&mut self, event: PlannedEvent, at: Timestamp) {
        let ending = self.ending.take();
        let about_end = self.in_flight.is_some_and(|request| request.about != About::Opening);
        match &mut self.opening {
            Opening::Voice(voice) => {
                if let Some(gate) = event.as_gate() {
                    voice.reword(event, gate);
                }
                // It may have been given back by now.
                if ending.is_some() {
                    self.release.take_if(|release| release.gate.is_same_as(&voice.gate));
                    voice.open_again(at);
                }
            }
            Opening::Single(opening) => {
                opening.event = event;
                let is_read = ending.is_some_and(|it| it.state.stage != Stage::Unwritten || about_end);
                // Readers of its end have to read that it is open again.
                if is_read && opening.stage != Stage::ByAnotherAgent {
                    opening.due = at;
                }
            }
        }
    }

    /// It has to wait no longer than this, if it was never asked about.
    pub(super) fn hasten(&mut self, at: Timestamp, spread: Spread) {
        let delay = spread.delay(&self.opening.event().node, &self.opening.event().name);
        match &mut self.opening {
            Opening::Single(opening) => opening.hasten(at, delay),
            Opening::Voice(voice) => voice.hasten(at, delay),
        }
    }

    /// The finding is over. False when nothing was written of it, so that nothing is to be written of its end.
    pub(super) fn close(&mut self, at: Timestamp, spread: Spread) -> bool {
        if self.ending.is_some() {
            return true;
        }
        let may_be_told = match &self.opening {
            Opening::Single(_) => self.in_flight.is_some(),
            Opening::Voice(voice) => self.stands_of(voice) >= Stands::Maybe,
        };
        let begun = if may_be_told { Some(self.opening.event()) } else { self.last_written() };
        let begun = begun.cloned();
        if self.release.is_none() {
            self.release = self.held_gate(at);
        }
        if begun.is_none() && self.release.is_none() {
            return false;
        }
        let is_silent = begun.is_none();
        let event = begun.as_ref().unwrap_or(self.opening.event()).resolved();
        // Few hold voices, and one writes what is about the cluster. What else ends everywhere, ends on every node.
        let is_alone = match &self.opening {
            Opening::Single(opening) => {
                opening.event.teller == Teller::AnyAgent && opening.stage != Stage::ByAnotherAgent
            }
            Opening::Voice(_) => true,
        };
        let delay = if is_alone { Delay::default() } else { spread.delay(&event.node, &event.name) };
        let mut state = EventState::new(event, at, delay);
        // Where nothing was told there is no end to tell: only the voice is given back.
        if is_silent {
            state.stage = Stage::Done;
        }
        self.ending = Some(Ending { since: at, state });
        true
    }

    /// Since when it is over, and whether its end was written.
    pub(super) fn ended(&self) -> Option<(Timestamp, bool)> {
        self.ending.as_ref().map(|ending| (ending.since, ending.state.stage == Stage::Done))
    }

    /// Whether anything was written, or may be at this moment.
    pub(super) fn has_begun(&self) -> bool {
        let written = match &self.opening {
            Opening::Single(opening) => !matches!(opening.stage, Stage::Unwritten | Stage::Done),
            Opening::Voice(voice) => voice.stands(false) >= Stands::Maybe,
        };
        written || self.former.is_some() || self.release.is_some() || self.in_flight.is_some()
    }

    /// The object whose budget it spends.
    pub(super) fn object(&self) -> &str {
        &self.opening.event().object
    }

    /// From when on a request can be made: `at`, or later; nothing while one is on its way, or if none is needed.
    pub(super) fn ready(&self, at: Timestamp, budget: &Budget) -> Option<Timestamp> {
        if self.in_flight.is_some() {
            return None;
        }
        let due = self.due(at)?;
        let written = |state: &EventState| {
            if matches!(state.stage, Stage::Found | Stage::Read(_)) { at } else { budget.ready(self.object(), at) }
        };
        let budgeted = match (&self.release, &self.ending, &self.opening) {
            (Some(_), ..) => budget.ready_to_look(at),
            (None, Some(ending), _) => written(&ending.state),
            (None, None, Opening::Single(state)) => written(state),
            (None, None, Opening::Voice(voice)) if voice.is_light() => budget.ready_to_look(at),
            (None, None, Opening::Voice(_)) => budget.ready(self.object(), at),
        };
        Some(due.max(budgeted).max(self.unanswered.end(at)))
    }

    /// The next request, which is on its way from now on, and the Event it is about.
    pub(super) fn send(&mut self, ticket: u64, at: Timestamp) -> (&PlannedEvent, Request) {
        let about = match (&self.release, &self.ending) {
            (Some(_), _) => About::Release,
            (None, Some(_)) => About::Ending,
            (None, None) => About::Opening,
        };
        self.in_flight = Some(InFlight { ticket, about });
        match (&self.release, &self.ending, &self.opening) {
            (Some(release), ..) => (&release.gate, release.request()),
            (None, Some(Ending { state, .. }), _) => (&state.event, state.request(at)),
            (None, None, Opening::Single(state)) => (state.target(), state.request(at)),
            (None, None, Opening::Voice(voice)) => voice.request(at),
        }
    }

    /// Takes in the answer to the request on its way.
    pub(super) fn answer(&mut self, at: Timestamp, request: &Request, reply: Reply) {
        match self.in_flight.take().map(|request| request.about) {
            Some(About::Opening) => match &mut self.opening {
                Opening::Single(opening) => opening.answer_opening(at, request, reply),
                Opening::Voice(voice) => voice.answer(at, request, reply),
            },
            Some(About::Release) => self.answer_release(at, &reply),
            Some(About::Ending) => {
                if let Some(Ending { since, state }) = &mut self.ending {
                    // Another agent that writes the beginning writes the end too.
                    let alone = state.event.teller != Teller::AnyAgent
                        || !matches!(&self.opening, Opening::Single(it) if it.stage == Stage::ByAnotherAgent);
                    state.answer_ending(at, request, reply, (*since, alone));
                }
            }
            None => {}
        }
    }

    /// What was not answered before comes last. What is new before what is over, that before what is repeated; the worst first,
    /// then what waits longest.
    pub(super) fn rank(&self, at: Timestamp) -> (u32, u8, Reverse<Severity>, Option<Timestamp>) {
        let kind = match &self.opening {
            _ if self.ending.is_some() || self.release.is_some() => 1,
            Opening::Single(opening) if matches!(opening.stage, Stage::Unwritten | Stage::Found | Stage::Read(_)) => 0,
            Opening::Voice(voice) if voice.is_new() => 0,
            Opening::Single(_) | Opening::Voice(_) => 2,
        };
        (self.unanswered.times, kind, Reverse(self.severity), self.due(at))
    }

    /// What it would be a loss to forget, least first.
    pub(super) fn worth(&self) -> (bool, Severity, bool) {
        let is_written = match &self.opening {
            Opening::Single(opening) => opening.stage != Stage::Unwritten,
            Opening::Voice(voice) => voice.is_told(),
        };
        (self.ending.is_none(), self.severity, is_written)
    }

    /// What is to be done next, and from when on; nothing if it is all done.
    fn due(&self, at: Timestamp) -> Option<Timestamp> {
        match (&self.release, &self.ending, &self.opening) {
            (Some(release), ..) => Some(release.due.max(at)),
            (None, Some(ending), _) => (ending.state.stage != Stage::Done).then(|| ending.state.due(at)),
            (None, None, Opening::Single(opening)) => (opening.stage != Stage::Done).then(|| opening.due(at)),
            (None, None, Opening::Voice(voice)) => (!voice.is_done()).then(|| voice.due(at)),
        }
    }

    fn answer_release(&mut self, at: Timestamp, reply: &Reply) {
        let Some(release) = &mut self.release else { return };
        let released = release.answer(at, reply);
        if released == Released::NotYet {
            return;
        }
        self.release = None;
        // Whether anything was written was not known for sure until now.
        let is_told = matches!(&self.opening, Opening::Voice(voice) if voice.is_told());
        if let Some(ending) = &mut self.ending
            && released == Released::NotHeld
            && !is_told
            && self.former.is_none()
        {
            ending.state.stage = Stage::Done;
        }
    }

    /// The voice that is held and has to be given back, where there is one.
    fn held_gate(&self, at: Timestamp) -> Option<Release> {
        let gate = match &self.opening {
            Opening::Voice(voice) if self.stands_of(voice) >= Stands::Voice && self.ending.is_none() => {
                Some(&voice.gate)
            }
            _ => self.release.as_ref().map(|release| &release.gate),
        };
        gate.map(|gate| Release::new(gate.clone(), at))
    }

    fn stands_of(&self, voice: &Voice) -> Stands {
        voice.stands(self.in_flight.is_some_and(|request| request.about == About::Opening))
    }

    /// The Event that says that it began, if there is one on the server and none yet that it is over.
    fn last_written(&self) -> Option<&PlannedEvent> {
        if self.ending.is_some() {
            return None;
        }
        let is_written = match &self.opening {
            Opening::Single(opening) => !matches!(opening.stage, Stage::Unwritten | Stage::Done),
            Opening::Voice(voice) => voice.is_told(),
        };
        if is_written { Some(self.opening.event()) } else { self.former.as_ref() }
    }
}

impl Opening {
    fn event(&self) -> &PlannedEvent {
        match self {
            Self::Single(opening) => &opening.event,
            Self::Voice(voice) => &voice.event,
        }
    }
}
