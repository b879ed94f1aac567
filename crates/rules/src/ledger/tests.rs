use proptest::prelude::*;

use super::*;
use crate::findings::{RuleId, Scope, Severity, SubjectKind, Vantage};
use portreeve_facts::{Protocol, Source, Why};

const ROWS: Rows = Rows { rule: RuleId("a-rule"), variants: &["", "other"] };

fn problem(name: &str, severity: Severity) -> Judgement {
    judgement(name, Verdict::Problem(Evidence::new(severity, "it is wrong")))
}

fn judgement(name: &str, verdict: Verdict) -> Judgement {
    Judgement { subject: Subject::node(name, None), port: None, protocol: None, verdict }
}

fn gap() -> Gap {
    Gap::new(Source::Listeners, Why::Torn, "three times")
}

fn turn(patience: u8, judgements: Judgements) -> Vec<Turn> {
    let settle = (patience > 1).then_some(Duration::ZERO);
    vec![Turn { rows: ROWS, settle, unread: Arc::default(), judgements }]
}

fn second(second: u64) -> RoundTime {
    RoundTime { at: wall(second), since_start: Duration::from_secs(second) }
}

fn wall(second: u64) -> Timestamp {
    Timestamp::from_second(second.try_into().expect("a small number")).expect("a time")
}

#[test]
fn a_patient_rule_raises_on_the_second_consecutive_round_and_dates_from_the_first() {
    let mut ledger = Ledger::default();
    assert_eq!(ledger.advance(second(1), turn(2, Ok(vec![problem("n", Severity::Warning)]))), []);
    let changes = ledger.advance(second(2), turn(2, Ok(vec![problem("n", Severity::Warning)])));
    assert!(matches!(&changes[..], [Change::Raised(finding)] if finding.since == wall(1)));
}

#[test]
fn a_rule_that_is_not_asked_keeps_what_it_has_and_a_round_without_it_is_none_of_its_patience() {
    let mut ledger = Ledger::default();
    let other = |judgements| {
        vec![Turn { rows: Rows { rule: RuleId("another-rule"), variants: &[""] }, ..turn(2, judgements).remove(0) }]
    };
    ledger.advance(second(1), turn(2, Ok(vec![problem("n", Severity::Warning)])));
    assert_eq!(ledger.advance(second(2), other(Err(gap()))), []);
    assert_eq!(ledger.board().unknown.len(), 1);
    let changes = ledger.advance(second(3), turn(2, Ok(vec![problem("n", Severity::Warning)])));
    assert!(matches!(&changes[..], [Change::Raised(finding)] if finding.since == wall(1)));
    assert_eq!(ledger.board().unknown.len(), 1, "the other one could not tell");
    assert_eq!(ledger.advance(second(4), other(Ok(Vec::new()))), []);
    assert_eq!((ledger.board().findings.len(), ledger.board().unknown.len()), (1, 0));
}

#[test]
fn rounds_that_follow_each_other_fast_do_not_exhaust_patience() {
    let mut ledger = Ledger::default();
    let mut advance = |at| {
        let judgements = Ok(vec![problem("n", Severity::Warning)]);
        let settle = Some(Duration::from_secs(5));
        ledger.advance(second(at), vec![Turn { rows: ROWS, settle, unread: Arc::default(), judgements }])
    };
    assert_eq!((advance(1), advance(2), advance(3)), (vec![], vec![], vec![]));
    assert!(matches!(&advance(6)[..], [Change::Raised(finding)] if finding.since == wall(1)));
}

#[test]
fn a_round_without_the_problem_starts_patience_anew() {
    let mut ledger = Ledger::default();
    for round in [vec![problem("n", Severity::Warning)], vec![], vec![problem("n", Severity::Warning)]] {
        assert_eq!(ledger.advance(second(1), turn(2, Ok(round))), []);
    }
}

#[test]
fn another_severity_is_a_change_when_it_lasts_as_long_as_the_first_did() {
    let mut ledger = Ledger::default();
    let mut advance = |at, severity| ledger.advance(second(at), turn(2, Ok(vec![problem("n", severity)])));
    assert_eq!((advance(1, Severity::Warning).len(), advance(2, Severity::Warning).len()), (0, 1));
    for at in [3, 5] {
        assert_eq!(advance(at, Severity::Critical), [], "one round is none");
        assert_eq!(advance(at + 1, Severity::Warning), []);
    }
    assert_eq!(advance(7, Severity::Critical), []);
    let changes = advance(8, Severity::Critical);
    assert!(matches!(&changes[..], [Change::Changed(finding)] if finding.since == wall(1)), "{changes:#?}");
}

#[test]
fn another_scope_or_outcome_is_a_change_that_must_last_and_other_words_are_taken_over_at_once() {
    let first = || Evidence::new(Severity::Warning, "it is wrong").affects([Vantage::Pods]);
    let reworded = Evidence { summary: "move it to 30001".to_owned(), ..first() }
        .remedy(crate::findings::Step::advice("move it"))
        .value("pid", 7);
    let turn = |evidence: &Evidence| turn(2, Ok(vec![judgement("n", Verdict::Problem(evidence.clone()))]));
    for other in [first().in_cluster(), first().outcome("refused")] {
        let mut ledger = Ledger::default();
        ledger.advance(second(1), turn(&first()));
        ledger.advance(second(2), turn(&first()));
        assert_eq!(ledger.advance(second(3), turn(&other)), [], "one round is none");
        let changes = ledger.advance(second(4), turn(&reworded));
        assert!(matches!(&changes[..], [Change::Changed(it)] if it.evidence == reworded), "{changes:#?}");
        assert_eq!(ledger.advance(second(5), turn(&other)), [], "patience begins anew");
        let changes = ledger.advance(second(6), turn(&other));
        assert!(matches!(&changes[..], [Change::Changed(it)] if it.evidence == other), "{changes:#?}");
    }
}

#[test]
fn what_one_round_says_of_the_node_and_of_the_cluster_under_one_key_is_one_finding_about_the_node() {
    let mut ledger = Ledger::default();
    let everywhere = Evidence::new(Severity::Critical, "everywhere").in_cluster();
    let here = Evidence::new(Severity::Warning, "here");
    let round =
        |all: &[&Evidence]| turn(1, Ok(all.iter().map(|it| judgement("n", Verdict::Problem((*it).clone()))).collect()));
    ledger.advance(second(1), round(&[&everywhere]));
    assert_eq!(ledger.board().findings[0].evidence.scope, Scope::Cluster);
    let changes = ledger.advance(second(2), round(&[&everywhere, &here]));
    assert!(matches!(&changes[..], [Change::Changed(it)] if it.since == wall(1)), "{changes:#?}");
    let board = ledger.board();
    let evidence = &board.findings[0].evidence;
    assert_eq!((board.findings.len(), evidence.scope, evidence.severity), (1, Scope::Node, Severity::Critical));
    ledger.advance(second(3), round(&[&everywhere]));
    assert_eq!(ledger.board().findings[0].evidence.scope, Scope::Cluster, "once the node's own part is over");
}

#[test]
fn a_dark_source_holds_what_was_open_and_says_so() {
    let mut ledger = Ledger::default();
    ledger.advance(second(1), turn(1, Ok(vec![problem("n", Severity::Warning)])));
    assert_eq!(ledger.advance(second(2), turn(1, Err(gap()))), []);
    let board = ledger.board();
    assert_eq!((board.findings.len(), board.unknown.len()), (1, 1));
    assert_eq!(ledger.advance(second(3), turn(1, Ok(vec![judgement("n", Verdict::Unknown(gap()))]))), []);
    assert_eq!(ledger.board().findings.len(), 1);
}

fn of_port(port: u16, verdict: Verdict) -> Judgement {
    let subject = Subject { kind: SubjectKind::Service, ..Subject::node("web", None) };
    Judgement::on_port(subject, (Protocol::Tcp, port), verdict)
}

#[test]
fn what_is_unknown_of_the_node_or_of_an_object_holds_the_findings_about_its_ports() {
    let wrong = || Verdict::Problem(Evidence::new(Severity::Warning, "it is wrong"));
    let of_service = Judgement { port: None, protocol: None, ..of_port(1, Verdict::Unknown(gap())) };
    for unknown in [judgement("n", Verdict::Unknown(gap())), of_service] {
        let mut ledger = Ledger::default();
        ledger.advance(second(1), turn(1, Ok(vec![of_port(1, wrong()), of_port(2, wrong()), of_port(3, wrong())])));
        let round = vec![unknown, of_port(1, wrong()), of_port(2, Verdict::Healthy)];
        let changes = ledger.advance(second(2), turn(1, Ok(round)));
        assert!(matches!(&changes[..], [Change::Cleared(it, Clearance::Repaired)] if it.key.port == Some(2)));
        assert_eq!(ledger.board().findings.len(), 2, "nobody looked at port 3");
    }
    let mut ledger = Ledger::default();
    ledger.advance(second(1), turn(1, Ok(vec![of_port(1, wrong()), of_port(2, wrong())])));
    let changes = ledger.advance(second(2), turn(1, Ok(vec![of_port(1, Verdict::Unknown(gap()))])));
    assert!(matches!(&changes[..], [Change::Cleared(it, Clearance::Gone)] if it.key.port == Some(2)), "{changes:?}");
}

#[test]
fn what_was_open_about_an_object_that_was_not_read_whole_stays_unless_it_is_found_healthy() {
    let wrong = || Verdict::Problem(Evidence::new(Severity::Warning, "it is wrong"));
    let mut ledger = Ledger::default();
    ledger
        .advance(second(1), turn(1, Ok(vec![of_port(1, wrong()), of_port(2, wrong()), problem("n", Severity::Info)])));
    let unread: Arc<[Subject]> = [of_port(1, wrong()).subject].into();
    let round = vec![Turn { unread, ..turn(1, Ok(vec![of_port(2, Verdict::Healthy)])).remove(0) }];
    let cleared: Vec<_> = ledger.advance(second(2), round);
    assert_eq!(cleared.len(), 2, "port 2 is healthy, and the Node is another subject: {cleared:?}");
    assert_eq!(ledger.board().findings[0].key.port, Some(1));
    assert_eq!(ledger.board().unknown, [], "the gap is told once, among the facts");
    assert_eq!(ledger.advance(second(3), turn(1, Ok(Vec::new()))).len(), 1, "it is over once the object is read");
}

#[test]
fn a_clock_that_is_set_back_or_ahead_changes_nobodys_patience() {
    for hour in [-3600, 3600] {
        let mut ledger = Ledger::default();
        let mut round = |since_start: u64, at: i64| {
            let settle = Some(Duration::from_secs(5));
            let time = RoundTime {
                at: Timestamp::from_second(100_000 + at).expect("a time"),
                since_start: Duration::from_secs(since_start),
            };
            let judgements = Ok(vec![problem("n", Severity::Warning)]);
            ledger.advance(time, vec![Turn { rows: ROWS, settle, unread: Arc::default(), judgements }]).len()
        };
        assert_eq!([round(1, 1), round(3, 3 + hour), round(7, 7 + hour)], [0, 0, 1], "set by {hour} seconds");
    }
}

#[test]
fn healthy_is_repaired_and_silence_is_gone() {
    for (round, clearance) in [(vec![judgement("n", Verdict::Healthy)], Clearance::Repaired), (vec![], Clearance::Gone)]
    {
        let mut ledger = Ledger::default();
        ledger.advance(second(1), turn(1, Ok(vec![problem("n", Severity::Warning)])));
        let changes = ledger.advance(second(2), turn(1, Ok(round)));
        assert!(matches!(&changes[..], [Change::Cleared(_, how)] if *how == clearance), "{changes:?}");
        assert!(ledger.board().findings.is_empty());
    }
}

#[test]
fn several_sockets_of_one_subject_are_one_finding_of_the_worst_severity() {
    let mut ledger = Ledger::default();
    let round = vec![problem("n", Severity::Warning), problem("n", Severity::Critical)];
    assert_eq!(ledger.advance(second(1), turn(1, Ok(round))).len(), 1);
    assert_eq!(ledger.board().findings[0].evidence.severity, Severity::Critical);
}

fn any_round() -> impl Strategy<Value = Judgements> {
    let one = (0..3usize, 0..5u8).prop_map(|(name, kind)| {
        let name = ["a", "b", "c"][name];
        match kind {
            0 => judgement(name, Verdict::Healthy),
            1 => judgement(name, Verdict::Unknown(gap())),
            2 => problem(name, Severity::Warning),
            3 => problem(name, Severity::Critical),
            _ => {
                judgement(name, Verdict::Problem(Evidence::new(Severity::Warning, "it is otherwise").variant("other")))
            }
        }
    });
    prop_oneof![
        4 => proptest::collection::vec(one, 0..4).prop_map(Ok),
        1 => Just(Err(gap())),
    ]
}

proptest! {
    #[test]
    fn changes_replayed_give_the_board(rounds in proptest::collection::vec((1..=2u8, any_round()), 0..12)) {
        let mut ledger = Ledger::default();
        let mut reported: BTreeMap<Key, Finding> = BTreeMap::new();
        for (index, (patience, round)) in rounds.into_iter().enumerate() {
            for change in ledger.advance(second(index as u64), turn(patience, round)) {
                match change {
                    Change::Raised(finding) => prop_assert!(reported.insert(finding.key.clone(), finding).is_none()),
                    Change::Changed(finding) => prop_assert!(reported.insert(finding.key.clone(), finding).is_some()),
                    Change::Became(was, finding) => {
                        prop_assert!(reported.remove(&was).is_some());
                        prop_assert!(reported.insert(finding.key.clone(), finding).is_none());
                    }
                    Change::Cleared(finding, _) => prop_assert!(reported.remove(&finding.key).is_some()),
                }
            }
            let mut board = ledger.board().findings;
            board.sort_by(|a, b| a.key.cmp(&b.key));
            prop_assert_eq!(board, reported.values().cloned().collect::<Vec<_>>());
        }
        let last = ledger.board();
        let kept = ledger.into_board();
        prop_assert_eq!((kept.findings, kept.unknown), (last.findings, last.unknown));
    }
}

#[test]
fn variants_of_one_claim_are_findings_of_their_own_and_one_rule_answers_for_its_own_variants() {
    let mut ledger = Ledger::default();
    let of = |variant| judgement("n", Verdict::Problem(Evidence::new(Severity::Warning, variant).variant(variant)));
    ledger.advance(second(1), turn(1, Ok(vec![of(""), of("other")])));
    assert_eq!(ledger.board().findings.len(), 2);
    let neighbour = Rows { variants: &["third"], ..ROWS };
    let beside = |judgements| vec![Turn { rows: neighbour, ..turn(1, judgements).remove(0) }];
    assert_eq!(ledger.advance(second(2), beside(Ok(Vec::new()))), [], "the rule beside it clears nothing");
    ledger.advance(second(3), beside(Err(gap())));
    ledger.advance(second(4), turn(1, Ok(vec![of("other")])));
    let board = ledger.board();
    assert_eq!(board.findings.iter().map(|it| it.key.variant).collect::<Vec<_>>(), ["other"]);
    assert_eq!(board.unknown.iter().map(|it| it.rows).collect::<Vec<_>>(), [neighbour]);
    ledger.advance(second(5), turn(1, Ok(vec![judgement("n", Verdict::Unknown(gap()))])));
    assert_eq!(ledger.board().findings.len(), 1, "what is unknown of a claim holds every variant of the rule");
}

#[test]
fn what_becomes_another_variant_stays_until_that_one_has_lasted() {
    let mut ledger = Ledger::default();
    let mut advance = |at, variant| {
        let problem = Verdict::Problem(Evidence::new(Severity::Warning, variant).variant(variant));
        let changes = ledger.advance(second(at), turn(2, Ok(vec![judgement("n", problem)])));
        (changes, ledger.board().findings.iter().map(|it| it.key.variant).collect::<Vec<_>>())
    };
    advance(1, "");
    assert_eq!(advance(2, "").1, [""]);
    assert_eq!(advance(3, "other"), (Vec::new(), vec![""]), "one round is none");
    let (changes, open) = advance(4, "other");
    assert!(
        matches!(&changes[..], [Change::Became(was, it)] if (was.variant, it.since) == ("", wall(3))),
        "{changes:#?}"
    );
    assert_eq!(open, ["other"]);
}
