mod strict;

use std::{collections::BTreeMap, sync::Arc};

use super::*;
use crate::{events::Counters, node_condition::Writes};
use portreeve_facts::{
    DestinationUse, EphemeralUse, Protocol, Reading, Snapshot, Source, Why,
    healthy::{ip, squatter},
};
use portreeve_rules::{
    self as rules, Limits, RULES,
    findings::{Evidence, Finding, Key, Severity, Subject},
    ledger::Board,
    ledger::{Ledger, RoundTime, Turn},
};

fn scrape(snapshot: Snapshot, board: Board) -> Scrape {
    let mut work = Work::default();
    work.scanned(Duration::from_millis(7), snapshot.at);
    work.configuration = Configuration { is_valid: false, adopted: Some(snapshot.at) };
    let services = ViewAge { resource: "services", age: Some(Duration::from_secs(3)), errors: Vec::new() };
    let process = ProcessUse { cpu_seconds: Some(1.5), resident_bytes: Some(9_000_000), ..ProcessUse::default() };
    Scrape {
        scan: Some((Arc::new(snapshot), Arc::new(board))),
        work,
        views: vec![services],
        events: Some(Counters::default()),
        condition: Some(Writes::default()),
        process,
    }
}

fn judged(snapshot: &Snapshot) -> Board {
    let limits = Limits::default();
    let round = limits.round(snapshot, None);
    let opinions = rules::run_rules(RULES, &round, &limits);
    let round = opinions.map(|it| Turn {
        rows: it.rule.rows(),
        settle: None,
        unread: Arc::default(),
        judgements: it.judgements.expect("no rule panics"),
    });
    let mut ledger = Ledger::default();
    ledger.advance(RoundTime::first(snapshot.at), round);
    ledger.board()
}

#[track_caller]
fn expose(scrape: &Scrape, form: Exposition) -> Vec<(String, f64)> {
    let text = metrics(scrape.clone(), form).expect("a string");
    let samples = strict::parse(&text, form).unwrap_or_else(|offence| panic!("{offence}\n{text}"));
    samples.into_iter().map(|sample| (sample.series, sample.value)).collect()
}

#[test]
fn both_forms_tell_the_same_and_are_well_formed() {
    let world = Snapshot::healthy().service("web", |it| it.node_port(30080)).listens("0.0.0.0:30080");
    let board = judged(&world);
    let scrape = scrape(world, board);
    let text = expose(&scrape, Exposition::Text);
    assert_eq!(text, expose(&scrape, Exposition::OpenMetrics));
    let value = |name: &str| text.iter().find(|(series, _)| series == name).map(|(_, value)| *value);
    assert_eq!(
        value(r#"portreeve_findings{rule="listener-on-node-port",variant="loses",severity="critical"}"#),
        Some(1.0)
    );
    let single =
        r#"portreeve_finding_info{rule="listener-on-node-port",variant="loses",severity="critical",scope="node","#;
    assert!(text.iter().any(|(series, _)| series.starts_with(single)), "{text:?}");
    assert_eq!(value(r#"portreeve_listeners_on_node_ports{protocol="tcp"}"#), Some(1.0));
    assert_eq!(value("portreeve_scans_total"), Some(1.0));
    assert_eq!(value(r#"portreeve_node_condition_writes_total{result="failed"}"#), Some(0.0));
    assert_eq!(value("portreeve_config_last_reload_successful"), Some(0.0));
    assert!(value("portreeve_config_last_reload_success_timestamp_seconds").is_some_and(|at| at > 0.0));
    assert_eq!(value(r#"portreeve_scan_duration_seconds_bucket{le="+Inf"}"#), Some(1.0));
    assert_eq!(value(r#"portreeve_node_ports{state="free",band="dynamic"}"#).map(|free| free > 2000.0), Some(true));
}

fn series(world: Snapshot, name: &str) -> Option<f64> {
    let scrape = scrape(world, Board::default());
    let all = expose(&scrape, Exposition::Text);
    all.iter().find(|(series, _)| series == name).map(|(_, value)| *value)
}

#[test]
fn a_bound_of_ephemeral_ports_is_no_measurement() {
    let of = |busiest| {
        let mut world = Snapshot::healthy();
        world.kernel.ephemeral = Reading::Seen(EphemeralUse { busiest, ..EphemeralUse::of_every_socket(13_000) });
        ["used_max", "used_at_most"]
            .map(|name| series(world.clone(), &format!("portreeve_ephemeral_ports_{name}{{scope=\"host\"}}")))
    };
    assert_eq!(of(Vec::new()), [None, Some(13_000.0)]);
    let busy = DestinationUse {
        protocol: Protocol::Tcp,
        source: ip("192.0.2.1"),
        destination: ip("198.51.100.7"),
        port: 443,
        used: 900,
        time_wait: 0,
        owner: squatter(),
    };
    assert_eq!(of(vec![busy]), [Some(900.0), Some(13_000.0)]);
}

#[test]
fn a_node_port_whose_origin_is_not_told_is_neither_fixed_nor_automatic() {
    let of = |fixed| {
        let world = Snapshot::healthy().service("web", |it| it.node_port(30080).with(|it| it.ports[0].fixed = fixed));
        let state = |state: &&str| {
            series(world.clone(), &format!("portreeve_node_ports{{state=\"{state}\",band=\"static\"}}")) == Some(1.0)
        };
        ["fixed", "automatic", "unknown"].into_iter().filter(state).collect::<Vec<_>>()
    };
    assert_eq!(of(Some(true)), ["fixed"]);
    assert_eq!(of(Some(false)), ["automatic"]);
    assert_eq!(of(None), ["unknown"]);
}

#[test]
fn a_capability_is_there_or_not() {
    let mut world = Snapshot::healthy();
    world.kernel.capabilities = vec!["CAP_NET_ADMIN".to_owned()];
    let has = |name| series(world.clone(), &format!("portreeve_capability{{capability=\"{name}\"}}"));
    assert_eq!((has("CAP_NET_ADMIN"), has("CAP_BPF")), (Some(1.0), Some(0.0)));
}

fn every_reader() -> BTreeMap<Source, Duration> {
    [
        Source::Listeners,
        Source::Clients,
        Source::EphemeralUse,
        Source::Sockstat,
        Source::Sysctls,
        Source::Addresses,
        Source::ResolvConf,
        Source::ProxyMode,
        Source::ProxyConfig,
        Source::ProxyMetrics,
        Source::ProxyProcess,
        Source::IpVs,
        Source::IpVsConn,
        Source::Conntrack,
        Source::Netfilter,
        Source::Processes,
        Source::PodNamespaces,
        Source::HealthChecks,
    ]
    .map(|source| (source, Duration::from_millis(1)))
    .into()
}

fn views(errors: &[(String, u64)]) -> Vec<ViewAge> {
    let age = Some(Duration::from_secs(3));
    let kinds = ["services", "endpointslices", "pods", "nodes"].into_iter();
    kinds.map(|resource| ViewAge { resource, age, errors: errors.to_vec() }).collect()
}

#[test]
fn a_healthy_node_has_at_most_200_series() {
    let world = Snapshot::healthy().service("web", |it| it.node_port(30080));
    let board = judged(&world);
    let mut scrape = scrape(world, board);
    (scrape.work.took, scrape.views) = (every_reader(), views(&[]));
    let started = Some(Timestamp::UNIX_EPOCH);
    scrape.process = ProcessUse { cpu_seconds: Some(1.0), started, ..all_of_process() };
    let series = expose(&scrape, Exposition::OpenMetrics);
    assert!(series.len() <= 200, "{} series", series.len());
}

fn all_of_process() -> ProcessUse {
    let some = Some(1);
    ProcessUse { resident_bytes: some, virtual_bytes: some, open_fds: some, max_fds: some, ..ProcessUse::default() }
}

#[test]
fn at_the_very_worst_there_are_300_series_and_the_worst_findings_are_among_them() {
    let world = Snapshot::healthy();
    let problem =
        |n: usize| finding(&world, &format!("n{n}"), if n < 50 { Severity::Critical } else { Severity::Info });
    let gap = |source, why| portreeve_facts::Gap::new(source, why, "");
    let unknown = RULES.iter().flat_map(|rule| {
        [gap(Source::Listeners, Why::TimedOut), gap(Source::Services, Why::Stale)]
            .map(|gap| portreeve_rules::findings::Unknown { rows: rule.rows(), subject: None, claims: 0, gap })
    });
    let board = Board { findings: (0..1000).map(problem).collect(), unknown: unknown.collect() };
    let mut scrape = scrape(world, board);
    let codes = ["400", "401", "403", "404", "410", "429", "500", "503", "timed-out", "unreachable"];
    (scrape.work.took, scrape.views) = (every_reader(), views(&codes.map(|code| (code.to_owned(), 1))));
    scrape.process = ProcessUse { started: Some(Timestamp::UNIX_EPOCH), ..all_of_process() };
    for rule in RULES {
        scrape.work.panicked(rule.name().0);
    }
    let series = expose(&scrape, Exposition::OpenMetrics);
    assert!(series.len() <= 300, "{} series", series.len());
    let reported = |severity: &str| {
        let of = |(name, _): &&(String, f64)| {
            name.starts_with("portreeve_finding_info") && name.contains(&format!("severity=\"{severity}\""))
        };
        series.iter().filter(of).count()
    };
    let truncated = series.iter().find(|(name, _)| name == "portreeve_findings_truncated").map(|(_, count)| *count);
    assert_eq!(truncated, Some(1000.0 - (reported("critical") + reported("info")) as f64));
    assert!(reported("info") == 0 || reported("critical") == 50, "the mild ones give way first");
}

#[test]
fn every_rule_and_severity_is_there_from_the_start_and_a_look_adds_nothing_stale() {
    let (work, process) = (Work::default(), ProcessUse::default());
    let nothing = Scrape { scan: None, work, views: Vec::new(), events: None, condition: None, process };
    let zero = |rule: &str, variant: &str, severity: Severity| {
        (format!("portreeve_findings{{rule=\"{rule}\",variant=\"{variant}\",severity=\"{severity}\"}}"), 0.0)
    };
    let series = expose(&nothing, Exposition::OpenMetrics);
    for rule in RULES {
        for variant in rule.variants.iter().filter_map(|name| rule.id.variant(name)) {
            assert!(series.contains(&zero(rule.name().0, variant.name, variant.ceiling())), "{}", rule.rows());
        }
    }
}

fn finding(world: &Snapshot, node: &str, severity: Severity) -> Finding {
    let key = Key {
        rule: RULES[0].name(),
        variant: "loses",
        subject: Subject::node(node, None),
        port: Some(30080),
        protocol: None,
    };
    Finding { key, evidence: Evidence::new(severity, "it is wrong"), since: world.at }
}

#[test]
fn a_thousand_hostile_findings_stay_bounded_and_break_nothing() {
    let world = Snapshot::healthy();
    let hostile =
        |n: usize| finding(&world, &format!("n{n}\"}} 1\n# EOF\n\\evil{{a=\"b\u{202e}\u{0}"), Severity::Critical);
    let board = Board { findings: (0..1000).map(hostile).collect(), ..Board::default() };
    let scrape = scrape(world, board);
    for form in [Exposition::OpenMetrics, Exposition::Text] {
        let series = expose(&scrape, form);
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

#[test]
fn when_connections_were_read_is_told_however_many_looks_came_since() {
    const NAME: &str = "portreeve_last_connections_timestamp_seconds";
    let told = |world: &Snapshot| {
        let series = expose(&scrape(world.clone(), Board::default()), Exposition::Text);
        series.into_iter().find(|(series, _)| series == NAME).map(|(_, seconds)| seconds)
    };
    let mut world = Snapshot::healthy();
    assert_eq!(told(&world), Some(world.at.as_duration().as_secs_f64()), "this one read them");
    let read = world.at - jiff::SignedDuration::from_mins(19);
    world.connections_at = Some(read);
    assert_eq!(told(&world), Some(read.as_duration().as_secs_f64()));
}
