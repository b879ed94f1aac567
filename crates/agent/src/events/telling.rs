//! What this agent tells of one finding: that it is open, once an hour, and that it is over.

use std::{cmp::Reverse, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::{
    name::HOUR,
    object::{PlannedEvent, name_of_end},
    request::{Reply, Request, Step, Write},
    spread::Spread,
};
use portreeve_rules::findings::{Key, Severity};

/// The waits after refusals in a row that may be lifted double from the first to the second. A server that has just come
/// back empty gets its roles and its namespaces one after the other.
const REFUSED_ONCE: SignedDuration = SignedDuration::from_secs(20);
pub(super) const REFUSED: SignedDuration = SignedDuration::from_mins(10);

/// One finding, and what the server has of it.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) severity: Severity,
    event: Arc<PlannedEvent>,
    /// Since when it is open, or over.
    since: Timestamp,
    is_over: bool,
    /// The hour of which the server has an Event, from whichever node.
    hour: Option<Timestamp>,
    /// What was sent last, unless it is known to be there from this node or from another.
    maybe: Option<Sent>,
    /// Whether one that is there may be from this node: nothing was answered yet, or the last answer was lost.
    may_be_own: bool,
    told: Option<Told>,
    /// The server will never take it.
    is_refused: bool,
    /// When a request about it failed last, unless one has succeeded since.
    failed: Option<Timestamp>,
    /// Refusals in a row.
    refusals: u32,
}

/// An Event that was sent, of one hour.
#[derive(Clone, Debug)]
struct Sent {
    event: Arc<PlannedEvent>,
    hour: Timestamp,
    name: String,
}

/// An Event of this node that the server has.
#[derive(Debug)]
struct Told {
    sent: Sent,
    at: Timestamp,
    /// How often it was told.
    times: i32,
    /// Whether it was told as often that it is over.
    is_over: bool,
}

impl Telling {
    /// Of a finding that is open from now on.
    pub(super) fn new(severity: Severity, event: PlannedEvent, at: Timestamp) -> Self {
        Self {
            severity,
            event: Arc::new(event),
            since: at,
            is_over: false,
            hour: None,
            maybe: None,
            may_be_own: true,
            told: None,
            is_refused: false,
            failed: None,
            refusals: 0,
        }
    }

    /// It is open, as before or again. Its words may be others: what the server has stays as it is, what is created from now
    /// on has the new ones.
    pub(super) fn open(&mut self, severity: Severity, event: PlannedEvent, at: Timestamp) {
        if !self.event.is_same_as(&event) {
            // What was told of it before stays to be ended, until this one is told.
            let (told, maybe) = (self.told.take(), self.maybe.take());
            *self = Self { told, maybe, ..Self::new(severity, event, at) };
            return;
        }
        self.event = Arc::new(event);
        if self.is_over {
            (self.is_over, self.since) = (false, at);
        }
    }

    /// It is over. False if the server was never asked about it, so that there is nothing to remember.
    pub(super) fn close(&mut self, at: Timestamp) -> bool {
        if !self.is_over {
            (self.is_over, self.since) = (true, at);
        }
        self.hour.is_some() || self.maybe.is_some() || self.told.is_some()
    }

    /// Since when it is over, and whether somebody has read that it is open and never that it is over.
    pub(super) fn over_since(&self) -> Option<(Timestamp, bool)> {
        let lacks_end = |told: &Told| !told.is_over && told.at + HOUR > self.since;
        let is_untold = self.maybe.is_some() || self.told.as_ref().is_some_and(lacks_end);
        self.is_over.then_some((self.since, is_untold))
    }

    /// Whether nothing is to be told of it any more.
    pub(super) fn is_done(&self, at: Timestamp) -> bool {
        self.is_over && self.step(at).is_none()
    }

    /// What it would be a loss to forget, least first.
    pub(super) fn worth(&self, at: Timestamp) -> (bool, bool, Severity, bool) {
        (!self.is_done(at), !self.is_over, self.severity, self.hour.is_some())
    }

    /// When the next request is due; nothing if none is needed.
    pub(super) fn due(&self, at: Timestamp, spread: Spread) -> Option<Timestamp> {
        let wait = spread.wait(&self.event.node, &self.event.names.incident());
        let (_, due) = self.step(at)?;
        // A failure in the future was before the clock was set back.
        let refused = self.failed.filter(|failed| *failed <= at).map(|failed| failed + refused(self.refusals));
        Some((due + wait).max(refused.unwrap_or(at)).max(at))
    }

    /// What has failed comes last, the longest ago of that first. What is new before what is over, that before what is told in the
    /// next hour; the worst first, then what waits longest.
    pub(super) fn rank(&self, at: Timestamp) -> impl Ord + use<> {
        let step = self.step(at);
        let kind = match step {
            Some((Step::Tell, _)) if self.hour.is_none() => 0,
            Some((Step::Look | Step::End | Step::TellAgain, _)) => 1,
            Some((Step::Tell, _)) | None => 2,
        };
        (self.failed, kind, Reverse(self.severity), step.map(|(_, due)| due))
    }

    /// The next request, which is on its way from now on.
    pub(super) fn send(&mut self, key: &Key, at: Timestamp) -> Option<Write> {
        let (step, _) = self.step(at)?;
        let (event, name, request) = match (step, &self.maybe, &self.told) {
            (Step::Tell, ..) => {
                let hour = self.event.names.hour(at);
                let sent = Sent { event: Arc::clone(&self.event), hour, name: self.event.names.in_hour(hour) };
                let request = Request::Create(Box::new(sent.event.open(&sent.name, at)));
                let Sent { event, name, .. } = self.maybe.insert(sent);
                (&*event, name.clone(), request)
            }
            (Step::Look, Some(Sent { event, name, .. }), _) => (event, name.clone(), Request::Read),
            (Step::TellAgain, _, Some(Told { sent, times, .. })) => {
                (&sent.event, sent.name.clone(), Request::Repeat(times.saturating_add(1), at))
            }
            (Step::End, _, Some(Told { sent, times: 1, .. })) => {
                let request = Request::Create(Box::new(sent.event.over(&sent.name, at)));
                (&sent.event, name_of_end(&sent.name), request)
            }
            (Step::End, _, Some(Told { sent, times, .. })) => {
                (&sent.event, name_of_end(&sent.name), Request::Repeat(*times, at))
            }
            (Step::Look | Step::TellAgain | Step::End, ..) => return None,
        };
        Some(Write { key: key.clone(), step, namespace: event.namespace.clone(), name, request })
    }

    /// Takes in the answer. What it is about may have been replaced meanwhile.
    pub(super) fn answer(&mut self, at: Timestamp, write: &Write, reply: Reply) {
        self.count_failures(at, write, &reply);
        match write.step {
            Step::Tell => self.answer_tell(at, &write.name, &reply),
            Step::Look => self.answer_look(at, &write.name, reply),
            Step::TellAgain | Step::End => self.answer_again(at, write, &reply),
        }
    }

    /// What is to be done next, and from when on but for the wait of this node.
    fn step(&self, at: Timestamp) -> Option<(Step, Timestamp)> {
        let hour = self.event.names.hour(at);
        // In the future, it was before the clock was set back.
        let since = if self.since > at { hour } else { self.since };
        let told = self.told.as_ref().filter(|told| told.at + HOUR > at);
        if self.is_over {
            let is_open = told.is_some_and(|told| !told.is_over);
            return match self.maybe {
                Some(_) => Some((Step::Look, since)),
                None => is_open.then_some((Step::End, since)),
            };
        }
        if self.is_refused {
            return None;
        }
        if self.hour != Some(hour) {
            return Some((Step::Tell, since.max(hour)));
        }
        let is_read = told.is_some_and(|told| told.is_over && told.sent.event.is_same_as(&self.event));
        Some(if is_read { (Step::TellAgain, since) } else { (Step::Tell, hour + HOUR) })
    }

    fn count_failures(&mut self, at: Timestamp, write: &Write, reply: &Reply) {
        let is_first = matches!(write.request, Request::Create(_));
        self.refusals = match reply {
            Reply::Forbidden | Reply::Stuck => self.refusals.saturating_add(1),
            Reply::Missing if is_first => self.refusals.saturating_add(1),
            Reply::Unavailable(_) => self.refusals,
            Reply::Written | Reply::Exists | Reply::Current(_) | Reply::Missing | Reply::Refused => 0,
        };
        let is_failure = self.refusals > 0 || matches!(reply, Reply::Unavailable(_));
        self.failed = is_failure.then_some(at);
    }

    fn answer_tell(&mut self, at: Timestamp, name: &str, reply: &Reply) {
        let Some(sent) = self.maybe.take_if(|sent| sent.name == name) else { return };
        let is_same = sent.event.is_same_as(&self.event);
        match reply {
            Reply::Written | Reply::Exists => {
                if is_same {
                    self.hour = Some(sent.hour);
                }
                // Another node has told it of the cluster, and says when it is over.
                if is_same && *reply == Reply::Exists && sent.event.names.is_of_cluster() {
                    self.told = None;
                }
                if *reply == Reply::Written {
                    self.told = Some(Told { sent, at, times: 1, is_over: false });
                } else if self.may_be_own {
                    self.maybe = Some(sent);
                }
                self.may_be_own = false;
            }
            Reply::Unavailable(_) => (self.maybe, self.may_be_own) = (Some(sent), true),
            Reply::Refused => self.is_refused |= is_same,
            Reply::Current(_) | Reply::Missing | Reply::Forbidden | Reply::Stuck => {}
        }
    }

    fn answer_look(&mut self, at: Timestamp, name: &str, reply: Reply) {
        let Some(sent) = self.maybe.take_if(|sent| sent.name == name) else { return };
        match reply {
            Reply::Current(reporter) if reporter.as_ref() == Some(&sent.event.reporter) => {
                self.told = Some(Told { sent, at, times: 1, is_over: false });
            }
            Reply::Unavailable(_) => self.maybe = Some(sent),
            // Whoever told, nothing can be said of this one.
            Reply::Written | Reply::Exists | Reply::Current(_) | Reply::Missing => {}
            Reply::Forbidden | Reply::Stuck | Reply::Refused => {}
        }
    }

    fn answer_again(&mut self, at: Timestamp, write: &Write, reply: &Reply) {
        let is_end = write.step == Step::End;
        let is_about = |sent: &Sent| {
            if is_end { write.name == name_of_end(&sent.name) } else { write.name == sent.name }
        };
        let Some(told) = self.told.as_mut().filter(|told| is_about(&told.sent)) else { return };
        match (reply, &write.request) {
            (Reply::Written, Request::Repeat(times, _)) if !is_end => {
                (told.times, told.at, told.is_over) = (*times, at, false);
            }
            // It has expired, or somebody has deleted it: it is created anew.
            (Reply::Missing, Request::Repeat(..)) if is_end => told.times = 1,
            // From before a restart, or the answer was lost: it may be older than what was told since, and is counted up.
            (Reply::Exists, Request::Create(_)) if is_end => told.times = 2,
            (Reply::Missing, Request::Repeat(..)) => (self.told, self.hour) = (None, None),
            (Reply::Written | Reply::Exists | Reply::Current(_) | Reply::Refused, _) => told.is_over = is_end,
            (Reply::Missing | Reply::Forbidden | Reply::Stuck | Reply::Unavailable(_), _) => {}
        }
    }
}

/// The wait after so many refusals in a row.
fn refused(times: u32) -> SignedDuration {
    match times.checked_sub(1) {
        Some(before) => (REFUSED_ONCE * 2_i32.pow(before.min(8))).min(REFUSED),
        None => SignedDuration::ZERO,
    }
}
