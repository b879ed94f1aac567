//! One problem on several nodes: who tells, who stays silent, and who tells next.

use super::*;
use crate::events::Mark;

/// So many nodes of the voice of `n0`.
fn of_one_voice(count: usize) -> Vec<String> {
    let gate = |node: &str| {
        let event = PlannedEvent::of(&finding(1, Severity::Critical), &place(node)).expect("a uid");
        event.as_gate().expect("a gate").name
    };
    let first = gate("n0");
    (0..).map(|number| format!("n{number}")).filter(|node| gate(node) == first).take(count).collect()
}

struct Stage {
    server: Server,
    agents: Vec<(String, Plan)>,
}

impl Stage {
    fn new(nodes: usize) -> Self {
        Self {
            server: Server::that_forgets(),
            agents: of_one_voice(nodes).into_iter().map(|node| (node, Plan::default())).collect(),
        }
    }

    fn raise(&mut self, now: i64, agent: usize) {
        self.change(now, agent, &Change::Raised(finding(1, Severity::Critical)));
    }

    fn clear(&mut self, now: i64, agent: usize) {
        self.change(now, agent, &Change::Cleared(finding(1, Severity::Critical), Clearance::Repaired));
    }

    fn change(&mut self, now: i64, agent: usize, change: &Change) {
        let (node, plan) = &mut self.agents[agent];
        plan.offer(minute(now), change, &place(node));
        self.server.serve(plan, minute(now));
    }

    /// Every minute of this time.
    fn pass(&mut self, minutes: std::ops::Range<i64>) {
        for now in minutes {
            for (_, plan) in &mut self.agents {
                self.server.serve(plan, minute(now));
            }
            self.server.expire(minute(now));
        }
    }

    /// The nodes of which the server has an Event that warns, and those of which it has an end.
    fn read(&self) -> (Vec<&str>, Vec<&str>) {
        let node = |kept: &'_ model::Kept| self.agents.iter().position(|(node, _)| Some(node) == kept.node.as_ref());
        let (mut open, mut over) = (Vec::new(), Vec::new());
        for (name, kept) in &self.server.events {
            let node = self.agents[node(kept).expect("a node")].0.as_str();
            if name.ends_with(".resolved") { over.push(node) } else { open.push(node) }
        }
        open.sort_unstable();
        (open, over)
    }

    fn node(&self, agent: usize) -> &str {
        &self.agents[agent].0
    }

    fn counters(&self, agent: usize) -> Counters {
        self.agents[agent].1.counters()
    }
}

#[test]
fn one_node_of_a_voice_tells_and_the_others_are_silent_about_beginning_and_end() {
    let mut stage = Stage::new(3);
    (0..3).for_each(|agent| stage.raise(0, agent));
    stage.pass(0..120);
    assert_eq!(stage.read(), (vec![stage.node(0)], vec![]));
    for agent in [1, 2] {
        assert_eq!(stage.counters(agent), Counters { deduplicated: 1, ..Counters::default() });
        stage.clear(120, agent);
    }
    stage.clear(120, 0);
    stage.pass(120..122);
    assert_eq!(stage.read(), (vec![stage.node(0)], vec![stage.node(0)]));
    stage.pass(122..300);
    assert_eq!(stage.read(), (vec![], vec![]), "what has expired is not written again");
}

#[test]
fn when_the_holder_is_repaired_another_takes_the_voice_within_minutes_and_has_the_gate_once_it_has_expired() {
    let mut stage = Stage::new(3);
    (0..3).for_each(|agent| stage.raise(0, agent));
    stage.clear(1, 0);
    stage.pass(1..16);
    let (open, over) = stage.read();
    assert_eq!((open.len(), over), (2, vec![stage.node(0)]), "the one that is over, and the next");
    let (next, other) = if stage.counters(1).written > 0 { (1, 2) } else { (2, 1) };
    assert!(open.contains(&stage.node(next)));
    stage.pass(16..100);
    assert_eq!(stage.read(), (vec![stage.node(next)], vec![]), "one Event for the voice");
    assert_eq!(stage.counters(other).written, 0);
    stage.clear(100, next);
    stage.pass(100..118);
    assert!(stage.read().0.contains(&stage.node(other)));
    stage.clear(118, other);
    stage.pass(118..120);
    let (_, mut over) = stage.read();
    over.sort_unstable();
    let mut both = [stage.node(next), stage.node(other)];
    both.sort_unstable();
    assert_eq!(over, both, "each that told has its end");
}

#[test]
fn a_holder_that_is_gone_is_followed_when_its_event_has_expired() {
    let mut stage = Stage::new(2);
    (0..2).for_each(|agent| stage.raise(0, agent));
    stage.agents[0].1 = Plan::default();
    stage.pass(0..85);
    assert_eq!(stage.read().0, [stage.node(1)]);
}

#[test]
fn a_holder_that_is_gone_is_followed_where_the_server_keeps_events_for_a_day() {
    let mut stage = Stage::new(2);
    stage.server = Server::that_forgets_after(SignedDuration::from_hours(24));
    (0..2).for_each(|agent| stage.raise(0, agent));
    stage.pass(0..180);
    assert_eq!(stage.read().0, [stage.node(0)], "a holder that tells is not followed");
    stage.agents[0].1 = Plan::default();
    stage.pass(180..180 + 60 + 75);
    assert!(stage.read().0.contains(&stage.node(1)));
    assert_eq!(stage.server.openings().filter_map(|(_, kept)| kept.mark.clone()).count(), 1);
}

/// Fault (operator): the node that tells of an incident is removed, or its agent is restarted while the node is repaired
/// Does: nothing, and its Event has no end; once it has expired, another affected node tells of itself
/// Right again: within an hour and a quarter, or where the server keeps Events for longer, within two hours and a quarter
/// Lost: that it is over on the node that has gone
#[test]
fn a_holder_that_is_gone_is_followed_within_an_hour_and_a_quarter() {
    for gone in [1, 6, 30, 69, 71] {
        let mut stage = Stage::new(2);
        (0..2).for_each(|agent| stage.raise(0, agent));
        stage.pass(0..gone);
        stage.agents[0].1 = Plan::default();
        stage.pass(gone..gone + 75);
        assert!(stage.read().0.contains(&stage.node(1)), "gone at {gone}");
    }
}

#[test]
fn a_holder_that_restarts_goes_on_and_one_that_is_hit_again_tells_it_unless_another_does() {
    let mut stage = Stage::new(2);
    (0..2).for_each(|agent| stage.raise(0, agent));
    stage.agents[0].1 = Plan::default();
    stage.raise(1, 0);
    assert_eq!(stage.counters(0), Counters { deduplicated: 1, ..Counters::default() });
    stage.pass(1..16);
    let count = |stage: &Stage| stage.server.openings().map(|(_, kept)| kept.series.count).collect::<Vec<_>>();
    assert_eq!(count(&stage), [3]);
    stage.clear(16, 0);
    stage.raise(17, 0);
    assert_eq!(count(&stage), [4], "it is told again at once");
    stage.clear(18, 0);
    stage.pass(18..34);
    stage.raise(34, 0);
    stage.pass(34..36);
    let mut open = stage.read().0;
    open.dedup();
    assert_eq!(open.len(), 2);
    let held: Vec<_> = stage.server.openings().filter_map(|(_, kept)| kept.mark.clone()).collect();
    assert_eq!(held, [Mark { node: stage.node(1).to_owned(), over: false }]);
}

#[test]
fn who_writes_beside_a_gate_of_another_repeats_its_own_event_after_a_restart_too() {
    let mut stage = Stage::new(2);
    (0..2).for_each(|agent| stage.raise(0, agent));
    stage.clear(1, 0);
    stage.pass(1..17);
    let own = |stage: &Stage| {
        let mut own = stage.server.openings().filter(|(_, kept)| kept.mark.is_none());
        own.next().map(|(_, kept)| (kept.node.clone().expect("a node"), kept.series.count))
    };
    let before = own(&stage).expect("its own Event");
    assert_eq!(before.0, stage.node(1));
    stage.agents[1].1 = Plan::default();
    stage.raise(17, 1);
    assert_eq!(own(&stage), Some(before.clone()), "a restart writes nothing");
    stage.pass(17..30);
    let repeated = own(&stage).expect("its own Event");
    assert!(repeated.1 > before.1, "{repeated:?}");
    stage.clear(30, 1);
    assert_eq!(stage.read().1.len(), 2);
    stage.raise(31, 1);
    assert_eq!(own(&stage), Some((before.0, repeated.1 + 1)), "open again, told at once");
}

#[test]
fn what_comes_and_goes_is_told_by_the_node_that_told_before_unless_that_is_well() {
    for again in [true, false] {
        let mut stage = Stage::new(2);
        stage.raise(0, 0);
        stage.clear(1, 0);
        stage.raise(2, 1);
        assert_eq!(stage.read().0, [stage.node(0)], "it waits whether the other is hit again");
        if again {
            stage.raise(2, 0);
        }
        stage.pass(3..4);
        assert_eq!(stage.read().0.contains(&stage.node(1)), !again);
    }
}

impl Stage {
    /// Two nodes, the first of which told and was repaired, until the second is about to write its own Event.
    fn until_second_writes_its_own() -> (Self, Write, i64) {
        let mut stage = Self::new(2);
        (0..2).for_each(|agent| stage.raise(0, agent));
        stage.clear(1, 0);
        for now in 2..20 {
            while let Some(write) = stage.agents[1].1.next(minute(now)) {
                if matches!(write.request, Request::Create(_)) {
                    return (stage, write, now);
                }
                let reply = stage.server.reply(minute(now), &write);
                stage.agents[1].1.answer(minute(now), &write, reply);
            }
        }
        panic!("it writes no Event of its own");
    }

    /// Whether the gate says that the voice can be had.
    fn is_free(&self) -> bool {
        let marks: Vec<bool> = self.server.openings().filter_map(|(_, kept)| Some(kept.mark.as_ref()?.over)).collect();
        assert!(!marks.is_empty());
        marks.into_iter().all(|over| over)
    }
}

#[test]
fn a_voice_that_was_taken_and_not_told_is_given_back_without_an_end() {
    let busy = Reply::Unavailable(Some(SignedDuration::from_secs(90)));
    for reply in [busy, Reply::Unavailable(None), Reply::Forbidden, Reply::Stuck, Reply::Refused] {
        let (mut stage, write, now) = Stage::until_second_writes_its_own();
        stage.agents[1].1.answer(minute(now), &write, reply.clone());
        assert!(!stage.is_free(), "{reply:?}");
        stage.clear(now, 1);
        stage.pass(now..now + 12);
        assert!(stage.is_free(), "{reply:?}");
        let (open, over) = stage.read();
        assert!(!open.contains(&stage.node(1)), "{reply:?}");
        let is_lost = matches!(reply, Reply::Unavailable(_));
        assert!(is_lost || !over.contains(&stage.node(1)), "{reply:?}");
        assert_eq!(stage.agents[1].1.due(minute(now + 12)), None, "{reply:?}");
    }
}

#[test]
fn an_event_whose_answer_was_lost_has_its_end_and_its_voice_is_given_back() {
    let (mut stage, write, now) = Stage::until_second_writes_its_own();
    assert_eq!(stage.server.reply(minute(now), &write), Reply::Written);
    stage.agents[1].1.answer(minute(now), &write, Reply::Unavailable(None));
    stage.clear(now, 1);
    stage.pass(now..now + 3);
    let (open, over) = stage.read();
    assert!(stage.is_free() && open.contains(&stage.node(1)) && over.contains(&stage.node(1)));
}

#[test]
fn a_voice_whose_answer_was_lost_is_given_back_by_one_of_another_severity_that_is_over_at_once() {
    let mut stage = Stage::new(1);
    let (plan, server) = (&mut stage.agents[0].1, &mut stage.server);
    let place = place("n0");
    plan.offer(minute(0), &Change::Raised(finding(1, Severity::Critical)), &place);
    for lost in [false, true] {
        let write = plan.next(minute(0)).expect("a request");
        let reply = server.reply(minute(0), &write);
        plan.answer(minute(0), &write, if lost { Reply::Unavailable(None) } else { reply });
    }
    plan.offer(minute(0), &Change::Changed(finding(1, Severity::Warning)), &place);
    plan.offer(minute(0), &Change::Cleared(finding(1, Severity::Warning), Clearance::Repaired), &place);
    stage.pass(0..3);
    assert!(stage.is_free());
}

#[test]
fn an_event_beside_a_gate_that_stands_under_its_own_end_is_told_anew() {
    let (mut stage, write, now) = Stage::until_second_writes_its_own();
    let reply = stage.server.reply(minute(now), &write);
    stage.agents[1].1.answer(minute(now), &write, reply);
    stage.clear(now + 1, 1);
    let count = |stage: &Stage| stage.server.events[&write.name].series.count;
    assert_eq!(count(&stage), 1);
    stage.agents[1].1 = Plan::default();
    stage.raise(now + 2, 1);
    assert_eq!(count(&stage), 2, "its end is the older word");
    assert!(!stage.is_free());
    stage.agents[1].1 = Plan::default();
    stage.raise(now + 3, 1);
    assert_eq!(count(&stage), 2, "a restart alone tells nothing");
}

#[test]
fn a_voice_of_another_severity_is_given_back() {
    let mut stage = Stage::new(1);
    stage.raise(0, 0);
    stage.change(1, 0, &Change::Changed(finding(1, Severity::Warning)));
    let over: Vec<bool> = stage.server.openings().map(|(_, it)| it.mark.as_ref().expect("a mark").over).collect();
    assert_eq!(over.iter().filter(|over| **over).count(), 1, "{over:?}");
}
