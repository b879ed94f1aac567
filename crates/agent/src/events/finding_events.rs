//! The Events that this agent writes about one finding: one an hour while the finding is open, and one at the end of
//! the finding.

use std::{cmp::Reverse, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::{
    name::HOUR,
    object::{PlannedEvent, name_of_end},
    plan::{Reply, Request, Step, Write},
    spread::Spread,
};
use portreeve_rules::findings::{Key, Severity};

/// The shortest wait after the server refused a request. The wait doubles after each further refusal, up to
/// [`REFUSED`]. A refusal may last only a short time: if a server starts without data, its roles and namespaces are
/// created one after the other.
const REFUSED_ONCE: SignedDuration = SignedDuration::from_secs(20);
pub(super) const REFUSED: SignedDuration = SignedDuration::from_mins(10);

#[derive(Debug)]
pub(super) struct FindingEvents {
    pub(super) severity: Severity,
    event: Arc<PlannedEvent>,
    /// The time at which the finding opened or ended.
    since: Timestamp,
    is_over: bool,
    /// The hour of the last Event on the server about this finding. Any node may have written the Event.
    hour: Option<Timestamp>,
    /// The Event that was sent last. `None` if the server certainly has an Event about the finding.
    maybe: Option<Sent>,
    /// Whether this node may have created the Event `maybe` on the server: the last answer is missing or was lost.
    may_be_own: bool,
    reported: Option<Reported>,
    /// Whether the server refuses every Event about this finding.
    is_refused: bool,
    /// The time of the last failure. `None` after a success.
    failed: Option<Timestamp>,
    refusals: u32,
}

#[derive(Clone, Debug)]
struct Sent {
    event: Arc<PlannedEvent>,
    hour: Timestamp,
    name: String,
}

/// An Event on the server that this node wrote.
#[derive(Debug)]
struct Reported {
    sent: Sent,
    at: Timestamp,
    times: i32,
    /// Whether this node has reported the end of the finding.
    is_over: bool,
}

impl FindingEvents {
    pub(super) fn new(severity: Severity, event: PlannedEvent, at: Timestamp) -> Self {
        Self {
            severity,
            event: Arc::new(event),
            since: at,
            is_over: false,
            hour: None,
            maybe: None,
            may_be_own: true,
            reported: None,
            is_refused: false,
            failed: None,
            refusals: 0,
        }
    }

    pub(super) fn last(&self) -> &PlannedEvent {
        &self.event
    }

    /// Notes that the finding is open. An Event on the server keeps its text. The next Event gets the new text.
    pub(super) fn open(&mut self, severity: Severity, event: PlannedEvent, at: Timestamp) {
        if !self.event.is_same_as(&event) {
            // If the finding ends before the next report, this node reports the end of the earlier Event.
            let (reported, maybe) = (self.reported.take(), self.maybe.take());
            *self = Self { reported, maybe, ..Self::new(severity, event, at) };
            return;
        }
        self.event = Arc::new(event);
        if self.is_over {
            (self.is_over, self.since) = (false, at);
        }
    }

    /// Notes the end of the finding. If no request about the finding was ever sent, returns false.
    pub(super) fn close(&mut self, at: Timestamp) -> bool {
        if !self.is_over {
            (self.is_over, self.since) = (true, at);
        }
        self.hour.is_some() || self.maybe.is_some() || self.reported.is_some()
    }

    /// The time at which the finding ended, and whether the Event about its end is missing. `None` while the finding is
    /// open.
    pub(super) fn over_since(&self) -> Option<(Timestamp, bool)> {
        let is_open = |reported: &Reported| !reported.is_over && reported.at + HOUR > self.since;
        let lacks_end = self.maybe.is_some() || self.reported.as_ref().is_some_and(is_open);
        self.is_over.then_some((self.since, lacks_end))
    }

    pub(super) fn is_done(&self, at: Timestamp) -> bool {
        self.is_over && self.step(at).is_none()
    }

    /// When there are too many findings, the finding with the smallest value is forgotten first.
    pub(super) fn worth(&self, at: Timestamp) -> (bool, bool, Severity, bool) {
        (!self.is_done(at), !self.is_over, self.severity, self.hour.is_some())
    }

    /// The time of the next request. `None` if no request is needed.
    pub(super) fn due(&self, at: Timestamp, spread: Spread) -> Option<Timestamp> {
        let wait = spread.wait(&self.event.node, &self.event.names.incident());
        let (_, due) = self.step(at)?;
        // If the time of a failure is in the future, the clock was set back after the failure.
        let refused = self.failed.filter(|failed| *failed <= at).map(|failed| failed + refused(self.refusals));
        Some((due + wait).max(refused.unwrap_or(at)).max(at))
    }

    /// The order of requests. New findings come first, then ended findings, then the hourly Events of open findings. In
    /// each group, the worst finding comes first. Of equal findings, the finding that has waited longest comes first.
    /// Failed requests come last, and the oldest failure is the first of them.
    pub(super) fn rank(&self, at: Timestamp) -> impl Ord + use<> {
        let step = self.step(at);
        let kind = match step {
            Some((Step::Report, _)) if self.hour.is_none() => 0,
            Some((Step::Read | Step::End | Step::ReportAgain, _)) => 1,
            Some((Step::Report, _)) | None => 2,
        };
        (self.failed, kind, Reverse(self.severity), step.map(|(_, due)| due))
    }

    /// Returns the next request, which then counts as sent.
    pub(super) fn send(&mut self, key: &Key, at: Timestamp) -> Option<Write> {
        let (step, _) = self.step(at)?;
        let (event, name, request) = match (step, &self.maybe, &self.reported) {
            (Step::Report, ..) => {
                let hour = self.event.names.hour(at);
                let sent = Sent { event: Arc::clone(&self.event), hour, name: self.event.names.in_hour(hour) };
                let request = Request::Create(Box::new(sent.event.open(&sent.name, at)));
                let Sent { event, name, .. } = self.maybe.insert(sent);
                (&*event, name.clone(), request)
            }
            (Step::Read, Some(Sent { event, name, .. }), _) => (event, name.clone(), Request::Read),
            (Step::ReportAgain, _, Some(Reported { sent, times, .. })) => {
                (&sent.event, sent.name.clone(), Request::Repeat(times.saturating_add(1), at))
            }
            (Step::End, _, Some(Reported { sent, times: 1, .. })) => {
                let request = Request::Create(Box::new(sent.event.over(&sent.name, at)));
                (&sent.event, name_of_end(&sent.name), request)
            }
            (Step::End, _, Some(Reported { sent, times, .. })) => {
                (&sent.event, name_of_end(&sent.name), Request::Repeat(*times, at))
            }
            (Step::Read | Step::ReportAgain | Step::End, ..) => return None,
        };
        Some(Write { key: key.clone(), step, namespace: event.namespace.clone(), name, request })
    }

    /// Notes the answer to `write`. The finding may have a newer Event now.
    pub(super) fn answer(&mut self, at: Timestamp, write: &Write, reply: Reply) {
        self.count_failures(at, write, &reply);
        match write.step {
            Step::Report => self.answer_report(at, &write.name, &reply),
            Step::Read => self.answer_read(at, &write.name, reply),
            Step::ReportAgain | Step::End => self.answer_again(at, write, &reply),
        }
    }

    /// The next step, and the time at which the step is due. The caller adds the delay of this node.
    fn step(&self, at: Timestamp) -> Option<(Step, Timestamp)> {
        let hour = self.event.names.hour(at);
        // If `since` is in the future, the clock was set back.
        let since = if self.since > at { hour } else { self.since };
        let reported = self.reported.as_ref().filter(|reported| reported.at + HOUR > at);
        if self.is_over {
            let is_open = reported.is_some_and(|reported| !reported.is_over);
            return match self.maybe {
                Some(_) => Some((Step::Read, since)),
                None => is_open.then_some((Step::End, since)),
            };
        }
        if self.is_refused {
            return None;
        }
        if self.hour != Some(hour) {
            return Some((Step::Report, since.max(hour)));
        }
        let is_read = reported.is_some_and(|reported| reported.is_over && reported.sent.event.is_same_as(&self.event));
        Some(if is_read { (Step::ReportAgain, since) } else { (Step::Report, hour + HOUR) })
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

    fn answer_report(&mut self, at: Timestamp, name: &str, reply: &Reply) {
        let Some(sent) = self.maybe.take_if(|sent| sent.name == name) else { return };
        let is_same = sent.event.is_same_as(&self.event);
        match reply {
            Reply::Written | Reply::Exists => {
                if is_same {
                    self.hour = Some(sent.hour);
                }
                // The first node that reports a finding about the cluster also reports the end of the finding. Here,
                // another node was first.
                if is_same && *reply == Reply::Exists && sent.event.names.is_of_cluster() {
                    self.reported = None;
                }
                if *reply == Reply::Written {
                    self.reported = Some(Reported { sent, at, times: 1, is_over: false });
                } else if self.may_be_own {
                    self.maybe = Some(sent);
                }
                self.may_be_own = false;
            }
            Reply::Unavailable(_) => (self.maybe, self.may_be_own) = (Some(sent), true),
            Reply::Refused => self.is_refused |= is_same,
            // The server may have accepted an earlier request about this Event.
            Reply::Forbidden if self.may_be_own => self.maybe = Some(sent),
            Reply::Current(_) | Reply::Missing | Reply::Forbidden | Reply::Stuck => {}
        }
    }

    fn answer_read(&mut self, at: Timestamp, name: &str, reply: Reply) {
        let Some(sent) = self.maybe.take_if(|sent| sent.name == name) else { return };
        match reply {
            Reply::Current(reporter) if reporter.as_ref() == Some(&sent.event.reporter) => {
                self.reported = Some(Reported { sent, at, times: 1, is_over: false });
            }
            // A server that has just started refuses all requests for a moment, because it has not loaded its roles
            // yet.
            Reply::Unavailable(_) | Reply::Forbidden => self.maybe = Some(sent),
            // These answers do not show that this node wrote the Event.
            Reply::Written | Reply::Exists | Reply::Current(_) | Reply::Missing => {}
            Reply::Stuck | Reply::Refused => {}
        }
    }

    fn answer_again(&mut self, at: Timestamp, write: &Write, reply: &Reply) {
        let is_end = write.step == Step::End;
        let is_about = |sent: &Sent| {
            if is_end { write.name == name_of_end(&sent.name) } else { write.name == sent.name }
        };
        let Some(reported) = self.reported.as_mut().filter(|reported| is_about(&reported.sent)) else { return };
        match (reply, &write.request) {
            (Reply::Written, Request::Repeat(times, _)) if !is_end => {
                (reported.times, reported.at, reported.is_over) = (*times, at, false);
            }
            // The Event has expired or was deleted, so the agent creates it again.
            (Reply::Missing, Request::Repeat(..)) if is_end => reported.times = 1,
            // The Event exists: the agent restarted after it wrote the Event, or an answer was lost. The agent
            // increases the count, because the Event may be older than the last report.
            (Reply::Exists, Request::Create(_)) if is_end => reported.times = 2,
            (Reply::Missing, Request::Repeat(..)) => (self.reported, self.hour) = (None, None),
            (Reply::Written | Reply::Exists | Reply::Current(_) | Reply::Refused, _) => reported.is_over = is_end,
            (Reply::Missing | Reply::Forbidden | Reply::Stuck | Reply::Unavailable(_), _) => {}
        }
    }
}

fn refused(times: u32) -> SignedDuration {
    match times.checked_sub(1) {
        Some(before) => (REFUSED_ONCE * 2_i32.pow(before.min(8))).min(REFUSED),
        None => SignedDuration::ZERO,
    }
}
