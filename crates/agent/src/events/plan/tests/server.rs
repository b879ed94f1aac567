//! A fake API server that knows only Events.

use std::collections::BTreeMap;

use super::*;
use crate::events::finding_events::REFUSED;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) reporter: String,
    pub(super) count: i32,
}

/// The Events by name. They do not expire.
#[derive(Default)]
pub(super) struct Server {
    pub(super) events: BTreeMap<String, Kept>,
}

impl Server {
    pub(super) fn reply(&mut self, at: Timestamp, write: &Write) -> Reply {
        match (&write.request, self.events.get_mut(&write.name)) {
            (Request::Create(_), Some(_)) => return Reply::Exists,
            (Request::Create(event), None) => {
                assert_eq!(event.event_time.as_ref().expect("a time").0, at);
                let reporter = event.reporting_instance.clone().expect("a reporter");
                self.events.insert(write.name.clone(), Kept { reporter, count: 1 });
            }
            (_, None) => return Reply::Missing,
            (Request::Read, Some(kept)) => return Reply::Current(Some(kept.reporter.clone())),
            (Request::Repeat(count, _), Some(kept)) => {
                assert!(*count >= 2, "the server refuses less");
                kept.count = *count;
            }
        }
        Reply::Written
    }

    pub(super) fn serve(&mut self, plan: &mut Plan, at: Timestamp) -> Vec<Write> {
        std::iter::from_fn(|| {
            let write = plan.next(at)?;
            let reply = self.reply(at, &write);
            plan.answer(at, &write, reply);
            Some(write)
        })
        .collect()
    }

    pub(super) fn openings(&self) -> impl Iterator<Item = &Kept> {
        self.events.iter().filter(|(name, _)| !name.ends_with(".resolved")).map(|(_, kept)| kept)
    }
}

#[test]
fn the_pause_grows_while_the_server_does_not_answer() {
    let mut plan = Plan::default();
    raise(&mut plan, second(0), &finding(1, Severity::Critical));
    let mut now = second(0);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let write = plan.next(now).expect("a request");
        plan.answer(now, &write, Reply::Unavailable(None));
        let due = plan.due(now).expect("it is tried again");
        pauses.push(due.duration_since(now).as_secs());
        now = due;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 20, 20, 20, 20, 20]);
    let write = plan.next(now).expect("a request");
    plan.answer(now, &write, Reply::Unavailable(Some(SignedDuration::from_hours(9))));
    assert_eq!(plan.due(now), Some(now + LONGEST), "no server can silence the agent for a day");
}

#[test]
fn a_refusal_about_one_object_does_not_silence_the_others() {
    let (mut server, mut plan) = (Server::default(), Plan::default());
    for object in 0..4 {
        raise(&mut plan, second(0), &finding(object, Severity::Critical));
    }
    for reply in [Reply::Forbidden, Reply::Refused, Reply::Stuck] {
        let write = plan.next(second(0)).expect("a request");
        plan.answer(second(0), &write, reply);
    }
    assert_eq!(server.serve(&mut plan, second(0)).len(), 1);
    assert_eq!(plan.counters(), Counters { written: 1, failed: 3, ..Counters::default() });
    assert_eq!(server.serve(&mut plan, second(20)).len(), 2, "those that may be lifted");
}

#[test]
fn a_server_that_does_not_answer_about_one_object_is_asked_about_the_others() {
    for silent in [0, 2] {
        let (mut server, mut plan) = (Server::default(), Plan::default());
        for object in 0..6 {
            raise(&mut plan, second(0), &finding(object, Severity::Critical));
        }
        let silent = finding(silent, Severity::Critical).key;
        let (mut asked, mut written) = (0, Vec::new());
        for now in 0..3600 {
            while let Some(write) = plan.next(second(now)) {
                let reply = if write.key == silent {
                    asked += 1;
                    Reply::Unavailable(None)
                } else {
                    server.reply(second(now), &write)
                };
                if reply == Reply::Written {
                    written.push(now);
                }
                plan.answer(second(now), &write, reply);
            }
        }
        assert!(written.len() >= 5 && written[4] <= 30, "{silent:?}: {written:?}");
        assert!(
            asked <= 200,
            "about each 20 seconds, as a server that does not answer at all: {asked} times in an hour"
        );
    }
}

#[test]
fn what_is_forbidden_or_has_no_namespace_yet_is_tried_again_soon_and_then_less_and_less() {
    for reply in [Reply::Forbidden, Reply::Missing, Reply::Stuck] {
        let mut plan = Plan::default();
        let mut now = second(0);
        raise(&mut plan, now, &of_the_cluster(1));
        let mut waits = Vec::new();
        for _ in 0..7 {
            let write = plan.next(now).expect("a request");
            plan.answer(now, &write, reply.clone());
            let due = plan.due(now).expect("it is tried again");
            waits.push(due.duration_since(now).as_secs());
            now = due;
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 600, 600], "{reply:?}");
        assert_eq!(Server::default().serve(&mut plan, now).len(), 1);
    }
}

#[test]
fn an_end_that_is_forbidden_is_written_later_and_one_that_may_not_be_read_about_never() {
    let finding = fresh(Severity::Critical);
    let (mut server, mut plan) = (Server::default(), Plan::default());
    raise(&mut plan, second(0), &finding);
    server.serve(&mut plan, second(0));
    clear(&mut plan, second(1), &finding);
    let write = plan.next(second(1)).expect("the end");
    plan.answer(second(1), &write, Reply::Forbidden);
    assert_eq!(steps(&server.serve(&mut plan, second(1) + REFUSED)), [Step::End]);

    let mut restarted = Plan::default();
    raise(&mut restarted, second(2), &finding);
    server.serve(&mut restarted, second(2));
    clear(&mut restarted, second(3), &finding);
    let write = restarted.next(second(3)).expect("a look");
    restarted.answer(second(3), &write, Reply::Stuck);
    assert_eq!(restarted.due(second(3)), None);
}

#[test]
fn an_end_that_the_server_does_not_take_for_an_hour_is_dropped_and_counted() {
    let finding = fresh(Severity::Critical);
    for taken in [false, true] {
        let (mut server, mut plan) = (Server::default(), Plan::default());
        raise(&mut plan, second(0), &finding);
        server.serve(&mut plan, second(0));
        clear(&mut plan, second(1), &finding);
        for now in 1..=61 {
            while let Some(write) = plan.next(minute(now)) {
                let reply = if taken { server.reply(minute(now), &write) } else { Reply::Unavailable(None) };
                plan.answer(minute(now), &write, reply);
            }
        }
        assert_eq!((plan.findings.len(), plan.counters().dropped), (0, u64::from(!taken)), "taken: {taken}");
    }
}

#[test]
fn what_the_server_will_never_take_is_not_sent_again() {
    let mut plan = Plan::default();
    raise(&mut plan, second(0), &finding(1, Severity::Critical));
    let write = plan.next(second(0)).expect("a request");
    plan.answer(second(0), &write, Reply::Refused);
    assert_eq!(plan.due(second(0)), None);
    // The server may accept an Event of the changed finding.
    raise(&mut plan, second(1), &finding(1, Severity::Warning));
    assert_eq!(Server::default().serve(&mut plan, second(1)).len(), 1);
}

#[test]
fn a_clock_that_is_set_back_does_not_silence_anything() {
    let unread = Place { nodes: None, ..place("n1") };
    let (mut server, mut plan) = (Server::default(), Plan::default());
    plan.offer(minute(100_000), &Change::Raised(finding(1, Severity::Critical)), &unread);
    server.serve(&mut plan, minute(100_001));
    plan.offer(minute(0), &Change::Raised(finding(2, Severity::Critical)), &unread);
    for now in 0..120 {
        server.serve(&mut plan, second(now));
    }
    assert_eq!(server.events.len(), 3, "the first is reported by the new clock too");
    clear(&mut plan, minute(3), &finding(1, Severity::Critical));
    assert_eq!(server.serve(&mut plan, minute(4)).len(), 1);
}
