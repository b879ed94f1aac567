use super::*;
use crate::judge;
use portreeve_facts::{Gap, Reading, Source, Why};
use portreeve_rules::{
    Limits, RULES,
    findings::{Evidence, Finding, Key, Subject},
};

fn state_of(snapshot: &Snapshot, board: &Board) -> State {
    State::of(&Report { min_severity: Some(Severity::Warning), ..Report::of(snapshot, board) })
}

fn state(snapshot: &Snapshot) -> State {
    state_of(snapshot, &judge(snapshot, &Limits::default()))
}

fn conflict() -> Snapshot {
    Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080")
}

fn finding(severity: Severity, number: usize) -> Finding {
    let subject = Subject::node(&format!("\u{1b}[2Jn{number}"), None);
    let key = Key { rule: RULES[0].name(), variant: "loses", subject, port: None, protocol: None };
    Finding { key, evidence: Evidence::new(severity, "it is wrong"), since: Timestamp::UNIX_EPOCH }
}

#[test]
fn the_state_is_the_result_of_a_check() {
    let clear = state(&Snapshot::healthy());
    assert_eq!((clear.status, clear.reason), ("False", "NoPortConflict"));
    let found = state(&conflict());
    assert_eq!((found.status, found.reason), ("True", "PortsInConflict"));
    assert!(found.message.contains("listener-on-node-port/loses: 1"), "{}", found.message);
    let mut unread = Snapshot::healthy();
    let hostile = "\u{1b}[2J after 7.3 s";
    unread.kernel.listeners = Reading::Gap(Gap::new(Source::Listeners, Why::Malformed, hostile));
    let unread = state(&unread);
    assert_eq!((unread.status, unread.reason), ("Unknown", "NotChecked"));
    assert!(unread.message.contains("listening sockets: not understood") && !unread.message.contains("7.3 s"));
}

#[test]
fn a_clear_result_names_what_was_not_judged_as_the_form_of_node_problem_detector_does() {
    let same = |snapshot: &Snapshot| {
        let board = judge(snapshot, &Limits::default());
        let state = state_of(snapshot, &board);
        assert_eq!(state.status, "False", "{state:?}");
        let line = portreeve_report::npd_line(&Report::of(snapshot, &board));
        // The line for node-problem-detector is the message, or its beginning.
        assert!(state.message.starts_with(&line), "{} {line}", state.message);
        state.message
    };
    let mut world = Snapshot::healthy();
    assert_eq!(state_of(&world, &Board::default()).message, "no port conflicts");
    world.cluster.pods = portreeve_facts::healthy::gap(Source::Pods, Why::NotPermitted);
    world.cluster.nodes = portreeve_facts::healthy::gap(Source::Nodes, Why::NotPermitted);
    let message = same(&world);
    assert!(
        message.starts_with("no port conflicts found; ") && message.contains(" rules were not judged: "),
        "{message}"
    );
}

#[test]
fn a_mild_finding_is_no_conflict_and_the_message_counts_by_rule_without_names_of_tenants() {
    let snapshot = Snapshot::healthy();
    let board = |severities: &[Severity]| Board {
        findings: severities.iter().enumerate().map(|(number, severity)| finding(*severity, number)).collect(),
        ..Board::default()
    };
    assert_eq!(state_of(&snapshot, &board(&[Severity::Info])), state_of(&snapshot, &Board::default()));
    let found = state_of(&snapshot, &board(&[Severity::Critical, Severity::Warning, Severity::Info]));
    assert_eq!(found.message, format!("{}/loses: 2", RULES[0].name()));
}

#[test]
fn a_message_is_cut_where_events_are() {
    assert_eq!(State::new(TRUE, "PortsInConflict", &"x\u{1b}".repeat(9999)).message, "x".repeat(NOTE));
}

fn condition() -> (NodeCondition, watch::Receiver<Option<Wanted>>) {
    let (wanted, receiver) = watch::channel(None);
    (NodeCondition { wanted, writes: watch::channel(Writes::default()).1 }, receiver)
}

#[tokio::test]
async fn until_the_agent_is_settled_only_a_conflict_is_a_result() {
    let (condition, wanted) = condition();
    let scanned = |snapshot: &Snapshot, settled| {
        condition.scanned(snapshot, &judge(snapshot, &Limits::default()), settled);
        wanted.borrow().as_ref().map(|it| it.state.status)
    };
    assert_eq!(scanned(&Snapshot::healthy(), false), None);
    condition.stop(Timestamp::UNIX_EPOCH).await;
    assert!(wanted.borrow().is_none(), "an agent without a result writes none at its end");
    assert_eq!(scanned(&conflict(), false), Some("True"));
    assert_eq!(scanned(&Snapshot::healthy(), true), Some("False"));
    let mut unnamed = conflict();
    unnamed.cluster.node_name = None;
    assert_eq!(scanned(&unnamed, true), Some("False"), "another Node may have the host's name");
}

#[test]
fn a_state_is_not_written_earlier_because_it_was_found_again_and_many_nodes_are_spread() {
    let (condition, wanted) = condition();
    let from = |snapshot: &Snapshot| {
        condition.scanned(snapshot, &judge(snapshot, &Limits::default()), true);
        wanted.borrow().as_ref().expect("a result").from
    };
    let first = from(&Snapshot::healthy());
    assert_eq!(from(&Snapshot::healthy()), first);
    let mut unread = conflict();
    unread.cluster.nodes = portreeve_facts::healthy::gap(Source::Nodes, Why::TimedOut);
    assert!(from(&unread) > Instant::now(), "there may be thousands of Nodes");
}

#[test]
fn the_same_state_is_written_again_with_the_heartbeat_and_another_not_before_the_shortest_time() {
    let begun = Instant::now();
    let seconds = |due: Instant| due.saturating_duration_since(begun).as_secs();
    let wanted = |message: &str, from| Wanted {
        node: "n1".to_owned(),
        state: State::new(TRUE, "PortsInConflict", message),
        at: Timestamp::UNIX_EPOCH,
        from,
        is_last: false,
    };
    let timing = ConditionTiming::USUAL;
    let mut pace = Pace { timing, written: None, last: begun, wait: Duration::ZERO, failures: 0 };
    let (one, other) = (wanted("one", begun), wanted("other", begun));
    assert_eq!(seconds(pace.due(&one)), 0);
    pace.succeeded(&one.state, begun);
    assert_eq!((seconds(pace.due(&one)), seconds(pace.due(&other))), (300, 10));
    assert_eq!(seconds(pace.due(&wanted("other", begun + Duration::from_secs(25)))), 25);

    let waits = |pace: &mut Pace, after| {
        let wait = |_| {
            pace.failed(after, 0.0, begun);
            seconds(pace.due(&one))
        };
        [0; 7].map(wait)
    };
    assert_eq!(waits(&mut pace, None), [10, 20, 40, 80, 160, 300, 300]);
    pace.succeeded(&one.state, begun);
    let minute = Some(Duration::from_secs(60));
    assert_eq!(waits(&mut pace, minute), [60, 60, 60, 80, 160, 300, 300], "the server names a time");
    pace.succeeded(&one.state, begun);
    pace.failed(Some(Duration::from_secs(9999)), 0.5, begun);
    assert_eq!(seconds(pace.due(&one)), 450, "an hour would be as if it were off");
}
