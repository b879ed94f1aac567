//! Tests of the plan of Events with changes of findings, and answers of the API server, in random order.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Do {
    Pass(i64),
    Raise(usize, Severity),
    Clear(usize),
    Serve(u8),
}

fn anything() -> impl Strategy<Value = Do> {
    prop_oneof![
        2 => (0i64..400).prop_map(Do::Pass),
        3 => (0usize..6, prop_oneof![Just(Severity::Warning), Just(Severity::Critical)])
            .prop_map(|(object, severity)| Do::Raise(object, severity)),
        2 => (0usize..6).prop_map(Do::Clear),
        6 => (0u8..10).prop_map(Do::Serve),
    ]
}

proptest! {
    #[test]
    fn no_order_of_changes_and_answers_breaks_the_budget_or_ends_what_never_began(
        actions in proptest::collection::vec(anything(), 0..300),
    ) {
        let (mut server, mut plan) = (Server::default(), Plan::default());
        let (mut now, mut asked) = (0, Vec::new());
        for action in actions {
            match action {
                Do::Pass(seconds) => now += seconds,
                Do::Raise(object, severity) => raise(&mut plan, second(now), &finding(object, severity)),
                Do::Clear(object) => clear(&mut plan, second(now), &finding(object, Severity::Warning)),
                Do::Serve(how) => while let Some(write) = plan.next(second(now)) {
                    asked.push(now);
                    let reply = match how {
                        0 => Reply::Unavailable(None),
                        1 => { server.reply(second(now), &write); Reply::Unavailable(None) }
                        2 => Reply::Missing,
                        3 => Reply::Forbidden,
                        4 if matches!(write.request, Request::Create(_)) => Reply::Exists,
                        _ => server.reply(second(now), &write),
                    };
                    plan.answer(second(now), &write, reply);
                },
            }
        }
        for (from, first) in asked.iter().enumerate() {
            for (index, last) in asked[from..].iter().enumerate() {
                prop_assert!((last - first) / 10 + 10 > index as i64, "{asked:?}");
            }
        }
        let began = |name: &String| name.strip_suffix(".resolved").is_none_or(|name| server.events.contains_key(name));
        prop_assert!(server.events.keys().all(began), "{:?}", server.events);
    }

    #[test]
    fn a_restart_writes_nothing_new(objects in 1usize..12) {
        let (mut server, mut plan) = (Server::default(), Plan::default());
        let findings = (0..).map(|object| finding(object, Severity::Critical)).filter(|it| turn(it, "n1") > 500);
        let findings: Vec<Finding> = findings.take(objects).collect();
        for finding in &findings {
            raise(&mut plan, second(0), finding);
        }
        for now in 0..20 {
            server.serve(&mut plan, second(now * 10));
        }
        let before = server.events.clone();
        let mut fresh = Plan::default();
        for finding in &findings {
            raise(&mut fresh, second(200), finding);
        }
        for now in 20..40 {
            server.serve(&mut fresh, second(now * 10));
        }
        prop_assert_eq!(&server.events, &before);
        prop_assert_eq!(fresh.counters(), Counters { deduplicated: objects as u64, ..Counters::default() });
    }

    #[test]
    fn a_finding_that_comes_and_goes_has_one_event_an_hour(actions in proptest::collection::vec(anything(), 0..200)) {
        let (mut server, mut plan) = (Server::default(), Plan::default());
        let (mut now, mut raised) = (0, BTreeSet::new());
        for action in actions {
            match action {
                Do::Pass(seconds) => now += seconds,
                Do::Raise(object, _) => {
                    raised.insert(object);
                    raise(&mut plan, second(now), &finding(object, Severity::Warning));
                }
                Do::Clear(object) => clear(&mut plan, second(now), &finding(object, Severity::Warning)),
                Do::Serve(_) => {
                    server.serve(&mut plan, second(now));
                }
            }
            let hours = now as usize / 3600 + 2;
            prop_assert!(server.openings().count() <= raised.len() * hours);
        }
    }
}
