//! No verdict depends on a name that users choose. The test renames Services, pods and programs, and compares the
//! verdicts.

use std::fs;

use serde_json::Value;

use super::{folder, names, replay};

fn renamed(name: &str) -> String {
    let sum = name.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    // The new name is short, because the kernel shortens the names of programs.
    format!("x{sum:08x}")
}

/// Renames the values of `keys` in each object of a list. Returns the number of renamed values.
fn rename(list: &mut Value, keys: &[&str]) -> usize {
    let objects = list.get_mut("seen").and_then(Value::as_array_mut).into_iter().flatten();
    let mut count = 0;
    for object in objects {
        for key in keys {
            if let Some(name) = object[*key].as_str() {
                object[*key] = renamed(name).into();
                count += 1;
            }
        }
    }
    count
}

/// Renames the Services in answers to health checks. An answer has the form `default/web`.
fn rename_answers(checks: &mut Value) {
    for check in checks.get_mut("seen").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some((namespace, name)) =
            check["service"].get("seen").and_then(Value::as_str).and_then(|it| it.split_once('/'))
        {
            check["service"]["seen"] = format!("{namespace}/{}", renamed(name)).into();
        }
    }
}

/// Renames the program of each process. Returns the number of renamed programs.
fn rename_programs(facts: &mut Value) -> usize {
    match facts {
        Value::Array(entries) => entries.iter_mut().map(rename_programs).sum(),
        Value::Object(fields) => {
            let own = match fields.get_mut("command") {
                Some(Value::String(command)) => {
                    *command = renamed(command);
                    1
                }
                _ => 0,
            };
            own + fields.values_mut().map(rename_programs).sum::<usize>()
        }
        _ => 0,
    }
}

fn verdicts(document: &Value) -> Vec<String> {
    let findings = document["findings"].as_array().expect("findings").iter();
    let reported =
        findings.map(|it| ["rule", "severity", "port", "affects"].map(|field| it[field].to_string()).join(" "));
    let unknown = document["unknown"].as_array().expect("unknown").iter();
    let untold = unknown.map(|it| ["rule", "source", "why"].map(|field| it[field].to_string()).join(" "));
    let mut all: Vec<String> = reported.chain(untold).collect();
    all.sort();
    all
}

#[test]
fn no_verdict_hangs_on_what_a_service_a_pod_or_a_program_is_called() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut services, mut programs, mut reported) = (0, 0, 0);
    for name in names() {
        let path = folder().join(format!("{name}.json"));
        let mut snapshot: Value = serde_json::from_slice(&fs::read(&path).expect("a snapshot")).expect("JSON");
        services += rename(&mut snapshot["cluster"]["services"], &["name"]);
        rename(&mut snapshot["cluster"]["endpoint_slices"], &["service"]);
        rename(&mut snapshot["cluster"]["pods"], &["name"]);
        rename_answers(snapshot["kernel"].get_mut("health_checks").unwrap_or(&mut Value::Null));
        programs += rename_programs(&mut snapshot["kernel"]);
        let other = directory.path().join("snapshot.json");
        fs::write(&other, snapshot.to_string()).expect("a file");
        let (before, after) = (verdicts(&replay(&path)), verdicts(&replay(&other)));
        reported += before.len();
        assert_eq!(before, after, "{name}");
    }
    assert!(
        services > 20 && programs > 20 && reported > 50,
        "{services} Services, {programs} programs, {reported} verdicts"
    );
}
