//! Any order of changes and answers.

use proptest::prelude::*;

use super::*;

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
        let (mut server, mut events) = (Server::default(), Plan::default());
        let mut now = 0;
        let mut written: Vec<(i64, String)> = Vec::new();
        for step in steps {
            match step {
                Step::Pass(seconds) => now += seconds,
                Step::Raise(object, severity) => raise(&mut events, second(now), &finding(object, severity)),
                Step::Clear(object) => clear(&mut events, second(now), &finding(object, Severity::Warning)),
                Step::Serve(how) => while let Some(write) = events.next(second(now)) {
                    if !write.request.is_light() {
                        let sent = events.findings.values().find(|it| it.in_flight.is_some_and(|it| it.ticket == write.ticket));
                        written.push((now, sent.expect("its finding").object().to_owned()));
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
        let (mut server, mut events) = (Server::default(), Plan::default());
        let findings: Vec<Finding> = (0..objects).map(|object| finding(object, Severity::Critical)).collect();
        for finding in &findings {
            raise(&mut events, second(0), finding);
        }
        for now in 0..1000 {
            server.serve(&mut events, second(now * 10));
        }
        let before = server.events.clone();
        let mut fresh = Plan::default();
        for finding in &findings {
            raise(&mut fresh, second(10_000), finding);
        }
        for now in 0..=restart {
            server.serve(&mut fresh, second(10_000 + now));
        }
        prop_assert_eq!(&server.events, &before);
        prop_assert_eq!(fresh.counters().written, 0);
        prop_assert_eq!(fresh.counters().deduplicated, server.openings().count().min(20 + restart as usize / 5) as u64);
    }

    #[test]
    fn a_finding_has_one_event_however_often_it_comes_and_goes(steps in proptest::collection::vec(any_step(), 0..200)) {
        let (mut server, mut events) = (Server::default(), Plan::default());
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
        let ends = server.events.keys().filter(|name| name.ends_with(".resolved")).count();
        prop_assert!(ends <= server.openings().count(), "only what began can end");
    }
}
