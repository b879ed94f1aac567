use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{
    findings::{Evidence, RuleId, Subject, SubjectKind},
    ledger::Clearance,
};

const NODE_RULE: &str = "listener-on-node-port";
const CLUSTER_RULE: &str = "external-ip-is-node-address";

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("a time")
}

fn minute(minute: i64) -> Timestamp {
    second(minute * 60)
}

fn place(node: &str) -> Place {
    Place { node: node.to_owned(), node_uid: None, kubernetes_uid: None }
}

fn about(rule: &'static str, object: usize, severity: Severity, sentence: &str) -> Finding {
    let name = format!("s{object}");
    let uid = Some(format!("uid-{object}"));
    let subject = Subject { uid, ..Subject::node(&name, None) };
    let subject = Subject { kind: SubjectKind::Service, namespace: Some("d".to_owned()), ..subject };
    let key = Key { rule: RuleId(rule), subject, port: Some(30080), protocol: None };
    Finding { key, evidence: Evidence::new(severity, sentence), since: second(0) }
}

fn finding(object: usize, severity: Severity) -> Finding {
    about(NODE_RULE, object, severity, "it is wrong.")
}

/// The Events of an API server, without their expiry.
#[derive(Default)]
struct Server {
    events: BTreeMap<String, Series>,
}

impl Server {
    fn reply(&mut self, at: Timestamp, write: &Write) -> Reply {
        let known = self.events.get(&write.name).copied();
        match (&write.request, known) {
            (Request::Create(_), Some(_)) => Reply::Exists,
            (Request::Create(_), None) => {
                self.events.insert(write.name.clone(), Series { count: 1, last: at });
                Reply::Written
            }
            (Request::Again(_) | Request::Look, None) => Reply::Missing,
            (Request::Again(series), Some(_)) => {
                assert!(series.count >= 2, "the server refuses less");
                self.events.insert(write.name.clone(), *series);
                Reply::Written
            }
            (Request::Look, Some(series)) => Reply::Found(series),
        }
    }

    /// Everything that is due at this time, done.
    fn serve(&mut self, events: &mut Events, at: Timestamp) -> Vec<Write> {
        std::iter::from_fn(|| {
            let write = events.next(at)?;
            let reply = self.reply(at, &write);
            events.answer(at, &write, reply);
            Some(write)
        })
        .collect()
    }

    fn openings(&self) -> impl Iterator<Item = (&String, &Series)> {
        self.events.iter().filter(|(name, _)| !name.ends_with(".resolved"))
    }
}

fn raise(events: &mut Events, at: Timestamp, finding: &Finding) {
    events.offer(at, &Change::Raised(finding.clone()), &place("n1"));
}

fn clear(events: &mut Events, at: Timestamp, finding: &Finding) {
    events.offer(at, &Change::Cleared(finding.clone(), Clearance::Repaired), &place("n1"));
}

/// Minutes at which something was written, and what the series said.
fn told(server: &mut Server, events: &mut Events, until: i64) -> Vec<(i64, u32)> {
    let mut told = Vec::new();
    for now in 0..until {
        for write in server.serve(events, minute(now)) {
            match write.request {
                Request::Create(_) => told.push((now, 1)),
                Request::Again(series) => told.push((now, series.count)),
                Request::Look => {}
            }
        }
    }
    told
}

#[test]
fn an_event_is_told_again_after_five_and_fifteen_and_then_every_fifty_five_minutes() {
    let (mut server, mut events) = (Server::default(), Events::default());
    raise(&mut events, minute(0), &finding(1, Severity::Warning));
    assert_eq!(told(&mut server, &mut events, 130), [(0, 1), (5, 2), (15, 3), (70, 4), (125, 5)]);
    assert_eq!(events.due(minute(126)), Some(minute(180)));
}

#[test]
fn what_a_rule_of_the_cluster_says_of_a_node_is_told_by_the_agent_of_that_node() {
    let mut of_node = about(CLUSTER_RULE, 1, Severity::Warning, "this node is wrong.");
    of_node.key.subject.kind = SubjectKind::Node;
    let of_service = about(CLUSTER_RULE, 2, Severity::Warning, "it is wrong.");
    let (mut server, mut told) = (Server::default(), 0);
    for node in ["n1", "n2"] {
        let mut events = Events::default();
        for finding in [&of_node, &of_service] {
            events.offer(second(0), &Change::Raised(finding.clone()), &place(node));
        }
        server.serve(&mut events, second(0));
        told += events.counters().written;
    }
    assert_eq!(told, 3, "each node's own, and one of the cluster: {:?}", server.events);
}

#[test]
fn info_is_never_told_and_what_becomes_info_is_over() {
    let (mut server, mut events) = (Server::default(), Events::default());
    raise(&mut events, second(0), &finding(1, Severity::Info));
    assert_eq!(events.next(second(0)), None);
    raise(&mut events, second(0), &finding(2, Severity::Warning));
    server.serve(&mut events, second(0));
    events.offer(second(1), &Change::Changed(finding(2, Severity::Info)), &place("n1"));
    assert_eq!(server.serve(&mut events, second(1)).len(), 1);
    assert_eq!(server.events.len(), 2);
}

#[test]
fn a_finding_that_changes_its_words_is_told_anew_and_the_old_words_no_more() {
    let (mut server, mut events) = (Server::default(), Events::default());
    raise(&mut events, minute(0), &finding(1, Severity::Warning));
    server.serve(&mut events, minute(0));
    events.offer(minute(1), &Change::Changed(finding(1, Severity::Critical)), &place("n1"));
    told(&mut server, &mut events, 80);
    let counts: BTreeSet<u32> = server.openings().map(|(_, series)| series.count).collect();
    assert_eq!(counts, BTreeSet::from([1, 4]));
    let mut same = finding(1, Severity::Critical);
    same.evidence.values.push(("uid", "7".to_owned()));
    events.offer(minute(80), &Change::Changed(same), &place("n1"));
    assert_eq!(events.next(minute(80)), None, "evidence that is not in the note changes nothing");
}

#[test]
fn the_end_is_told_once_and_only_where_the_beginning_was() {
    let (mut server, mut events) = (Server::default(), Events::default());
    let (told, untold) = (finding(1, Severity::Warning), finding(2, Severity::Warning));
    raise(&mut events, minute(0), &told);
    server.serve(&mut events, minute(0));
    raise(&mut events, minute(1), &untold);
    clear(&mut events, minute(1), &untold);
    clear(&mut events, minute(1), &told);
    let writes = server.serve(&mut events, minute(1));
    assert!(matches!(&writes[..], [write] if write.name.ends_with(".resolved")), "{writes:?}");
    for now in 2..200 {
        assert_eq!(events.next(minute(now)), None);
    }
    assert!(events.tellings.is_empty(), "what is over is forgotten when its Event has expired");
}

#[test]
fn the_end_is_told_of_the_words_that_were_told_where_others_came_too_late() {
    let (mut server, mut events) = (Server::default(), Events::default());
    raise(&mut events, minute(0), &finding(1, Severity::Warning));
    let opening = server.serve(&mut events, minute(0)).remove(0);
    let other = finding(1, Severity::Critical);
    events.offer(minute(1), &Change::Changed(other.clone()), &place("n1"));
    clear(&mut events, minute(1), &other);
    let writes = server.serve(&mut events, minute(1));
    let names: Vec<&str> = writes.iter().map(|write| write.name.as_str()).collect();
    assert_eq!(names, [format!("{}.resolved", opening.name)]);
}

#[test]
fn a_finding_that_comes_back_goes_on_in_its_series_and_so_does_its_end() {
    let (mut server, mut events) = (Server::default(), Events::default());
    let finding = finding(1, Severity::Warning);
    for round in 0..3 {
        raise(&mut events, minute(10 * round), &finding);
        server.serve(&mut events, minute(10 * round));
        clear(&mut events, minute(10 * round + 4), &finding);
        server.serve(&mut events, minute(10 * round + 4));
    }
    let counts: Vec<u32> = server.events.values().map(|series| series.count).collect();
    assert_eq!(counts, [3, 3]);
}

#[test]
fn a_finding_that_ends_while_it_is_being_written_is_told_to_be_over() {
    let (mut server, mut events) = (Server::default(), Events::default());
    let finding = finding(1, Severity::Warning);
    raise(&mut events, second(0), &finding);
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
    let (mut server, mut events) = (Server::default(), Events::default());
    raise(&mut events, minute(0), &finding(1, Severity::Warning));
    server.serve(&mut events, minute(0));
    server.events.clear();
    let writes = server.serve(&mut events, minute(5));
    assert!(matches!(writes[0].request, Request::Again(_)) && matches!(writes[1].request, Request::Create(_)));
    assert_eq!(events.counters(), Counters { written: 2, ..Counters::default() });
}

#[test]
fn a_fact_of_the_cluster_is_told_by_one_agent_and_by_another_when_that_one_is_gone() {
    let mut server = Server::default();
    let mut agents = ["n1", "n2"].map(|node| (node, Events::default()));
    let finding = about(CLUSTER_RULE, 1, Severity::Critical, "it is wrong.");
    for (node, events) in &mut agents {
        events.offer(minute(0), &Change::Raised(finding.clone()), &place(node));
        server.serve(events, minute(0));
    }
    let [(_, first), (_, mut second)] = agents;
    assert_eq!(first.counters(), Counters { written: 1, ..Counters::default() });
    assert_eq!(second.counters(), Counters { deduplicated: 1, ..Counters::default() });
    assert_eq!(server.events.len(), 1);
    let again = second.due(minute(1)).expect("it tries again");
    assert!(again >= minute(55) && again <= minute(70), "{again}");
    server.events.clear();
    server.serve(&mut second, again);
    assert_eq!(second.counters().written, 1);
    assert_eq!(second.due(again), Some(again + wait(1)), "from now on it is the one");
}

#[test]
fn a_fact_of_the_cluster_ends_once() {
    let mut server = Server::default();
    let mut agents = ["n1", "n2", "n3"].map(|node| (node, Events::default()));
    let finding = about(CLUSTER_RULE, 1, Severity::Critical, "it is wrong.");
    for (node, events) in &mut agents {
        events.offer(minute(0), &Change::Raised(finding.clone()), &place(node));
        server.serve(events, minute(0));
    }
    // One of those that stayed silent sees it first.
    for (node, events) in agents.iter_mut().rev() {
        events.offer(minute(1), &Change::Cleared(finding.clone(), Clearance::Repaired), &place(node));
        server.serve(events, minute(1));
    }
    assert!(server.events.values().all(|series| series.count == 1), "{:?}", server.events);
    assert_eq!(server.events.len(), 2);
}

#[test]
fn a_thousand_findings_at_once_are_told_within_budget_the_worst_first() {
    let (mut server, mut events) = (Server::default(), Events::default());
    for object in 0..1000 {
        let severity = if object % 100 == 7 { Severity::Critical } else { Severity::Warning };
        raise(&mut events, second(0), &finding(object, severity));
    }
    let first = server.serve(&mut events, second(0));
    assert_eq!(first.len(), 10);
    let critical: BTreeSet<usize> = (0..1000).filter(|object| object % 100 == 7).collect();
    let written: BTreeSet<usize> = first
        .iter()
        .map(|write| match &write.request {
            Request::Create(event) => event.regarding.uid.as_ref().expect("a uid")[4..].parse().expect("a number"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(written, critical);
    assert_eq!(events.due(second(1)), Some(second(10)));
    assert_eq!(server.serve(&mut events, second(10)).len(), 1);
}

#[test]
fn where_there_is_no_room_the_mildest_are_dropped_and_counted() {
    let mut events = Events::default();
    for object in 0..OPEN + 5 {
        raise(&mut events, second(0), &finding(object, Severity::Warning));
    }
    assert_eq!((events.tellings.len(), events.counters().dropped), (OPEN, 5));
    raise(&mut events, second(0), &finding(OPEN + 9, Severity::Critical));
    assert_eq!((events.tellings.len(), events.counters().dropped), (OPEN, 6));
    assert!(events.tellings.values().any(|telling| telling.severity == Severity::Critical));
}

#[test]
fn a_finding_about_an_object_without_a_uid_is_counted_and_not_written() {
    let mut events = Events::default();
    let mut finding = finding(1, Severity::Critical);
    finding.key.subject.uid = None;
    raise(&mut events, second(0), &finding);
    assert_eq!((events.next(second(0)), events.counters().failed), (None, 1));
}

#[test]
fn a_server_that_does_not_answer_is_left_alone_for_longer_and_longer() {
    let mut events = Events::default();
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
    assert_eq!(events.due(now), Some(now + MOST_RESPECT), "no server may silence us for a day");
}

#[test]
fn a_refusal_about_one_object_does_not_silence_the_others() {
    let (mut server, mut events) = (Server::default(), Events::default());
    for object in 0..3 {
        raise(&mut events, second(0), &finding(object, Severity::Critical));
    }
    for reply in [Reply::Forbidden, Reply::Refused] {
        let write = events.next(second(0)).expect("a request");
        events.answer(second(0), &write, reply);
    }
    assert_eq!(server.serve(&mut events, second(0)).len(), 1);
    assert_eq!(events.counters(), Counters { written: 1, failed: 2, ..Counters::default() });
    let again = server.serve(&mut events, second(0) + REFUSED);
    assert_eq!(again.len(), 2, "the forbidden one, and the written one's series");
}

#[test]
fn a_server_that_has_just_come_up_is_not_believed_that_it_forbids() {
    let (mut server, mut events) = (Server::default(), Events::default());
    raise(&mut events, second(0), &finding(1, Severity::Critical));
    let mut now = second(0);
    for reply in [Reply::Unavailable(None), Reply::Forbidden, Reply::Forbidden, Reply::Forbidden] {
        let write = events.next(now).expect("a request");
        events.answer(now, &write, reply);
        now = events.due(now).expect("it is tried again");
    }
    assert!(now < second(0) + REFUSED);
    assert_eq!(server.serve(&mut events, now).len(), 1);

    clear(&mut events, now, &finding(1, Severity::Critical));
    let write = events.next(now).expect("the end");
    events.answer(now, &write, Reply::Forbidden);
    assert_eq!(server.serve(&mut events, now + REFUSED).len(), 1, "an end that is forbidden is told later");
}

#[test]
fn a_clock_that_is_set_back_does_not_silence_anything() {
    let (mut server, mut events) = (Server::default(), Events::default());
    raise(&mut events, minute(100_000), &finding(1, Severity::Critical));
    server.serve(&mut events, minute(100_000));
    raise(&mut events, minute(0), &finding(2, Severity::Critical));
    server.serve(&mut events, minute(1));
    assert_eq!(server.events.len(), 2);
    assert!(events.due(minute(1)).is_some_and(|due| due <= minute(6)));
}

/// What happens to the planner: another second, a change about an object, or an answer of the kind.
#[derive(Clone, Debug)]
enum Step {
    Pass(i64),
    Raise(usize, Severity),
    Clear(usize),
    Serve(u8),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0i64..400).prop_map(Step::Pass),
        3 => (0usize..6, prop_oneof![Just(Severity::Warning), Just(Severity::Critical)])
            .prop_map(|(object, severity)| Step::Raise(object, severity)),
        2 => (0usize..6).prop_map(Step::Clear),
        6 => (0u8..10).prop_map(Step::Serve),
    ]
}

fn within(times: &[i64], burst: usize, interval: i64) -> bool {
    times.iter().enumerate().all(|(from, first)| {
        times[from..].iter().enumerate().all(|(index, last)| (last - first) / interval + burst as i64 > index as i64)
    })
}

proptest! {
    #[test]
    fn no_order_of_changes_and_answers_breaks_the_budget(steps in proptest::collection::vec(any_step(), 0..300)) {
        let (mut server, mut events) = (Server::default(), Events::default());
        let mut now = 0;
        let mut written: Vec<(i64, String)> = Vec::new();
        for step in steps {
            match step {
                Step::Pass(seconds) => now += seconds,
                Step::Raise(object, severity) => raise(&mut events, second(now), &finding(object, severity)),
                Step::Clear(object) => clear(&mut events, second(now), &finding(object, Severity::Warning)),
                Step::Serve(how) => while let Some(write) = events.next(second(now)) {
                    if write.request != Request::Look {
                        let flying = events.tellings.values().find(|it| it.flying.is_some_and(|(it, _)| it == write.ticket));
                        written.push((now, flying.expect("a telling").object().to_owned()));
                    }
                    let reply = match how {
                        0 => Reply::Unavailable(None),
                        1 => Reply::Missing,
                        2 => Reply::Forbidden,
                        3 if matches!(write.request, Request::Create(_)) => Reply::Exists,
                        _ => server.reply(second(now), &write),
                    };
                    events.answer(second(now), &write, reply);
                },
            }
        }
        let all: Vec<i64> = written.iter().map(|(at, _)| *at).collect();
        prop_assert!(within(&all, 10, 10), "{all:?}");
        for object in 0..6 {
            let uid = format!("uid-{object}");
            let own: Vec<i64> = written.iter().filter(|(_, of)| *of == uid).map(|(at, _)| *at).collect();
            prop_assert!(within(&own, 25, 300), "{own:?}");
        }
    }

    #[test]
    fn a_restart_writes_nothing_new(objects in 1usize..12, restart in 0i64..300) {
        let (mut server, mut events) = (Server::default(), Events::default());
        let findings: Vec<Finding> = (0..objects).map(|object| finding(object, Severity::Critical)).collect();
        for finding in &findings {
            raise(&mut events, second(0), finding);
        }
        for now in 0..1000 {
            server.serve(&mut events, second(now * 10));
        }
        let before = server.events.clone();
        let mut fresh = Events::default();
        for finding in &findings {
            raise(&mut fresh, second(10_000), finding);
        }
        for now in 0..=restart {
            server.serve(&mut fresh, second(10_000 + now));
        }
        prop_assert_eq!(&server.events, &before);
        prop_assert_eq!(fresh.counters().written, 0);
        prop_assert_eq!(fresh.counters().deduplicated, server.openings().count().min(10 + restart as usize / 10) as u64);
    }

    #[test]
    fn a_finding_has_one_event_however_often_it_comes_and_goes(steps in proptest::collection::vec(any_step(), 0..200)) {
        let (mut server, mut events) = (Server::default(), Events::default());
        let mut now = 0;
        let mut raised = BTreeSet::new();
        for step in steps {
            match step {
                Step::Pass(seconds) => now += seconds,
                Step::Raise(object, _) => {
                    raised.insert(object);
                    raise(&mut events, second(now), &finding(object, Severity::Warning));
                }
                Step::Clear(object) => clear(&mut events, second(now), &finding(object, Severity::Warning)),
                Step::Serve(_) => {
                    server.serve(&mut events, second(now));
                }
            }
            prop_assert!(server.openings().count() <= raised.len());
        }
        let ends = server.events.keys().filter_map(|name| name.strip_suffix(".resolved"));
        for end in ends {
            prop_assert!(server.events.contains_key(end), "only what began can end");
        }
    }
}
