//! `what-if` and `check` must agree: the findings that begin and end are the difference of the two checks.

use std::collections::BTreeMap;

use portreeve_facts::{Gap, Reading, Snapshot, Source, Why};
use portreeve_report::Setting;
use portreeve_rules::ledger::Board;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::{
    cli::{binary, ended, healthy},
    every_node::{board, small},
};

/// With another change of the mode, `what-if` also removes sockets of the old proxy.
const SETTINGS: [&str; 5] = [
    "ip_local_port_range=20000 60999",
    "node_port_range=20000-40000",
    "proxy_mode=ipvs",
    "node_port_addresses=127.0.0.0/8",
    "localhost_node_ports=false",
];

/// How many more findings there are after the change, for each rule, subject, port and protocol.
type Difference = BTreeMap<String, i32>;

fn add(all: &mut Difference, (rule, subject): (&str, &str), (port, protocol): (&str, &str), more: i32) {
    *all.entry(format!("{rule} of {subject} {port}/{protocol}")).or_default() += more;
}

/// The difference of two boards. `what-if` does not predict what a change of the mode leaves behind.
fn of_boards(now: &Board, then: &Board, switches: bool) -> Difference {
    let mut all = Difference::new();
    for (board, more) in [(now, -1), (then, 1)] {
        for key in board.findings.iter().map(|it| &it.key) {
            if !(switches && key.name() == "stale-redirection/proxy") {
                let port = key.port.map(|port| port.to_string()).unwrap_or_default();
                let protocol = key.protocol.map(|protocol| protocol.to_string()).unwrap_or_default();
                add(&mut all, (key.rule.0, &key.subject.to_string()), (&port, &protocol), more);
            }
        }
    }
    all.retain(|_, more| *more != 0);
    all
}

/// The findings of a `what-if` document that exist only before or only after the change.
fn of_document(document: &Value) -> Difference {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let optional = |value: &Value| if value.is_null() { String::new() } else { word(value) };
    let name = |it: &Value| match it["namespace"].as_str() {
        Some(namespace) => format!("{} {namespace}/{}", word(&it["kind"]), word(&it["name"])),
        None => format!("{} {}", word(&it["kind"]), word(&it["name"])),
    };
    let mut all = Difference::new();
    for row in list(&document["claims"]) {
        let claim = &row["claim"];
        let (port, protocol) = (optional(&claim["port"]), optional(&claim["protocol"]));
        // Pods of one controller share a row.
        let subjects = list(&row["subjects"]);
        let subjects = if subjects.is_empty() { vec![claim["subject"].clone()] } else { subjects };
        for subject in subjects.iter().map(name) {
            for change in list(&row["findings"]) {
                let (finding, more) = match (change.get("now"), change.get("then")) {
                    (Some(now), None) => (now, -1),
                    (None, Some(then)) => (then, 1),
                    _ => continue,
                };
                assert_eq!(change["how"] == "begins", more == 1, "{change:#}");
                add(&mut all, (&word(&finding["rule"]), &subject), (&port, &protocol), more);
            }
        }
    }
    all
}

fn what_if(snapshot: &Snapshot, setting: &str) -> Value {
    let file = NamedTempFile::new().expect("a file");
    serde_json::to_writer(&file, snapshot).expect("a snapshot is JSON");
    let (_, document, error) =
        ended(binary().args(["what-if", "-o", "json", "--set", setting, "--snapshot"]).arg(file.path()));
    serde_json::from_str(&document).unwrap_or_else(|_| panic!("{setting}: {document}{error}"))
}

#[test]
fn what_begins_and_ends_is_the_difference_of_a_check_before_and_a_check_after_the_change() {
    let (mut compared, mut begun, mut over) = (0, 0, 0);
    for (number, (name, snapshot)) in small().into_iter().enumerate() {
        let setting = SETTINGS[number % SETTINGS.len()];
        let mut changed = snapshot.clone();
        let parsed: Setting = setting.parse().expect("a setting");
        // The kernel of the node may refuse the range.
        if Setting::apply_all(&[parsed], &mut changed).is_err() {
            continue;
        }
        let document = what_if(&snapshot, setting);
        if document["judged"] != 1 {
            continue;
        }
        let wanted = of_boards(&board(&snapshot), &board(&changed), setting.starts_with("proxy_mode"));
        assert_eq!(of_document(&document), wanted, "{name}, {setting}");
        compared += 1;
        begun += wanted.values().filter(|more| **more > 0).count();
        over += wanted.values().filter(|more| **more < 0).count();
    }
    assert!(compared > 100 && begun > 10 && over > 0, "{compared} nodes, {begun} begin, {over} end");
}

#[test]
fn a_node_without_addresses_is_not_judged_because_no_answer_is_known() {
    let mut world = healthy();
    world.kernel.interfaces = Reading::Gap(Gap::new(Source::Addresses, Why::TimedOut, "no answer"));
    let document = what_if(&world, SETTINGS[0]);
    assert_eq!((&document["judged"], &document["result"]), (&0.into(), &"not-checked".into()), "{document:#}");
}
