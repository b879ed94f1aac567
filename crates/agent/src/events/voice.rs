//! One voice of an incident, as one agent knows it: who holds it, and what this agent does about that.
//!
//! Every turn begins with a look at the gate, the Event whose name all nodes of the voice share. What this agent does goes by
//! what is written there, and it writes only if nobody has written since.

use jiff::{SignedDuration, Timestamp};

use super::{
    event_state::{EventState, Refusals, Stage as OwnStage, furthest, wait},
    incident::Mark,
    object::PlannedEvent,
    request::{Hold, Reply, Request, Seen, Series},
    spread::{Delay, part},
};

/// Who found that nobody holds a voice any more looks once more after so long, and up to as long again: the holder may be about
/// to write a new gate, or everybody about to be repaired.
const LEFT: SignedDuration = SignedDuration::from_mins(2);
/// Who finds that another node held a voice waits so long, and up to a quarter more, whether that node is hit again: what comes and
/// goes is told by the same few.
const ANOTHER: SignedDuration = SignedDuration::from_secs(20);
/// Who lost a race for the gate looks after so long, and up to as long again, who won.
const RACE: SignedDuration = SignedDuration::from_secs(5);
/// A gate that names another node expires an hour after it was marked. From then on its holder looks so often whether it
/// has gone, to write one that names itself.
const LIFETIME: SignedDuration = SignedDuration::from_mins(60);
const OFTEN: SignedDuration = SignedDuration::from_mins(1);
/// A gate of which its holder has told nothing for so long has none, where the server keeps Events for longer than an hour.
const DESERTED: SignedDuration = SignedDuration::from_hours(2);

/// A voice and what this agent knows of it.
#[derive(Debug)]
pub(super) struct Voice {
    /// The Event of this node alone, which it writes beside the gate of another.
    pub(super) event: PlannedEvent,
    pub(super) gate: PlannedEvent,
    stage: Stage,
    due: Timestamp,
    refusals: Refusals,
    /// How long it leaves the voice alone that another one has, at least.
    again: SignedDuration,
    stands: Stands,
    /// Whether it has to be told again at once: somebody has read that it is over.
    anew: bool,
}

/// What stands on the server of this node; each with all before it possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stands {
    Nothing,
    /// That it holds the voice, maybe.
    Voice,
    /// An Event that says that it is open here, maybe.
    Maybe,
    /// The gate, as an Event of this node.
    Gate,
    /// Its own Event, beside the gate of another.
    Own,
}

#[derive(Debug)]
enum Stage {
    /// Nothing is known.
    Unknown,
    /// This agent has written, or another one has at the same time.
    Unsure,
    /// There is no gate: it can be created.
    Empty,
    /// Another node holds it.
    Taken,
    /// Another node held it, and it is over there, or its gate has gone.
    Left,
    /// It can be had, or told again, in this version of the gate; with a series if the gate names this node.
    Ready { version: String, series: Option<Series> },
    /// Held, and the gate names this node.
    Told,
    /// Held, and the gate names another node, which is why this one has an Event of its own.
    Beside { own: Box<EventState>, look: Timestamp, is_checked: bool },
    /// Nothing is to be done any more.
    Done,
}

impl Voice {
    pub(super) fn new(event: PlannedEvent, gate: PlannedEvent, at: Timestamp, delay: Delay) -> Self {
        let due = at + delay.own;
        let (refusals, stage) = (Refusals::none(), Stage::Unknown);
        Self { event, gate, stage, due, refusals, again: delay.again, stands: Stands::Nothing, anew: false }
    }

    /// It has to wait no longer than this, if it was never asked about.
    pub(super) fn hasten(&mut self, at: Timestamp, delay: Delay) {
        self.again = delay.again;
        if matches!(self.stage, Stage::Unknown) {
            self.due = self.due.min(at + delay.own);
        }
    }

    /// Whether there is an Event of this node that says that it is open.
    pub(super) fn is_told(&self) -> bool {
        self.stands >= Stands::Gate
    }

    /// What stands on the server, with the request that is on its way.
    pub(super) fn stands(&self, in_flight: bool) -> Stands {
        let at_most = if in_flight { self.would_stand() } else { Stands::Nothing };
        self.stands.max(at_most)
    }

    /// What may stand on the server once the next request is done.
    fn would_stand(&self) -> Stands {
        match &self.stage {
            Stage::Empty | Stage::Ready { series: Some(_), .. } => Stands::Maybe,
            Stage::Beside { is_checked: true, .. } => Stands::Maybe,
            Stage::Ready { series: None, .. } => Stands::Voice,
            Stage::Unknown | Stage::Unsure | Stage::Taken | Stage::Left => Stands::Nothing,
            Stage::Told | Stage::Beside { .. } | Stage::Done => Stands::Nothing,
        }
    }

    /// Whether nobody has told yet, as far as is known.
    pub(super) fn is_new(&self) -> bool {
        !self.is_told() && matches!(self.stage, Stage::Unknown | Stage::Unsure | Stage::Empty | Stage::Ready { .. })
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// The words may be others: what is created from now on has the new ones.
    pub(super) fn reword(&mut self, event: PlannedEvent, gate: PlannedEvent) {
        if let Stage::Beside { own, .. } = &mut self.stage {
            own.event = event.clone();
        }
        (self.event, self.gate) = (event, gate);
    }

    /// It is open again, after its end may have been read.
    pub(super) fn open_again(&mut self, at: Timestamp) {
        // What was on its way may be done.
        (self.stands, self.anew) = (self.stands(true), true);
        self.go(Stage::Unsure, at);
    }

    /// When something is to be done: `at`, or later.
    pub(super) fn due(&self, at: Timestamp) -> Timestamp {
        let due = match &self.stage {
            Stage::Beside { own, is_checked: true, .. } => own.due(at),
            Stage::Beside { own, look, .. } => own.due(at).min(*look).max(self.due),
            _ => self.due,
        };
        if due > furthest(at) { at } else { due.max(at) }
    }

    /// Whether what is sent next only reads, or writes nothing but who holds the voice.
    pub(super) fn is_light(&self) -> bool {
        match &self.stage {
            Stage::Empty => false,
            Stage::Ready { series, .. } => series.is_none(),
            Stage::Beside { own, is_checked: true, .. } => matches!(own.stage, OwnStage::Found | OwnStage::Read(_)),
            Stage::Unknown | Stage::Unsure | Stage::Taken | Stage::Left => true,
            Stage::Told | Stage::Beside { .. } | Stage::Done => true,
        }
    }

    /// What is to be sent next, and about which Event.
    pub(super) fn request(&self, at: Timestamp) -> (&PlannedEvent, Request) {
        let request = match &self.stage {
            Stage::Unknown => Request::Find,
            Stage::Empty => Request::Create(Box::new(self.gate.at(at))),
            Stage::Ready { version, series } => {
                Request::Hold(Hold { version: version.clone(), mark: self.event.mark(false), series: *series })
            }
            Stage::Beside { own, is_checked: true, .. } => return (own.target(), own.request(at)),
            Stage::Unsure | Stage::Taken | Stage::Left | Stage::Told | Stage::Beside { .. } | Stage::Done => {
                Request::Look
            }
        };
        (&self.gate, request)
    }

    /// Takes in the answer to a request.
    pub(super) fn answer(&mut self, at: Timestamp, request: &Request, reply: Reply) {
        if let Stage::Beside { is_checked: true, .. } = self.stage {
            return self.answer_beside(at, request, reply);
        }
        let refused = self.refusals.after(&reply);
        match (reply, request) {
            (Reply::Current(seen), _) => self.read(at, seen),
            (Reply::Written, Request::Hold(Hold { series: None, .. })) => {
                // An Event of its own that is there already is from before, and over.
                self.anew = true;
                self.stand_beside(at);
            }
            (Reply::Written, Request::Hold(Hold { series: Some(series), .. })) => self.tell(at, *series),
            (Reply::Written, _) => self.tell(at, Series { count: 1, last: at }),
            (Reply::Exists, _) => self.go(Stage::Unsure, at + self.apart(RACE)),
            (Reply::Overtaken, _) => self.go(Stage::Taken, at + self.apart(self.again)),
            (Reply::Missing, Request::Find | Request::Look | Request::Repeat(_) | Request::Hold(_)) => {
                match self.stage {
                    Stage::Taken => self.go(Stage::Left, at + self.apart(LEFT)),
                    _ => self.go(Stage::Empty, at),
                }
            }
            (Reply::Missing | Reply::Forbidden | Reply::Stuck, _) => self.due = at + refused,
            (Reply::Refused, _) => self.stage = Stage::Done,
            (Reply::Unavailable(_), Request::Create(_) | Request::Hold(_)) => {
                // It may be done. What is true is read first.
                let takes_only = matches!(request, Request::Hold(Hold { series: None, .. }));
                let may_stand = if takes_only { Stands::Voice } else { Stands::Maybe };
                (self.stands, self.stage) = (self.stands.max(may_stand), Stage::Unsure);
                self.anew |= takes_only;
            }
            (Reply::Unavailable(_), _) => {}
        }
    }

    /// Takes in the answer about the Event beside the gate.
    fn answer_beside(&mut self, at: Timestamp, request: &Request, reply: Reply) {
        let would_stand = self.would_stand();
        let Stage::Beside { own, is_checked, .. } = &mut self.stage else { return };
        match reply {
            Reply::Written | Reply::Exists => self.stands = Stands::Own,
            Reply::Unavailable(_) => self.stands = self.stands.max(would_stand),
            _ => {}
        }
        self.anew &= reply != Reply::Written;
        let follows = matches!(reply, Reply::Missing | Reply::Exists) && !matches!(own.stage, OwnStage::Read(_));
        own.answer_opening(at, request, reply);
        // The next step follows at once; after anything else the gate is read first.
        *is_checked = follows || matches!(own.stage, OwnStage::Read(_));
        if own.stage == OwnStage::Done {
            self.stage = Stage::Done;
        } else if self.anew && matches!(own.stage, OwnStage::Written(_)) {
            (own.due, *is_checked) = (at, true);
        }
    }

    /// Goes by what the gate says.
    fn read(&mut self, at: Timestamp, seen: Seen) {
        let names_this = seen.node.as_ref() == Some(&self.event.node);
        // A holder that the gate names tells again every hour. One that does not any more has gone without an end.
        let is_old = |mark: &Mark| Some(&mark.node) == seen.node.as_ref() && seen.series.last.min(at) + DESERTED <= at;
        let (is_held, is_over) = match seen.holder() {
            Some(mark) => (mark == self.event.mark(false), mark.over || is_old(&mark)),
            None => (false, false),
        };
        // What may be of the gate is known now. Of an own Event the gate says nothing.
        if self.stands < Stands::Gate && !matches!(self.stage, Stage::Beside { .. }) {
            self.stands = Stands::Nothing;
        }
        // A gate that named this node has expired.
        if self.stands == Stands::Gate && !names_this {
            self.stands = Stands::Nothing;
        }
        let is_own = names_this || seen.holder().is_some_and(|mark| mark.node == self.event.node);
        if is_over && matches!(self.stage, Stage::Unknown) && !is_own {
            let more = part(ANOTHER / 4, &["another", &self.event.node, &self.gate.name]);
            return self.go(Stage::Left, at + ANOTHER + more);
        }
        if is_over && matches!(self.stage, Stage::Taken) {
            return self.go(Stage::Left, at + self.apart(LEFT));
        }
        if is_over {
            let series = names_this.then(|| seen.series.repeated(at));
            return self.go(Stage::Ready { version: seen.version, series }, at);
        }
        if !is_held {
            if self.stands == Stands::Gate {
                self.stands = Stands::Nothing;
            }
            return self.go(Stage::Taken, at + self.apart(self.again));
        }
        if !names_this {
            return self.stand_beside(at);
        }
        self.stands = self.stands.max(Stands::Gate);
        let due = seen.series.last.min(at) + wait(seen.series.count);
        if self.anew || due <= at {
            self.go(Stage::Ready { version: seen.version, series: Some(seen.series.repeated(at)) }, at);
        } else {
            self.go(Stage::Told, due);
        }
    }

    /// The gate is this node's Event.
    fn tell(&mut self, at: Timestamp, series: Series) {
        (self.stands, self.anew) = (Stands::Gate, false);
        self.go(Stage::Told, at + wait(series.count));
    }

    /// The gate was read, or written, and this node holds it, while it names another.
    fn stand_beside(&mut self, at: Timestamp) {
        self.stands = self.stands.max(Stands::Voice);
        if let Stage::Beside { own, look, is_checked } = &mut self.stage {
            (*is_checked, *look) = (own.due(at) <= at, (*look).max(at + OFTEN));
            return;
        }
        let own = Box::new(EventState::new(self.event.clone(), at, Delay::default()));
        self.go(Stage::Beside { own, look: at + LIFETIME, is_checked: true }, at);
    }

    fn go(&mut self, stage: Stage, due: Timestamp) {
        (self.stage, self.due) = (stage, due);
    }

    /// From so long to twice as long, another time on each node.
    fn apart(&self, least: SignedDuration) -> SignedDuration {
        least + part(least, &["again", &self.event.node, &self.gate.name])
    }
}
