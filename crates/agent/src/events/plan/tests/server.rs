//! A server that does not answer, refuses, or has just come up.

use super::*;
use crate::events::{event_state::REFUSED, pause};

#[test]
fn a_server_that_does_not_answer_is_left_alone_for_longer_and_longer() {
    let mut events = Plan::default();
    raise(&mut events, second(0), &finding(1, Severity::Critical));
    let mut now = second(0);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let write = events.next(now).expect("a request");
        events.answer(now, &write, Reply::Unavailable(None));
        let due = events.due(now).expect("it is tried again");
        pauses.push(due.duration_since(now).as_secs());
        now = due;
    }
    assert_eq!(pauses, [2, 4, 8, 16, 20, 20, 20, 20, 20]);
    let write = events.next(now).expect("a request");
    assert_eq!(events.next(now), None);
    events.answer(now, &write, Reply::Unavailable(Some(SignedDuration::from_hours(9))));
    assert_eq!(events.due(now), Some(now + pause::LONGEST), "no server may silence us for a day");
}

#[test]
fn a_refusal_about_one_object_does_not_silence_the_others() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    for object in 0..4 {
        raise(&mut events, second(0), &finding(object, Severity::Critical));
    }
    for reply in [Reply::Forbidden, Reply::Refused, Reply::Stuck] {
        let write = events.next(second(0)).expect("a request");
        events.answer(second(0), &write, reply);
    }
    assert_eq!(server.told(&mut events, second(0)).len(), 1);
    assert_eq!(events.counters(), Counters { written: 1, failed: 3, ..Counters::default() });
    let again = server.told(&mut events, second(0) + REFUSED);
    assert_eq!(again.len(), 3, "those that may be lifted, and the written one's series");
}

/// Serves everything but what is about one object, for so many seconds: how often each was asked about, and written.
fn unless_about(events: &mut Plan, server: &mut Server, object: &str, seconds: i64) -> (usize, Vec<i64>) {
    let (mut asked, mut written) = (0, Vec::new());
    for now in 0..seconds {
        while let Some(write) = events.next(second(now)) {
            let sent = events.findings.values().find(|it| it.in_flight.is_some()).expect("its finding");
            let reply = if sent.object() == object {
                asked += 1;
                Reply::Unavailable(None)
            } else {
                let reply = server.reply(second(now), &write);
                if matches!(write.request, Request::Create(_)) {
                    written.push(now);
                }
                reply
            };
            events.answer(second(now), &write, reply);
        }
    }
    (asked, written)
}

#[test]
fn a_server_that_does_not_answer_about_one_object_is_asked_about_the_others() {
    for silent in ["uid-0", "uid-2"] {
        let (mut server, mut events) = (Server::default(), Plan::default());
        for object in 0..6 {
            raise(&mut events, second(0), &finding(object, Severity::Critical));
        }
        let (asked, written) = unless_about(&mut events, &mut server, silent, 3600);
        assert_eq!(written.len(), 5);
        assert!(written.iter().all(|at| *at <= 30), "{silent}: {written:?}");
        assert!(asked <= 190, "each 20 seconds, as a server that does not answer at all: {asked} times in an hour");
    }
}

#[test]
fn a_server_that_does_nothing_but_answer_looks_is_left_alone_for_longer_and_longer() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    for object in 0..3 {
        raise(&mut events, second(0), &finding(object, Severity::Critical));
    }
    let mut asked = 0;
    for now in 0..600 {
        while let Some(write) = events.next(second(now)) {
            asked += 1;
            let reply =
                if write.request.is_read() { server.reply(second(now), &write) } else { Reply::Unavailable(None) };
            events.answer(second(now), &write, reply);
        }
    }
    assert!(asked <= 80, "{asked} requests in ten minutes");
    let now = second(600 + 20);
    assert_eq!(server.told(&mut events, now).len(), 3, "once it is well it is told all");
}

#[test]
fn after_an_outage_the_worst_comes_first_again() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    for object in 0..40 {
        let severity = if object >= 35 { Severity::Critical } else { Severity::Warning };
        raise(&mut events, second(0), &finding(object, severity));
    }
    let mut now = second(0);
    for _ in 0..20 {
        let write = events.next(now).expect("a request");
        events.answer(now, &write, Reply::Unavailable(None));
        now = events.due(now).expect("it is tried again");
    }
    let created = server.told(&mut events, now).into_iter().filter_map(|write| match write.request {
        Request::Create(event) => event.regarding.and_then(|object| object.uid),
        _ => None,
    });
    let created: Vec<String> = created.collect();
    let worst = created.iter().take(6).filter(|uid| uid[4..].parse::<usize>().expect("a number") >= 35).count();
    assert_eq!(worst, 5, "{created:?}");
}

#[test]
fn what_is_forbidden_or_has_no_namespace_yet_is_tried_again_soon_and_then_less_and_less() {
    for reply in [Reply::Forbidden, Reply::Missing, Reply::Stuck] {
        let mut events = Plan::default();
        let mut now = second(0);
        raise(&mut events, now, &of_the_cluster(1));
        let mut waits = Vec::new();
        for _ in 0..7 {
            let write = events.next(now).expect("a request");
            events.answer(now, &write, reply.clone());
            let due = events.due(now).expect("it is tried again");
            waits.push(due.duration_since(now).as_secs());
            now = due;
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 600, 600], "{reply:?}");
        assert_eq!(Server::default().serve(&mut events, now).len(), 1);
    }
}

#[test]
fn a_server_that_has_just_come_up_is_not_believed_that_it_forbids() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    raise(&mut events, second(0), &finding(1, Severity::Critical));
    let mut now = second(0);
    for reply in [Reply::Unavailable(None), Reply::Forbidden, Reply::Forbidden, Reply::Forbidden] {
        let write = events.next(now).expect("a request");
        events.answer(now, &write, reply);
        now = events.due(now).expect("it is tried again");
    }
    assert!(now < second(0) + REFUSED);
    assert_eq!(server.told(&mut events, now).len(), 1);

    clear(&mut events, now, &finding(1, Severity::Critical));
    let write = events.next(now).expect("the end");
    events.answer(now, &write, Reply::Forbidden);
    assert_eq!(server.told(&mut events, now + REFUSED).len(), 1, "an end that is forbidden is written later");
}

#[test]
fn a_clock_that_is_set_back_does_not_silence_anything() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    raise(&mut events, minute(100_000), &finding(1, Severity::Critical));
    server.serve(&mut events, minute(100_000));
    raise(&mut events, minute(0), &finding(2, Severity::Critical));
    server.serve(&mut events, minute(1));
    assert_eq!(server.events.len(), 2);
    assert!(events.due(minute(1)).is_some_and(|due| due <= minute(6)));
}
