//! Checks that the readers of snapshots, of the configuration file and of arguments keep their promises for any input.

use std::io::{self, Write};

use portreeve_agent::{
    judge,
    settings::{self, duration},
};
use portreeve_cluster::Environment;
use portreeve_facts::{Mode, PortRange, PortSet, Snapshot, text};
use portreeve_guard::Record;
use portreeve_report::{self as report, AgentAnswer, Fleet, PortArgument, Report, Setting, Style, Wanted};
use portreeve_rules::{Limits, findings::Severity};

fn written(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    write(&mut out).expect("memory takes it");
    let text = String::from_utf8(out).expect("output is text");
    let strange = text.chars().find(|it| *it != '\n' && text::is_invisible(*it));
    assert_eq!(strange, None, "{text:?}");
    text
}

fn style() -> Style {
    Style { width: 100, colour: false, program: "portreeve".to_owned() }
}

pub fn snapshot(bytes: &[u8]) {
    let Ok(snapshot) = Snapshot::from_json(bytes) else { return };
    let printed = serde_json::to_vec(&snapshot).expect("a snapshot is JSON");
    assert_eq!(Snapshot::from_json(&printed).expect("what was printed is a snapshot"), snapshot);
    let board = judge(&snapshot, &Limits::default());
    // `judge` adds this text if a rule panics.
    let failed = board.unknown.iter().find(|it| it.gap.detail.contains("failed on these facts"));
    assert!(failed.is_none(), "{failed:?}");
    let report = Report { min_severity: Some(Severity::Info), ..Report::of(&snapshot, &board) };
    written(|out| report::write_table(&report, false, &style(), out));
    written(|out| report::write_table(&report, true, &style(), out));
    written(|out| report::write_rows(&report, &style(), out));
    let json = written(|out| report::write_json(&report, None, out));
    serde_json::from_str::<serde::de::IgnoredAny>(&json).expect("the report is JSON");
    written(|out| report::write_sarif(&report, out));
    written(|out| report::write_junit(&report, out));
    let line = written(|out| writeln!(out, "{}", report::npd_line(&report)));
    assert!(line.lines().count() <= 1 && line.len() <= report::NPD_LINE + 1, "{line:?}");
}

pub fn agents_answer(bytes: &[u8]) {
    let agent = |node: &str, answer: &[u8]| AgentAnswer {
        node: node.to_owned(),
        pod: format!("portreeve-{node}"),
        answer: Ok(answer.to_vec()),
    };
    let fleet = Fleet::of(
        "portreeve",
        vec![agent("n1", bytes), agent("n2", b"{}")],
        &Wanted { document: true, ..Wanted::default() },
        jiff::Timestamp::UNIX_EPOCH,
    );
    assert!(!fleet.is_whole(), "n2 did not answer");
    written(|out| report::write_fleet_table(&fleet, false, &style(), out));
    written(|out| report::write_fleet_table(&fleet, true, &style(), out));
    written(|out| report::write_fleet_rows(&fleet, &style(), out));
    let json = written(|out| fleet.write_json(out));
    serde_json::from_str::<serde::de::IgnoredAny>(&json).expect("the view is JSON");
    written(|out| fleet.write_yaml(out));
    written(|out| fleet.write_names(out));
}

pub fn configuration_file(bytes: &[u8]) {
    let Ok(yaml) = str::from_utf8(bytes) else { return };
    match settings::parse(yaml) {
        Err((line, what)) => assert!(line >= 1 && !what.is_empty()),
        Ok(settings) => {
            let config = settings.into_config(&Environment::default());
            assert!(config.limits.impossible().is_none());
            assert!(config.cpu_percent > 0.0 && config.cpu_percent <= 100.0);
            assert!((1..=3_600_000).contains(&config.interval.as_millis()), "{:?}", config.interval);
        }
    }
}

pub fn guard_record(bytes: &[u8]) {
    let Ok(record) = serde_json::from_slice::<Record>(bytes) else { return };
    let printed = serde_json::to_vec(&record).expect("a record is JSON");
    assert_eq!(serde_json::from_slice::<Record>(&printed).expect("what was printed is a record"), record);
    let list = &record.list;
    assert!(record.ours_in(list, &record.boot_id).minus(list).is_empty(), "an entry that is not in the list");
}

pub fn arguments(bytes: &[u8]) {
    let Ok(typed) = str::from_utf8(bytes) else { return };
    if let Ok(range) = typed.parse::<PortRange>() {
        assert_eq!(range.to_string().parse(), Ok(range));
        assert!(range.first <= range.last);
    }
    if let Ok(set) = typed.parse::<PortSet>() {
        assert_eq!(set.to_string().parse(), Ok(set.clone()));
        assert!(set.ranges().windows(2).all(|pair| u32::from(pair[0].last) + 1 < u32::from(pair[1].first)));
        assert_eq!(set.len(), set.ranges().iter().map(|range| range.size()).sum::<u32>());
    }
    if let Ok(duration) = duration(typed) {
        assert!((1..=3_600_000).contains(&duration.as_millis()), "{duration:?}");
    }
    if let Ok(mode) = typed.parse::<Mode>() {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
    if let Ok(port) = typed.parse::<PortArgument>() {
        assert!(port.number > 0);
    }
    drop(typed.parse::<Setting>());
}

pub fn strange_text(bytes: &[u8]) {
    let typed = String::from_utf8_lossy(bytes);
    let limit = bytes.first().map_or(0, |byte| usize::from(*byte));
    let once = text::clean(&typed, limit);
    assert!(once.len() <= limit && !once.chars().any(text::is_invisible), "{once:?}");
    assert_eq!(text::clean(&once, limit), once);
    let mut left = typed.chars();
    assert!(once.chars().all(|kept| left.any(|it| it == kept)), "{once:?} of {typed:?}");
    let word = text::shell_word(&once);
    let quoted = word.strip_prefix('\'').and_then(|word| word.strip_suffix('\''));
    let plain = word.chars().all(|it| it.is_ascii_alphanumeric() || "-._:/".contains(it));
    assert!(plain || quoted.is_some_and(|inner| !inner.replace(r"'\''", "").contains('\'')), "{word}");
}
