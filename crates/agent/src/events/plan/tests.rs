mod orders;
mod server;

use std::collections::BTreeSet;

use portreeve_rules::{
    findings::{Evidence, RuleId, Subject, SubjectKind},
    ledger::Clearance,
};
use server::Server;

use super::*;

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

/// The time at which this node may next report this finding, in seconds from the start.
fn turn(finding: &Finding, node: &str) -> i64 {
    let event = PlannedEvent::of(None, finding, &place(node)).expect("a uid");
    (event.names.hour(second(0)) + HOUR).duration_since(second(0)).as_secs()
}

fn fresh(severity: Severity) -> Finding {
    (0..).map(|object| finding(object, severity)).find(|finding| turn(finding, "n1") > 50 * 60).expect("one of many")
}

fn of_one_slot(finding: &Finding, count: usize) -> Vec<String> {
    let name = |node: &str| PlannedEvent::of(None, finding, &place(node)).expect("a uid").names.in_hour(second(0));
    (0..).map(|number| format!("n{number}")).filter(|node| name(node) == name("n0")).take(count).collect()
}

fn raise(plan: &mut Plan, at: Timestamp, finding: &Finding) {
    plan.offer(at, &Change::Raised(finding.clone()), &place("n1"));
}

fn clear(plan: &mut Plan, at: Timestamp, finding: &Finding) {
    plan.offer(at, &Change::Cleared(finding.clone(), Clearance::Repaired), &place("n1"));
}

fn steps(writes: &[Write]) -> Vec<Step> {
    writes.iter().map(|write| write.step).collect()
}

fn written(written: u64) -> Counters {
    Counters { written, ..Counters::default() }
}

#[test]
fn a_finding_that_lasts_is_reported_once_in_each_of_its_hours() {
    let (mut server, mut plan) = (Server::default(), Plan::default());
    let finding = finding(1, Severity::Warning);
    raise(&mut plan, second(0), &finding);
    assert_eq!(server.serve(&mut plan, second(0)).len(), 1);
    let turn = turn(&finding, "n1");
    for hour in 0..3 {
        let turn = turn + hour * 3600;
        assert_eq!(plan.due(second(turn - 1)), Some(second(turn)));
        assert!(server.serve(&mut plan, second(turn - 1)).is_empty());
        assert_eq!(steps(&server.serve(&mut plan, second(turn))), [Step::Report]);
    }
    assert_eq!((server.events.len(), plan.counters()), (4, written(4)));
}

#[test]
fn one_node_of_a_slot_reports_and_ends_and_the_others_follow_in_the_next_hour() {
    let finding = finding(1, Severity::Critical);
    let mut server = Server::default();
    let nodes = of_one_slot(&finding, 3);
    let mut agents: Vec<(&String, Plan)> = nodes.iter().map(|node| (node, Plan::default())).collect();
    for (node, plan) in &mut agents {
        plan.offer(second(0), &Change::Raised(finding.clone()), &place(node));
        assert_eq!(steps(&server.serve(plan, second(0))), [Step::Report]);
    }
    assert_eq!(server.events.len(), 1);
    assert_eq!(agents[0].1.counters(), written(1));
    let silent = Counters { deduplicated: 1, ..Counters::default() };
    assert_eq!((agents[1].1.counters(), agents[2].1.counters()), (silent, silent));

    // After a restart, an agent reads the reporting instance of the Event. If another node wrote the Event, this agent
    // writes no end.
    let cleared = Change::Cleared(finding.clone(), Clearance::Repaired);
    let mut over = |server: &mut Server, agent: usize| {
        let (node, plan) = &mut agents[agent];
        plan.offer(second(60), &cleared, &place(node));
        steps(&server.serve(plan, second(60)))
    };
    assert_eq!((over(&mut server, 1), over(&mut server, 0)), (vec![Step::Read], vec![Step::End]));
    assert_eq!((server.openings().count(), server.events.len()), (1, 2));

    let turn = second(turn(&finding, "n0"));
    for (_, plan) in &mut agents {
        server.serve(plan, turn);
    }
    let reporters: BTreeSet<&str> = server.openings().map(|kept| kept.reporter.as_str()).collect();
    assert_eq!(reporters, BTreeSet::from(["portreeve-n0", &*format!("portreeve-{}", nodes[2])]));
    let (node, plan) = &mut agents[2];
    plan.offer(turn, &cleared, &place(node));
    assert_eq!(steps(&server.serve(plan, turn)), [Step::End]);
}

#[test]
fn a_node_that_is_silent_in_the_next_hour_still_ends_its_event_unless_it_has_expired() {
    let finding = finding(1, Severity::Critical);
    let nodes = of_one_slot(&finding, 2);
    let turn = turn(&finding, "n0");
    for (minutes, expected) in [(1, vec![Step::End]), (61, vec![])] {
        let (mut server, mut plan, mut other) = (Server::default(), Plan::default(), Plan::default());
        plan.offer(second(turn - 60), &Change::Raised(finding.clone()), &place(&nodes[0]));
        server.serve(&mut plan, second(turn - 60));
        other.offer(second(turn), &Change::Raised(finding.clone()), &place(&nodes[1]));
        server.serve(&mut other, second(turn));
        server.serve(&mut plan, second(turn));
        assert_eq!(plan.counters(), Counters { written: 1, deduplicated: 1, ..Counters::default() });
        let at = second(turn + minutes * 60 - 60);
        plan.offer(at, &Change::Cleared(finding.clone(), Clearance::Repaired), &place(&nodes[0]));
        assert_eq!(steps(&server.serve(&mut plan, at)), expected, "{minutes} minutes after its report");
    }
}

/// Fault (operator): the node that reports an incident is removed, or the node's agent restarts during the repair
/// Does: no *Resolved* Event follows; another affected node writes an Event
/// Right again: with the next hour of the incident
/// Lost: the end of the incident on the removed node
#[test]
fn a_node_that_has_gone_is_followed_by_another_in_the_next_hour() {
    let finding = finding(1, Severity::Critical);
    let nodes = of_one_slot(&finding, 2);
    let (mut server, mut gone, mut plan) = (Server::default(), Plan::default(), Plan::default());
    gone.offer(second(0), &Change::Raised(finding.clone()), &place(&nodes[0]));
    server.serve(&mut gone, second(0));
    plan.offer(second(0), &Change::Raised(finding.clone()), &place(&nodes[1]));
    server.serve(&mut plan, second(0));
    assert_eq!(plan.counters(), Counters { deduplicated: 1, ..Counters::default() });
    let turn = turn(&finding, "n0");
    assert!(server.serve(&mut plan, second(turn - 1)).is_empty());
    assert_eq!(steps(&server.serve(&mut plan, second(turn))), [Step::Report]);
    assert_eq!(plan.counters(), Counters { written: 1, deduplicated: 1, ..Counters::default() });
    assert_eq!(server.events.len(), 2);
}

#[test]
fn a_restarted_agent_writes_no_event_and_ends_the_event_of_the_one_before() {
    let finding = fresh(Severity::Critical);
    let (mut server, mut before) = (Server::default(), Plan::default());
    raise(&mut before, second(0), &finding);
    server.serve(&mut before, second(0));
    let mut plan = Plan::default();
    raise(&mut plan, minute(1), &finding);
    assert_eq!(steps(&server.serve(&mut plan, minute(1))), [Step::Report]);
    assert_eq!(plan.counters(), Counters { deduplicated: 1, ..Counters::default() });
    clear(&mut plan, minute(2), &finding);
    assert_eq!(steps(&server.serve(&mut plan, minute(2))), [Step::Read, Step::End]);
    assert_eq!(server.events.len(), 2);
}

#[test]
fn a_restarted_agent_ends_again_a_finding_that_came_back_before_the_restart() {
    let finding = fresh(Severity::Critical);
    let (mut server, mut before) = (Server::default(), Plan::default());
    raise(&mut before, second(0), &finding);
    server.serve(&mut before, second(0));
    clear(&mut before, minute(1), &finding);
    server.serve(&mut before, minute(1));
    raise(&mut before, minute(2), &finding);
    assert_eq!(steps(&server.serve(&mut before, minute(2))), [Step::ReportAgain]);
    let mut plan = Plan::default();
    raise(&mut plan, minute(3), &finding);
    assert_eq!(steps(&server.serve(&mut plan, minute(3))), [Step::Report]);
    clear(&mut plan, minute(4), &finding);
    assert_eq!(steps(&server.serve(&mut plan, minute(4))), [Step::Read, Step::End, Step::End]);
    assert_eq!(server.events.values().map(|kept| kept.count).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn a_lost_answer_does_not_lose_the_end() {
    let finding = fresh(Severity::Critical);
    for retried in [false, true] {
        let (mut server, mut plan) = (Server::default(), Plan::default());
        raise(&mut plan, second(0), &finding);
        let write = plan.next(second(0)).expect("a request");
        server.reply(second(0), &write);
        plan.answer(second(0), &write, Reply::Unavailable(None));
        if retried {
            assert_eq!(steps(&server.serve(&mut plan, minute(1))), [Step::Report]);
        }
        clear(&mut plan, minute(1), &finding);
        assert_eq!(steps(&server.serve(&mut plan, minute(1))), [Step::Read, Step::End], "retried: {retried}");
    }
}

#[test]
fn a_server_that_has_just_started_and_refuses_everything_does_not_lose_the_end() {
    let finding = fresh(Severity::Critical);
    for is_open in [false, true] {
        let (mut server, mut plan) = (Server::default(), Plan::default());
        raise(&mut plan, second(0), &finding);
        let write = plan.next(second(0)).expect("a request");
        server.reply(second(0), &write);
        plan.answer(second(0), &write, Reply::Unavailable(None));
        if !is_open {
            clear(&mut plan, minute(1), &finding);
        }
        let write = plan.next(minute(1)).expect("a request");
        plan.answer(minute(1), &write, Reply::Forbidden);
        if is_open {
            clear(&mut plan, minute(1), &finding);
        }
        assert_eq!(steps(&server.serve(&mut plan, minute(2))), [Step::Read, Step::End], "open: {is_open}");
    }
}

#[test]
fn findings_about_nodes_are_written_by_each_node_and_findings_about_the_cluster_once() {
    let (mut server, mut written) = (Server::default(), 0);
    for node in ["n1", "n2"] {
        let mut plan = Plan::default();
        let mut own = finding(1, Severity::Critical);
        own.key.subject = Subject { uid: Some(format!("uid-{node}")), ..Subject::node(node, None) };
        for finding in [own, of_the_cluster(2)] {
            plan.offer(second(0), &Change::Raised(finding), &place(node));
        }
        server.serve(&mut plan, second(0));
        written += plan.counters().written;
    }
    assert_eq!(written, 3, "each node's own, and one of the cluster: {:?}", server.events);
}

#[test]
fn a_fact_of_the_cluster_is_reported_by_another_agent_when_the_first_is_gone_and_ends_once() {
    let mut server = Server::default();
    let mut agents = ["n1", "n2", "n3"].map(|node| (node, Plan::default()));
    let finding = of_the_cluster(1);
    for (node, plan) in &mut agents {
        plan.offer(second(0), &Change::Raised(finding.clone()), &place(node));
        server.serve(plan, second(0));
    }
    assert_eq!(agents.each_ref().map(|(_, plan)| plan.counters().written), [1, 0, 0]);
    let turn = second(turn(&finding, "n1"));
    for (node, plan) in &mut agents[1..] {
        server.serve(plan, turn);
        plan.offer(turn, &Change::Cleared(finding.clone(), Clearance::Repaired), &place(node));
        server.serve(plan, turn);
    }
    assert_eq!(agents.each_ref().map(|(_, plan)| plan.counters().written), [1, 2, 0]);
    assert_eq!(server.openings().count() + 1, server.events.len());
}

#[test]
fn a_finding_that_became_another_variant_has_a_new_event_and_no_end_of_the_old_one() {
    let (mut server, mut plan) = (Server::default(), Plan::default());
    let was = of_the_cluster(1);
    raise(&mut plan, second(0), &was);
    assert_eq!(server.serve(&mut plan, second(0)).len(), 1);
    let mut worse = was.clone();
    worse.key.variant = "no-return";
    let change = |was: &Finding, is: &Finding| Change::Became(was.key.clone(), is.clone());
    plan.offer(second(10), &change(&was, &worse), &place("n1"));
    assert_eq!(steps(&server.serve(&mut plan, second(10))), [Step::Report]);
    let mut mild = worse.clone();
    (mild.key.variant, mild.evidence.severity) = ("trap", Severity::Info);
    plan.offer(second(20), &change(&worse, &mild), &place("n1"));
    assert_eq!(steps(&server.serve(&mut plan, second(20))), [Step::End]);
}

#[test]
fn info_has_no_event_and_a_finding_that_becomes_info_is_over() {
    let (mut server, mut plan) = (Server::default(), Plan::default());
    raise(&mut plan, second(0), &finding(1, Severity::Info));
    assert_eq!(plan.next(second(0)), None);
    raise(&mut plan, second(0), &finding(2, Severity::Warning));
    server.serve(&mut plan, second(0));
    plan.offer(second(1), &Change::Changed(finding(2, Severity::Info)), &place("n1"));
    assert_eq!(steps(&server.serve(&mut plan, second(1))), [Step::End]);
}

#[test]
fn a_finding_that_gets_worse_has_a_new_event_and_evidence_that_is_not_in_the_note_changes_nothing() {
    let (mut server, mut plan) = (Server::default(), Plan::default());
    raise(&mut plan, second(0), &finding(1, Severity::Warning));
    server.serve(&mut plan, second(0));
    plan.offer(second(1), &Change::Changed(finding(1, Severity::Critical)), &place("n1"));
    assert_eq!(steps(&server.serve(&mut plan, second(1))), [Step::Report]);
    let mut same = finding(1, Severity::Critical);
    same.evidence.values.push(("uid", "7".to_owned()));
    plan.offer(second(2), &Change::Changed(same), &place("n1"));
    assert_eq!(plan.next(second(2)), None);
}

#[test]
fn other_words_write_nothing_and_are_in_the_event_of_the_next_hour_even_if_the_object_was_not_read() {
    let first = finding(1, Severity::Warning);
    for uid in [first.key.subject.uid.clone(), None] {
        let (mut server, mut plan) = (Server::default(), Plan::default());
        raise(&mut plan, second(0), &first);
        server.serve(&mut plan, second(0));
        let mut reworded = about(
            1,
            Evidence::new(Severity::Warning, "it is wrong in other words.")
                .remedy(portreeve_rules::findings::Step::advice("take 30002")),
        );
        reworded.key.subject.uid = uid;
        plan.offer(second(1), &Change::Changed(reworded), &place("n1"));
        assert_eq!(plan.next(second(1)), None);
        let writes = server.serve(&mut plan, second(turn(&first, "n1")));
        let [Write { request: Request::Create(event), .. }] = &writes[..] else { panic!("{writes:?}") };
        let note = "On node n1: it is wrong in other words. All affected nodes: `kubectl portreeve check -n d --rule listener-on-node-port/loses -o wide` \
                    (at most five nodes write an Event in an hour). Who answers on the port: `kubectl portreeve owner 30080`. Remedy: take 30002";
        assert_eq!(event.note.as_deref(), Some(note));
        let regarding = event.regarding.as_ref().expect("an object");
        assert_eq!(regarding.uid, first.key.subject.uid);
    }
}

#[test]
fn the_end_is_written_once_and_only_if_the_beginning_was() {
    let (mut server, mut plan) = (Server::default(), Plan::default());
    let (early, late) = (fresh(Severity::Warning), finding(1000, Severity::Warning));
    raise(&mut plan, minute(0), &early);
    server.serve(&mut plan, minute(0));
    raise(&mut plan, minute(1), &late);
    clear(&mut plan, minute(1), &late);
    clear(&mut plan, minute(1), &early);
    assert_eq!(steps(&server.serve(&mut plan, minute(1))), [Step::End]);
    for now in 2..200 {
        assert_eq!(plan.next(minute(now)), None);
    }
    assert!(plan.findings.is_empty(), "an ended finding is forgotten when its Event has expired");
    assert_eq!(plan.counters(), written(2));
}

#[test]
fn the_end_belongs_to_the_written_event_if_a_worse_one_came_too_late() {
    let (mut server, mut plan) = (Server::default(), Plan::default());
    raise(&mut plan, second(0), &finding(1, Severity::Warning));
    let opening = server.serve(&mut plan, second(0)).remove(0);
    let other = finding(1, Severity::Critical);
    plan.offer(second(1), &Change::Changed(other.clone()), &place("n1"));
    clear(&mut plan, second(1), &other);
    let names: Vec<String> = server.serve(&mut plan, second(1)).into_iter().map(|write| write.name).collect();
    assert_eq!(names, [format!("{}.resolved", opening.name)]);
}

#[test]
fn an_event_of_another_node_is_not_reported_again_as_its_milder_form() {
    let [mild, worse] = [Severity::Warning, Severity::Critical].map(|severity| finding(1, severity));
    let nodes = of_one_slot(&worse, 2);
    let (mut server, mut other, mut plan) = (Server::default(), Plan::default(), Plan::default());
    other.offer(second(0), &Change::Raised(worse.clone()), &place(&nodes[0]));
    server.serve(&mut other, second(0));
    let mut asked = |at, change| {
        plan.offer(second(at), &change, &place(&nodes[1]));
        steps(&server.serve(&mut plan, second(at)))
    };
    assert_eq!(asked(0, Change::Raised(mild)), [Step::Report]);
    assert_eq!(asked(1, Change::Changed(worse.clone())), [Step::Report]);
    assert_eq!(asked(2, Change::Cleared(worse.clone(), Clearance::Repaired)), [Step::Read, Step::End]);
    assert_eq!(asked(3, Change::Raised(worse)), []);
}

#[test]
fn a_finding_that_comes_back_within_the_hour_is_counted_in_its_series_and_so_is_its_end() {
    let (mut server, mut plan) = (Server::default(), Plan::default());
    let finding = fresh(Severity::Warning);
    for round in 0..3 {
        raise(&mut plan, minute(10 * round), &finding);
        server.serve(&mut plan, minute(10 * round));
        clear(&mut plan, minute(10 * round + 4), &finding);
        server.serve(&mut plan, minute(10 * round + 4));
    }
    assert_eq!(server.events.values().map(|kept| kept.count).collect::<Vec<_>>(), [3, 3]);
    server.events.clear();
    raise(&mut plan, minute(30), &finding);
    assert_eq!(steps(&server.serve(&mut plan, minute(30))), [Step::ReportAgain, Step::Report]);
    clear(&mut plan, minute(31), &finding);
    server.serve(&mut plan, minute(31));
    raise(&mut plan, minute(32), &finding);
    server.serve(&mut plan, minute(32));
    server.events.retain(|name, _| !name.ends_with(".resolved"));
    clear(&mut plan, minute(33), &finding);
    assert_eq!(steps(&server.serve(&mut plan, minute(33))), [Step::End, Step::End]);
    assert_eq!(server.events.values().map(|kept| kept.count).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn a_silent_node_sends_nothing_if_its_finding_comes_back_in_the_hour() {
    let finding = fresh(Severity::Critical);
    let (mut server, mut first, mut plan) = (Server::default(), Plan::default(), Plan::default());
    let nodes = of_one_slot(&finding, 2);
    first.offer(second(0), &Change::Raised(finding.clone()), &place(&nodes[0]));
    server.serve(&mut first, second(0));
    let turned = turn(&finding, &nodes[0]) < 10 * 60;
    let mut asked = Vec::new();
    for round in 0..5 {
        plan.offer(minute(round), &Change::Raised(finding.clone()), &place(&nodes[1]));
        asked.extend(server.serve(&mut plan, minute(round)));
        let cleared = Change::Cleared(finding.clone(), Clearance::Repaired);
        plan.offer(second(round * 60 + 30), &cleared, &place(&nodes[1]));
        asked.extend(server.serve(&mut plan, second(round * 60 + 30)));
    }
    assert_eq!((turned, steps(&asked)), (false, vec![Step::Report, Step::Read]));
}

#[test]
fn a_finding_that_ends_or_comes_back_while_it_is_being_written_is_reported_as_it_is() {
    let (mut server, mut plan) = (Server::default(), Plan::default());
    let finding = fresh(Severity::Warning);
    raise(&mut plan, second(0), &finding);
    for expected in [Step::Report, Step::End, Step::ReportAgain, Step::End] {
        let write = plan.next(second(0)).expect("a request");
        assert_eq!(write.step, expected);
        let change = if matches!(expected, Step::End) { raise } else { clear };
        change(&mut plan, second(0), &finding);
        let reply = server.reply(second(0), &write);
        plan.answer(second(0), &write, reply);
    }
    server.serve(&mut plan, second(1));
    assert_eq!(server.events.values().map(|kept| kept.count).collect::<Vec<_>>(), [3, 2]);
}

#[test]
fn a_thousand_findings_at_once_are_written_within_budget_the_worst_first() {
    let (mut server, mut plan) = (Server::default(), Plan::default());
    for object in 0..1000 {
        let severity = if object % 100 == 7 { Severity::Critical } else { Severity::Warning };
        raise(&mut plan, second(0), &finding(object, severity));
    }
    let first = server.serve(&mut plan, second(0));
    let critical: BTreeSet<usize> = (0..1000).filter(|object| object % 100 == 7).collect();
    let object = |write: &Write| write.key.subject.uid.as_ref().expect("a uid")[4..].parse().expect("a number");
    assert_eq!(first.iter().map(object).collect::<BTreeSet<usize>>(), critical);
    assert_eq!(plan.due(second(1)), Some(second(10)));
    assert_eq!(server.serve(&mut plan, second(10)).len(), 1);
}

#[test]
fn of_too_many_findings_ended_ones_give_way_first_and_then_the_mildest_are_dropped_and_counted() {
    let mut plan = Plan::default();
    let over = finding(OPEN, Severity::Critical);
    raise(&mut plan, second(0), &over);
    clear(&mut plan, second(0), &over);
    assert!(plan.findings.is_empty(), "no reader saw it");
    raise(&mut plan, second(0), &over);
    Server::default().serve(&mut plan, second(0));
    clear(&mut plan, second(0), &over);
    Server::default().serve(&mut plan, second(0));
    for object in 0..OPEN - 1 {
        raise(&mut plan, second(0), &finding(object, Severity::Warning));
    }
    assert!(plan.findings.len() == OPEN && plan.findings.contains_key(&over.key));
    raise(&mut plan, second(0), &finding(OPEN + 1, Severity::Warning));
    assert!(plan.findings.len() == OPEN && !plan.findings.contains_key(&over.key));
    assert_eq!(plan.counters().dropped, 0);

    for object in 0..5 {
        raise(&mut plan, second(0), &finding(OPEN + 2 + object, Severity::Warning));
    }
    assert_eq!((plan.findings.len(), plan.counters().dropped), (OPEN, 5));
    raise(&mut plan, second(0), &finding(OPEN + 9, Severity::Critical));
    assert_eq!((plan.findings.len(), plan.counters().dropped), (OPEN, 6));
    assert!(plan.findings.values().any(|it| it.severity == Severity::Critical));
}

#[test]
fn a_finding_about_an_object_without_a_uid_is_counted_and_not_written() {
    let mut plan = Plan::default();
    let mut finding = finding(1, Severity::Critical);
    finding.key.subject.uid = None;
    raise(&mut plan, second(0), &finding);
    assert_eq!((plan.next(second(0)), plan.counters().failed), (None, 1));
}

#[test]
fn a_node_that_is_missing_once_ends_no_finding() {
    let (mut server, mut plan) = (Server::default(), Plan::default());
    let known = finding(1, Severity::Critical);
    raise(&mut plan, second(0), &known);
    server.serve(&mut plan, minute(60));
    assert_eq!(server.events.len(), 1);
    let mut missing = known.clone();
    missing.key.subject.uid = None;
    for (at, change) in [(61, missing), (62, known.clone())] {
        plan.offer(minute(at), &Change::Changed(change), &place("n1"));
        server.serve(&mut plan, minute(at));
    }
    assert_eq!(server.events.len(), 1, "no Event reports an end");
    plan.offer(minute(63), &Change::Cleared(known, Clearance::Gone), &place("n1"));
    server.serve(&mut plan, minute(63));
    assert_eq!(server.events.len(), 2);
}

#[test]
fn nodes_that_are_not_read_yet_delay_an_event_by_half_a_minute_at_most_and_only_until_they_are() {
    let unread = Place { nodes: None, ..place("n1") };
    for known in [false, true] {
        let (mut server, mut plan) = (Server::default(), Plan::default());
        for object in (0..).map(|object| finding(object, Severity::Critical)).filter(|it| turn(it, "n1") > 60).take(10)
        {
            plan.offer(second(0), &Change::Raised(object), &unread);
        }
        assert!(server.serve(&mut plan, second(0)).len() < 5);
        if known {
            plan.know(&place("n1"));
            plan.know(&unread);
        }
        server.serve(&mut plan, second(if known { 1 } else { 30 }));
        assert_eq!(server.events.len(), 10, "known: {known}");
    }
}

#[test]
fn of_the_cluster_only_the_last_reporter_writes_the_end() {
    let mut server = Server::default();
    let mut agents = ["n1", "n2"].map(|node| (node, Plan::default()));
    let with = |severity: Severity| about(1, Evidence::new(severity, "it is wrong everywhere.").in_cluster());
    let (mild, bad) = (with(Severity::Warning), with(Severity::Critical));
    for (node, plan) in &mut agents {
        plan.offer(second(0), &Change::Raised(mild.clone()), &place(node));
        server.serve(plan, second(0));
    }
    // The agent of n2 is the first to report that the finding is worse.
    for (node, plan) in agents.iter_mut().rev() {
        plan.offer(second(60), &Change::Changed(bad.clone()), &place(node));
        server.serve(plan, second(60));
    }
    assert_eq!(server.events.len(), 2);
    for (node, plan) in &mut agents {
        plan.offer(second(120), &Change::Cleared(bad.clone(), Clearance::Repaired), &place(node));
        server.serve(plan, second(120));
    }
    assert_eq!((server.openings().count(), server.events.len()), (2, 3));
}

#[test]
fn ten_requests_are_made_at_once_and_then_one_each_ten_seconds() {
    let mut budget = Budget::default();
    let mut spent = Vec::new();
    for now in 0..35 {
        while budget.ready(second(now)) <= second(now) {
            budget.take(second(now));
            spent.push(now);
        }
    }
    let mut expected = vec![0; 10];
    expected.extend([10, 20, 30]);
    assert_eq!(spent, expected);
}

#[test]
fn a_clock_that_was_set_back_does_not_silence_it() {
    let mut budget = Budget::default();
    budget.take(second(1_000_000_000));
    assert_eq!(budget.ready(second(0)), second(0));
}
