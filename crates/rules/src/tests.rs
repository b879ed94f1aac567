//! Tests that every rule must pass.

use std::collections::{BTreeMap, BTreeSet};

use super::{expectations::blank, *};
use crate::findings::{Evidence, RuleId, Severity, Verdict};
use portreeve_facts::{Mode, Snapshot, Why};

#[test]
fn every_variant_is_reported_by_one_rule_or_by_lint() {
    let mut seen = BTreeSet::new();
    for rule in RULES {
        for variant in rule.variants {
            assert!(rule.id.variant(variant).is_some(), "{} is on no list", rule.rows());
            assert!(seen.insert((rule.name(), *variant)), "{}/{variant} is of two rules", rule.name());
        }
    }
    for rows in lint::lint_rules() {
        let id = ids::find(rows.rule.0).unwrap_or_else(|| panic!("{rows}"));
        assert!(rows.variants.iter().all(|variant| id.variant(variant).is_some()), "{rows}");
        seen.extend(rows.variants.iter().map(|variant| (rows.rule, *variant)));
    }
    let all = ids::IDS.iter().flat_map(|id| id.variants.iter().map(|variant| (id.name, variant.name)));
    assert_eq!(seen, all.collect());
}

#[test]
fn a_setting_is_reported_at_once_and_a_socket_after_two_scans() {
    assert!(ipvs_holds_foreign_address::RULE.at_once);
    assert!(!listener_on_node_port::RULE.at_once);
}

#[test]
fn nothing_is_wrong_with_a_healthy_node_in_any_mode() {
    for mode in Mode::KUBE_PROXY {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).with_mode(mode);
        for rule in RULES {
            let judgements = ask(rule, &world).unwrap_or_default();
            let wrong = judgements.iter().find(|judgement| matches!(judgement.verdict, Verdict::Problem(_)));
            assert!(wrong.is_none(), "{}: {wrong:#?}", rule.rows());
        }
    }
}

#[test]
fn without_a_fact_that_it_needs_a_rule_says_which_one_and_nothing_else() {
    let of_files = [&pod_port_of_daemon::RULE, &pod_port_in_ephemeral_range::RULE];
    for rule in RULES {
        let is_of_files = of_files.iter().any(|it| std::ptr::eq(*rule, *it));
        assert!(is_of_files || !rule.needs.is_empty(), "{} needs nothing", rule.rows());
        for need in rule.needs {
            let mut world = Snapshot::healthy().service("web", |it| it.node_port(30080));
            blank(&mut world, *need);
            let gap = ask(rule, &world).expect_err(&format!("{} judged without {need:?}", rule.rows()));
            assert_eq!(gap.source, *need, "{}", rule.rows());
        }
    }
}

#[test]
fn a_rule_that_panics_is_contained() {
    static ID: ids::Id = ids::Id { name: RuleId("broken"), title: "It panics", page: "", variants: &[] };
    static BROKEN: Rule = Rule::of(&ID, &[], &[], |_, _| panic!("broken"));
    let world = Snapshot::healthy();
    let opinion = Opinion::of(&BROKEN, &Round::of(&world, None, 60), &Limits::default());
    assert!(opinion.judgements.is_none());
}

#[test]
fn where_sockets_of_udp_are_too_many_the_others_are_judged_and_all_else_is_unknown() {
    let mut world = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
    world.kernel.no_udp = Some(Gap::new(Source::Listeners, Why::TooMuch, "more than are read"));
    let round = Round::of(&world, None, 60);
    let of = |rule| Opinion::of(rule, &round, &Limits::default());
    let judged = of(&listener_on_node_port::RULE).judgements.expect("no panic").expect("judged");
    let of_tcp = judged.iter().any(|it| it.protocol == Some(Protocol::Tcp) && it.verdict.severity().is_some());
    let of_all =
        |it: &Judgement| it.port.is_none() && matches!(&it.verdict, Verdict::Unknown(gap) if gap.why == Why::TooMuch);
    assert!(of_tcp && judged.iter().any(of_all), "{judged:?}");
    let others = of(&node_port_range_crowded::RULE).judgements.expect("no panic").expect("judged");
    assert!(!others.iter().any(of_all), "it looks at no sockets");
    assert_eq!(world.kernel.unread_listeners().map(|gap| gap.why), Some(Why::TooMuch));
}

#[test]
fn without_udp_what_is_said_of_all_sockets_is_kept_where_it_is_bad() {
    let world = Snapshot::healthy();
    let judgement =
        |protocol, verdict| Judgement { subject: Subject::this_node(&world), port: None, protocol, verdict };
    let bad = || Verdict::Problem(Evidence::new(Severity::Warning, "bad"));
    let (tcp, udp) = (Some(Protocol::Tcp), Some(Protocol::Udp));
    let gap = Gap::new(Source::Listeners, Why::TooMuch, "more than are read");
    let left = |protocol, verdict| without_udp(&world, vec![judgement(protocol, verdict)], &gap).len() == 2;
    assert!(left(tcp, Verdict::Healthy) && left(tcp, bad()) && left(None, bad()));
    assert!(!left(None, Verdict::Healthy), "nobody knows");
    assert!(!left(udp, Verdict::Healthy) && !left(udp, bad()));
}

fn ask(rule: &Rule, world: &Snapshot) -> Judgements {
    rule.judge(&Round::of(world, None, 60), &Limits::default())
}

#[test]
fn nothing_is_spared_where_every_rule_is_asked() {
    assert_eq!(skipped(RULES), BTreeSet::new());
    assert_eq!(skipped(&[]), SELDOM.into());
}

#[test]
fn one_report_never_gives_one_number_to_two_services() {
    let ports = 30080..30092;
    let world = ports.clone().fold(Snapshot::healthy(), |world, port| {
        world.service(&format!("s{port}"), |it| it.node_port(port)).listens(&format!("0.0.0.0:{port}"))
    });
    let mut given = BTreeMap::<u16, BTreeSet<String>>::new();
    for rule in RULES {
        for judgement in ask(rule, &world).unwrap_or_default() {
            let Verdict::Problem(evidence) = judgement.verdict else { continue };
            for step in evidence.remedies.iter().flat_map(|remedy| &remedy.steps) {
                let value = step.text.rsplit_once("\"value\":").map(|(_, rest)| rest);
                let number = value.and_then(|rest| rest.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok());
                if let Some(number) = number {
                    given.entry(number).or_default().insert(judgement.subject.to_string());
                }
            }
        }
    }
    assert_eq!(given.len(), ports.len(), "{given:?}");
    assert!(given.values().all(|services| services.len() == 1), "{given:?}");
}
