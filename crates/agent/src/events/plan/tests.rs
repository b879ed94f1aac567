mod cluster;
mod incident;
mod model;
mod orders;
mod server;
mod simulation;

use std::collections::BTreeSet;

use model::Server;

use super::*;
use portreeve_rules::{
    findings::{Evidence, RuleId, Subject, SubjectKind},
    ledger::Clearance,
};

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("a time")
}

fn minute(minute: i64) -> Timestamp {
    second(minute * 60)
}

fn place(node: &str) -> Place {
    Place { node: node.to_owned(), node_uid: None, kubernetes_uid: None, nodes: Some(1), agents: None }
}

fn about(object: usize, evidence: Evidence) -> Finding {
    let name = format!("s{object}");
    let uid = Some(format!("uid-{object}"));
    let subject = Subject { uid, ..Subject::node(&name, None) };
    let subject = Subject { kind: SubjectKind::Service, namespace: Some("d".to_owned()), ..subject };
    let key =
        Key { rule: RuleId("listener-on-node-port"), variant: "loses", subject, port: Some(30080), protocol: None };
    Finding { key, evidence, since: second(0) }
}

fn finding(object: usize, severity: Severity) -> Finding {
    about(object, Evidence::new(severity, "it is wrong."))
}

fn of_the_cluster(object: usize) -> Finding {
    about(object, Evidence::new(Severity::Critical, "it is wrong everywhere.").in_cluster())
}

impl Server {
    /// Everything that is due at this time, done.
    fn serve(&mut self, events: &mut Plan, at: Timestamp) -> Vec<Write> {
        std::iter::from_fn(|| {
            let write = events.next(at)?;
            let reply = self.reply(at, &write);
            events.answer(at, &write, reply);
            Some(write)
        })
        .collect()
    }

    /// The same, of what tells somebody something.
    fn told(&mut self, events: &mut Plan, at: Timestamp) -> Vec<Write> {
        self.serve(events, at).into_iter().filter(|write| !write.request.is_light()).collect()
    }
}

fn raise(events: &mut Plan, at: Timestamp, finding: &Finding) {
    events.offer(at, &Change::Raised(finding.clone()), &place("n1"));
}

fn clear(events: &mut Plan, at: Timestamp, finding: &Finding) {
    events.offer(at, &Change::Cleared(finding.clone(), Clearance::Repaired), &place("n1"));
}

/// Minutes at which something was written, and what the series said.
fn written(server: &mut Server, events: &mut Plan, until: i64) -> Vec<(i64, u32)> {
    let mut written = Vec::new();
    for now in 0..until {
        for write in server.serve(events, minute(now)) {
            match write.request {
                Request::Create(_) => written.push((now, 1)),
                Request::Repeat(series) => written.push((now, series.count)),
                Request::Hold(hold) => written.extend(hold.series.map(|series| (now, series.count))),
                Request::Find | Request::Look => {}
            }
        }
    }
    written
}

#[test]
fn what_became_another_variant_has_a_new_event_and_no_end_of_the_old_one() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    let was = of_the_cluster(1);
    raise(&mut events, minute(0), &was);
    assert_eq!(server.told(&mut events, minute(0)).len(), 1);
    let mut worse = was.clone();
    worse.key.variant = "no-return";
    let change = |was: &Finding, is: &Finding| Change::Became(was.key.clone(), is.clone());
    events.offer(minute(1), &change(&was, &worse), &place("n1"));
    let written: Vec<Write> = (1..10).flat_map(|now| server.told(&mut events, minute(now))).collect();
    let is_end = |write: &Write| write.name.ends_with(".resolved");
    assert!(!written.is_empty() && !written.iter().any(is_end), "{written:#?}");
    let mut mild = worse.clone();
    (mild.key.variant, mild.evidence.severity) = ("trap", Severity::Info);
    events.offer(minute(20), &change(&worse, &mild), &place("n1"));
    let written: Vec<Write> = (20..30).flat_map(|now| server.told(&mut events, minute(now))).collect();
    assert!(written.iter().any(is_end), "{written:#?}");
}

#[test]
fn an_event_is_repeated_after_five_and_fifteen_and_then_every_fifty_five_minutes() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    raise(&mut events, minute(0), &finding(1, Severity::Warning));
    assert_eq!(written(&mut server, &mut events, 130), [(0, 1), (5, 2), (15, 3), (70, 4), (125, 5)]);
    assert_eq!(events.due(minute(126)), Some(minute(180)));
}

#[test]
fn info_has_no_event_and_what_becomes_info_is_over() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    raise(&mut events, second(0), &finding(1, Severity::Info));
    assert_eq!(events.next(second(0)), None);
    raise(&mut events, second(0), &finding(2, Severity::Warning));
    server.serve(&mut events, second(0));
    events.offer(second(1), &Change::Changed(finding(2, Severity::Info)), &place("n1"));
    assert_eq!(server.told(&mut events, second(1)).len(), 1);
    assert_eq!(server.events.len(), 2);
}

#[test]
fn a_finding_that_gets_worse_has_a_new_event_and_the_old_one_is_not_repeated() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    raise(&mut events, minute(0), &finding(1, Severity::Warning));
    server.serve(&mut events, minute(0));
    events.offer(minute(1), &Change::Changed(finding(1, Severity::Critical)), &place("n1"));
    written(&mut server, &mut events, 80);
    let counts: BTreeSet<u32> = server.openings().map(|(_, kept)| kept.series.count).collect();
    assert_eq!(counts, BTreeSet::from([1, 4]));
    let mut same = finding(1, Severity::Critical);
    same.evidence.values.push(("uid", "7".to_owned()));
    events.offer(minute(80), &Change::Changed(same), &place("n1"));
    assert_eq!(events.next(minute(80)), None, "evidence that is not in the note changes nothing");
}

#[test]
fn other_words_write_nothing_and_are_in_the_event_that_is_created_next() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    raise(&mut events, minute(0), &finding(1, Severity::Warning));
    let first = server.serve(&mut events, minute(0)).remove(0);
    let reworded = about(
        1,
        Evidence::new(Severity::Warning, "it is wrong in other words.")
            .remedy(portreeve_rules::findings::Step::advice("take 30002")),
    );
    events.offer(minute(1), &Change::Changed(reworded), &place("n1"));
    assert_eq!(events.next(minute(1)), None);
    assert_eq!(events.due(minute(1)), Some(minute(5)), "the series goes on as before");
    server.events.clear();
    let writes = server.serve(&mut events, minute(5));
    let created = writes.iter().find_map(|write| match &write.request {
        Request::Create(event) => Some((&write.name, event.note.as_deref())),
        _ => None,
    });
    let note = "On node n1: it is wrong in other words. `kubectl portreeve findings -n d --rule listener-on-node-port/loses -o wide` \
                names every affected node, of which at most five tell. Remedy: take 30002";
    assert_eq!(created, Some((&first.name, Some(note))));
}

#[test]
fn the_end_is_written_once_and_only_where_the_beginning_was() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    let (early, late) = (finding(1, Severity::Warning), finding(2, Severity::Warning));
    raise(&mut events, minute(0), &early);
    server.serve(&mut events, minute(0));
    raise(&mut events, minute(1), &late);
    clear(&mut events, minute(1), &late);
    clear(&mut events, minute(1), &early);
    let writes = server.told(&mut events, minute(1));
    assert!(matches!(&writes[..], [write] if write.name.ends_with(".resolved")), "{writes:?}");
    for now in 2..200 {
        assert_eq!(events.next(minute(now)), None);
    }
    assert!(events.findings.is_empty(), "what is over is forgotten when its Event has expired");
}

#[test]
fn the_end_is_that_of_the_event_that_was_written_where_a_worse_one_came_too_late() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    raise(&mut events, minute(0), &finding(1, Severity::Warning));
    server.serve(&mut events, minute(0));
    let opening = PlannedEvent::of(&finding(1, Severity::Warning), &place("n1")).expect("a uid");
    let other = finding(1, Severity::Critical);
    events.offer(minute(1), &Change::Changed(other.clone()), &place("n1"));
    clear(&mut events, minute(1), &other);
    let writes = server.told(&mut events, minute(1));
    let names: Vec<&str> = writes.iter().map(|write| write.name.as_str()).collect();
    assert_eq!(names, [format!("{}.resolved", opening.name)]);
}

#[test]
fn a_finding_that_comes_back_goes_on_in_its_series_and_so_does_its_end() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    let finding = finding(1, Severity::Warning);
    for round in 0..3 {
        raise(&mut events, minute(10 * round), &finding);
        server.serve(&mut events, minute(10 * round));
        clear(&mut events, minute(10 * round + 4), &finding);
        server.serve(&mut events, minute(10 * round + 4));
    }
    let counts: Vec<u32> = server.events.values().map(|kept| kept.series.count).collect();
    assert_eq!(counts, [3, 3]);
}

#[test]
fn a_finding_that_ends_while_it_is_being_written_is_written_to_be_over() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    let finding = finding(1, Severity::Warning);
    raise(&mut events, second(0), &finding);
    let look = events.next(second(0)).expect("a look");
    let reply = server.reply(second(0), &look);
    events.answer(second(0), &look, reply);
    let write = events.next(second(0)).expect("a request");
    clear(&mut events, second(1), &finding);
    assert_eq!(events.next(second(1)), None, "one request about a finding at a time");
    let reply = server.reply(second(1), &write);
    events.answer(second(1), &write, reply);
    server.serve(&mut events, second(1));
    assert_eq!(server.events.len(), 2);
}

#[test]
fn an_event_that_expired_is_created_anew() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    raise(&mut events, minute(0), &finding(1, Severity::Warning));
    server.serve(&mut events, minute(0));
    server.events.clear();
    let writes = server.serve(&mut events, minute(5));
    assert!(matches!(writes[0].request, Request::Look) && matches!(writes[1].request, Request::Create(_)));
    assert_eq!(events.counters(), Counters { written: 2, ..Counters::default() });
}

#[test]
fn a_thousand_findings_at_once_are_written_within_budget_the_worst_first() {
    let (mut server, mut events) = (Server::default(), Plan::default());
    for object in 0..1000 {
        let severity = if object % 100 == 7 { Severity::Critical } else { Severity::Warning };
        raise(&mut events, second(0), &finding(object, severity));
    }
    let first = server.told(&mut events, second(0));
    assert_eq!(first.len(), 10);
    let critical: BTreeSet<usize> = (0..1000).filter(|object| object % 100 == 7).collect();
    let written: BTreeSet<usize> = first
        .iter()
        .map(|write| match &write.request {
            Request::Create(event) => {
                let uid = event.regarding.as_ref().and_then(|object| object.uid.as_ref()).expect("a uid");
                uid[4..].parse().expect("a number")
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(written, critical);
    assert_eq!(events.due(second(1)), Some(second(5)), "the next look");
    assert_eq!(server.told(&mut events, second(5)).len(), 0);
    assert_eq!(server.told(&mut events, second(10)).len(), 1);
}

#[test]
fn where_there_is_no_room_the_mildest_are_dropped_and_counted() {
    let mut events = Plan::default();
    for object in 0..OPEN + 5 {
        raise(&mut events, second(0), &finding(object, Severity::Warning));
    }
    assert_eq!((events.findings.len(), events.counters().dropped), (OPEN, 5));
    raise(&mut events, second(0), &finding(OPEN + 9, Severity::Critical));
    assert_eq!((events.findings.len(), events.counters().dropped), (OPEN, 6));
    assert!(events.findings.values().any(|it| it.severity == Severity::Critical));
}

#[test]
fn a_finding_about_an_object_without_a_uid_is_counted_and_not_written() {
    let mut events = Plan::default();
    let mut finding = finding(1, Severity::Critical);
    finding.key.subject.uid = None;
    raise(&mut events, second(0), &finding);
    assert_eq!((events.next(second(0)), events.counters().failed), (None, 1));
}

#[test]
fn nodes_that_are_not_read_yet_delay_an_event_by_half_a_minute_at_most_and_only_until_they_are() {
    let unread = Place { nodes: None, ..place("n1") };
    for known in [false, true] {
        let (mut server, mut events) = (Server::default(), Plan::default());
        for object in 0..10 {
            events.offer(second(0), &Change::Raised(finding(object, Severity::Critical)), &unread);
        }
        assert!(server.told(&mut events, second(0)).len() < 5);
        if known {
            events.know(second(1), &place("n1"));
            events.know(second(1), &unread);
        }
        let now = second(if known { 1 } else { 30 });
        server.told(&mut events, now);
        assert_eq!(server.events.len(), 10, "known: {known}");
    }
}

#[test]
fn an_event_of_the_node_that_a_restarted_agent_finds_under_its_own_end_is_told_anew() {
    let mut server = Server::default();
    let mut finding = finding(1, Severity::Critical);
    finding.key.subject = Subject { uid: Some("uid-n1".to_owned()), ..Subject::node("n1", None) };
    let mut first = Plan::default();
    raise(&mut first, minute(0), &finding);
    written(&mut server, &mut first, 20);
    clear(&mut first, minute(20), &finding);
    server.serve(&mut first, minute(20));
    let count = |server: &Server| server.openings().next().expect("an Event").1.series.count;
    assert_eq!((count(&server), server.events.len()), (3, 2));
    for (restart, expected) in [(21, 4), (22, 4)] {
        let mut events = Plan::default();
        raise(&mut events, minute(restart), &finding);
        server.serve(&mut events, minute(restart));
        assert_eq!(count(&server), expected, "restarted at {restart}");
    }
}
