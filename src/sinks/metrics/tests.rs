use std::collections::BTreeSet;

use super::*;
use crate::{
    facts::View,
    findings::{Evidence, Finding, Key, Severity, Subject},
    ledger::{Ledger, Turn},
    rules::{Limits, RULES, evaluate},
};

fn telling(snapshot: Snapshot, board: Board) -> Telling {
    let mut work = Work::default();
    work.scanned(Duration::from_millis(7), snapshot.at);
    let services = ViewAge { resource: "services", age: Some(Duration::from_secs(3)), errors: Vec::new() };
    let process = ProcessUse { cpu_seconds: Some(1.5), resident_bytes: Some(9_000_000), ..ProcessUse::default() };
    Telling {
        look: Some((Arc::new(snapshot), Arc::new(board))),
        work,
        views: vec![services],
        events: Some(Counters::default()),
        process,
    }
}

fn judged(snapshot: &Snapshot) -> Board {
    let opinions = evaluate(View { now: snapshot, before: None }, &Limits::default());
    let round = opinions.into_iter().map(|it| Turn {
        rule: it.rule.id,
        patience: 1,
        settle: jiff::SignedDuration::ZERO,
        judgements: it.judgements.expect("no rule panics"),
    });
    let mut ledger = Ledger::default();
    ledger.advance(snapshot.at, round.collect());
    ledger.board()
}

/// Reads an exposition by the letter: families in one piece, typed before they are told, no series twice.
/// Returns each series with its value.
#[track_caller]
fn parse(text: &str, form: Exposition) -> Vec<(String, f64)> {
    let body = match form {
        Exposition::OpenMetrics => text.strip_suffix("# EOF\n").expect("OpenMetrics ends with `# EOF`"),
        Exposition::Text => text,
    };
    assert!(body.ends_with('\n') && body.lines().all(|line| line != "# EOF"));
    let (mut family, mut kind) = (String::new(), String::new());
    let (mut families, mut seen, mut series) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            family = rest.split(' ').next().expect("a name").to_owned();
            assert!(families.insert(family.clone()), "{family} twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, typed) = rest.split_once(' ').expect("a name and a type");
            assert_eq!(name, family, "the type of another family");
            kind = typed.to_owned();
        } else {
            let (name, value) = sample(line);
            let suffix = name.split('{').next().expect("a name").strip_prefix(&family).expect("of its family");
            let suffixes: &[&str] = match (kind.as_str(), form) {
                ("counter", Exposition::OpenMetrics) => &["_total"],
                ("histogram", _) => &["_sum", "_count", "_bucket"],
                _ => &[""],
            };
            assert!(suffixes.contains(&suffix), "{line}: a {kind}");
            assert!(seen.insert(name.clone()), "{name} twice");
            series.push((name, value));
        }
    }
    series
}

/// `name{label="value",...} number`, where a value's quotes, backslashes and line ends are escaped.
#[track_caller]
fn sample(line: &str) -> (String, f64) {
    let mut end = line.find(['{', ' ']).expect("a name");
    assert!(line[..end].bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{line}");
    if line[end..].starts_with('{') {
        let (mut quoted, mut escaped) = (false, false);
        let close = line[end..].char_indices().find(|(_, letter)| {
            match (*letter, quoted, escaped) {
                (_, true, true) => {
                    assert!(matches!(letter, '\\' | '"' | 'n'), "{line}: an unknown escape");
                    escaped = false;
                }
                ('\\', true, false) => escaped = true,
                ('"', _, _) => quoted = !quoted,
                ('}', false, _) => return true,
                _ => {}
            }
            false
        });
        end += close.expect("the labels end").0 + 1;
    }
    let value = line[end..].strip_prefix(' ').expect("one blank");
    (line[..end].to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}: {value:?} is no number")))
}

fn expose(telling: &Telling, form: Exposition) -> Vec<(String, f64)> {
    parse(&metrics(telling.clone(), form).expect("a string"), form)
}

#[test]
fn both_forms_tell_the_same_and_are_well_formed() {
    let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
    let board = judged(&world);
    let telling = telling(world, board);
    let text = expose(&telling, Exposition::Text);
    assert_eq!(text, expose(&telling, Exposition::OpenMetrics));
    let value = |name: &str| text.iter().find(|(series, _)| series == name).map(|(_, value)| *value);
    assert_eq!(value(r#"portreeve_findings{rule="listener-on-node-port",severity="critical"}"#), Some(1.0));
    assert_eq!(value(r#"portreeve_listeners_on_node_ports{protocol="tcp"}"#), Some(1.0));
    assert_eq!(value("portreeve_scans_total"), Some(1.0));
    assert_eq!(value(r#"portreeve_scan_duration_seconds_bucket{le="+Inf"}"#), Some(1.0));
    assert_eq!(value(r#"portreeve_node_ports{state="free",band="dynamic"}"#).map(|free| free > 2000.0), Some(true));
}

#[test]
fn a_healthy_node_has_at_most_150_series() {
    let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
    let board = judged(&world);
    let series = expose(&telling(world, board), Exposition::OpenMetrics);
    assert!(series.len() <= 150, "{} series", series.len());
}

#[test]
fn every_rule_and_severity_is_there_from_the_start_and_a_look_adds_nothing_stale() {
    let nothing =
        Telling { look: None, work: Work::default(), views: Vec::new(), events: None, process: ProcessUse::default() };
    let zero = |rule: &str, severity: Severity| {
        (format!("portreeve_findings{{rule=\"{rule}\",severity=\"{severity}\"}}"), 0.0)
    };
    let series = expose(&nothing, Exposition::OpenMetrics);
    for rule in RULES {
        assert!(series.contains(&zero(rule.id.0, rule.ceiling)), "{}", rule.id);
    }
}

#[test]
fn a_thousand_hostile_findings_stay_bounded_and_break_nothing() {
    let world = Snapshot::healthy();
    let finding = |n: usize| Finding {
        key: Key {
            rule: RULES[0].id,
            subject: Subject::node(&format!("n{n}\"}} 1\n# EOF\n\\evil{{a=\"b\u{202e}\u{0}"), None),
            port: Some(30080),
            protocol: None,
        },
        evidence: Evidence::new(Severity::Critical, "it is wrong"),
        since: world.at,
    };
    let board = Board { findings: (0..1000).map(finding).collect(), unknown: Vec::new() };
    let telling = telling(world, board);
    for form in [Exposition::OpenMetrics, Exposition::Text] {
        let series = expose(&telling, form);
        assert!(series.len() <= 300, "{} series", series.len());
        assert!(series.contains(&("portreeve_findings_truncated".to_owned(), 900.0)));
    }
}

#[test]
fn the_form_is_chosen_by_the_header() {
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
    assert_eq!(Exposition::accepted(prometheus), Exposition::OpenMetrics);
    assert_eq!(Exposition::accepted("text/plain"), Exposition::Text);
    assert_eq!(Exposition::accepted(""), Exposition::Text);
}
