//! Makes findings from a snapshot: runs the rules, and puts their results into the ledger.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tracing::debug;

use portreeve_facts::{Gap, Snapshot, Source, Why};
use portreeve_rules::{
    self as rules, Limits, Opinion, RULES, Rule,
    findings::{Key, RuleId, Subject, SubjectKind},
    ledger::{Board, Change, Ledger, RoundTime, Turn},
};

/// Judges one snapshot, and reports each problem immediately, without a later snapshot that confirms the problem.
pub fn judge(snapshot: &Snapshot, limits: &Limits) -> Board {
    judge_by(RULES, snapshot, limits)
}

/// Like [`judge()`], but with these rules.
pub fn judge_by(rules: &[&'static Rule], snapshot: &Snapshot, limits: &Limits) -> Board {
    let mut ledger = Ledger::default();
    let round = limits.round(snapshot, None);
    let opinions = rules::run_rules(rules, &round, limits);
    advance(opinions, snapshot, RoundTime::first(snapshot.at), Reporting::AtOnce, &mut ledger);
    ledger.into_board()
}

/// Judges two snapshots of one node, and reports each problem immediately. Returns for each snapshot its board, and a
/// set of keys. The keys name findings of the other snapshot that the rules could not judge in this snapshot.
pub fn judge_both(rules: &[&'static Rule], snapshots: [&Snapshot; 2], limits: &Limits) -> [(Board, BTreeSet<Key>); 2] {
    let opinions =
        snapshots.map(|snapshot| rules::run_rules(rules, &limits.round(snapshot, None), limits).collect::<Vec<_>>());
    let after = |order: &[usize]| {
        let mut ledger = Ledger::default();
        for snapshot in order.iter().copied() {
            let (opinions, snapshot) = (opinions[snapshot].clone(), snapshots[snapshot]);
            advance(opinions, snapshot, RoundTime::first(snapshot.at), Reporting::AtOnce, &mut ledger);
        }
        ledger.into_board()
    };
    [0, 1].map(|snapshot| {
        let board = after(&[snapshot]);
        // The ledger keeps an earlier finding if the later round could not judge it.
        let held = after(&[1 - snapshot, snapshot]).findings.into_iter().map(|finding| finding.key);
        let held = held.filter(|key| board.findings.iter().all(|finding| finding.key != *key)).collect();
        (board, held)
    })
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Reporting {
    /// Reports each problem immediately, because the caller has only one snapshot.
    AtOnce,
    /// Waits as long as each rule needs. If a rule needs two scans, its finding must also have lasted for this
    /// duration.
    WithPatience(Duration),
}

/// Puts the opinions about one snapshot into the ledger. The time of the round is the time of the snapshot. Returns the
/// changes, and the rules that panicked.
pub(super) fn advance(
    opinions: impl IntoIterator<Item = Opinion>,
    snapshot: &Snapshot,
    time: RoundTime,
    reporting: Reporting,
    ledger: &mut Ledger,
) -> (Vec<Change>, Vec<RuleId>) {
    let mut panicked = Vec::new();
    let unread: Arc<[Subject]> = snapshot.cluster.unread_services.iter().map(of_service).collect();
    let round = opinions.into_iter().map(|opinion| {
        panicked.extend(opinion.judgements.is_none().then_some(opinion.rule.name()));
        Turn { unread: Arc::clone(&unread), ..ledger_turn(opinion, reporting) }
    });
    let changes = ledger.advance(time, round);
    (changes, panicked)
}

fn of_service((namespace, name): &(String, String)) -> Subject {
    Subject { kind: SubjectKind::Service, namespace: Some(namespace.clone()), name: name.clone(), uid: None }
}

/// Makes the ledger's input from an opinion. A rule that panicked counts as a rule that could not judge.
fn ledger_turn(Opinion { rule, judgements }: Opinion, reporting: Reporting) -> Turn {
    debug!(rule = %rule.rows(), panicked = judgements.is_none(), "judged");
    let judgements = judgements.unwrap_or_else(|| {
        let source = rule.needs.first().copied().unwrap_or(Source::Listeners);
        let detail = format!("rule {} failed on these facts; please report it with a snapshot", rule.rows());
        Err(Gap::new(source, Why::Malformed, detail))
    });
    let settle = match reporting {
        Reporting::WithPatience(settle) if !rule.at_once => Some(settle),
        _ => None,
    };
    Turn { rows: rule.rows(), settle, unread: Arc::default(), judgements }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portreeve_facts::Reading;
    use portreeve_rules::ids::Id;

    #[test]
    fn a_rule_that_panicked_is_unknown_and_named() {
        let turn = ledger_turn(Opinion { rule: RULES[0], judgements: None }, Reporting::AtOnce);
        let gap = turn.judgements.expect_err("nothing could be judged");
        assert!(gap.detail.contains(RULES[0].name().0), "{}", gap.detail);
    }

    static ID: Id = Id { name: RuleId("broken"), title: "panics", page: "", variants: &[] };
    static BROKEN: Rule = Rule::of(&ID, &["always"], &[], |_, _| panic!("as a rule with a bug does"));

    #[test]
    fn a_rule_that_failed_is_a_failure_even_if_it_was_the_only_one() {
        let snapshot = Snapshot::healthy();
        let board = judge_by(&[&BROKEN], &snapshot, &Limits::default());
        let report = portreeve_report::Report { rules: &[&BROKEN], ..portreeve_report::Report::of(&snapshot, &board) };
        assert_eq!(report.result(), portreeve_report::CheckResult::NotChecked);
        assert!(report.failures()[0].gap.detail.contains("rule broken/always failed"), "{board:?}");
    }

    #[test]
    fn findings_about_a_service_that_is_no_longer_read_whole_are_held() {
        let mut snapshot = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
        let (limits, mut ledger) = (Limits::default(), Ledger::default());
        let mut round = |snapshot: &Snapshot| {
            let round = limits.round(snapshot, None);
            let opinions = rules::run_rules(RULES, &round, &limits);
            advance(opinions, snapshot, RoundTime::first(snapshot.at), Reporting::AtOnce, &mut ledger);
            let board = ledger.board();
            board.findings.iter().filter(|finding| finding.key.subject.name == "web").count()
        };
        assert!(round(&snapshot) > 0);
        let service = snapshot.cluster.services.get().expect("Services")[0].clone();
        snapshot.cluster.services = Reading::Seen(Vec::new());
        snapshot.cluster.unread_services = vec![(service.namespace.clone(), service.name.clone())];
        assert!(round(&snapshot) > 0, "unread is not healthy");
        snapshot.cluster.unread_services.clear();
        assert_eq!(round(&snapshot), 0, "it is gone");
    }

    #[test]
    fn each_of_two_snapshots_names_the_findings_of_the_other_that_it_could_not_judge() {
        let seen = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
        let mut unread = seen.clone();
        unread.cluster.services = portreeve_facts::healthy::gap(Source::Services, Why::TimedOut);
        let of_web = |key: &Key| key.subject.name == "web";
        let held =
            |snapshots| judge_both(RULES, snapshots, &Limits::default()).map(|(_, held)| held.iter().any(of_web));
        assert_eq!(held([&seen, &unread]), [false, true]);
        assert_eq!(held([&unread, &seen]), [true, false]);
        let healthy = Snapshot::healthy().service("web", |it| it.node_port(30080));
        let judged = judge_both(RULES, [&seen, &healthy], &Limits::default());
        assert!(judged.iter().all(|(_, held)| held.is_empty()), "{judged:#?}");
        assert_eq!(judged[0].0.findings, judge(&seen, &Limits::default()).findings);
    }

    #[test]
    fn one_snapshot_is_reported_without_patience() {
        let snapshot = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
        let board = judge(&snapshot, &Limits::default());
        assert!(board.findings.iter().any(|finding| finding.key.port == Some(30080)), "{board:#?}");
        assert!(board.findings.iter().all(|finding| finding.since == snapshot.at));
    }
}
