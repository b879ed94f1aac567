//! This version judges snapshots of earlier versions as the earlier versions did.
//!
//! `v1/NAME.json` is a snapshot. `v1/NAME.findings.json` has the findings that `check --snapshot FILE -o json` printed
//! when a person recorded both files. The test does not compare sentences: the texts of a summary, a remedy or an
//! unread input may change. `renamed.rs` has the old names of findings. Earlier versions did not print the fields
//! `scope`, `outcome` and `claims`: a person added these fields later. Do not record the files again: if a verdict
//! changes, edit the file by hand, and write the proof into `README.md`.
//!
//! `lab-iptables.json` and `lab-nftables.json` were put together from two runs of the lab. So the proxy's process is
//! newer than the process that has the proxy's sockets, as after a restart of the proxy.

mod names;
mod renamed;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// Fields that the test does not compare, because the fields have sentences.
const LEFT_OUT: [&str; 4] = ["summary", "remedy", "detail", "remedies"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/anywhere/snapshots/v1")
}

fn names() -> Vec<String> {
    let entries = fs::read_dir(folder()).expect("a folder of snapshots");
    let files = entries.map(|entry| entry.expect("an entry").file_name().display().to_string());
    let names = files.filter(|name| !name.ends_with(".findings.json"));
    let mut names: Vec<String> = names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned)).collect();
    names.sort();
    names
}

pub(crate) fn paths() -> impl Iterator<Item = (String, PathBuf)> {
    names().into_iter().map(|name| (name.clone(), folder().join(format!("{name}.json"))))
}

fn replayed(name: &str) -> Value {
    replay(&folder().join(format!("{name}.json")))
}

fn replay(file: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portreeve"));
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent").stdin(Stdio::null());
    let output = command.args(["check", "--snapshot"]).arg(file).args(["-o", "json"]).output();
    let output = output.expect("portreeve runs");
    let error = String::from_utf8_lossy(&output.stderr);
    let document = serde_json::from_slice(&output.stdout);
    renamed::as_it_was(document.unwrap_or_else(|_| panic!("{}: {error}", file.display())))
}

fn recorded(name: &str) -> Value {
    let path = folder().join(format!("{name}.findings.json"));
    let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).expect("findings are JSON")
}

fn entries(document: &Value, list: &str) -> Vec<String> {
    let list = document[list].as_array().unwrap_or_else(|| panic!("a document has {list}"));
    let bare = list.iter().map(|entry| {
        let mut entry = entry.as_object().expect("an object").clone();
        entry.retain(|field, _| !LEFT_OUT.contains(&field.as_str()));
        serde_json::to_string(&entry).expect("JSON")
    });
    let mut bare: Vec<String> = bare.collect();
    bare.sort();
    bare
}

fn differences(then: &Value, now: &Value) -> Vec<String> {
    let mut differences = Vec::new();
    for field in ["schema", "node", "at", "proxy", "nodePortRange"] {
        if then[field] != now[field] {
            differences.push(format!("{field}: then {}, now {}", then[field], now[field]));
        }
    }
    for list in ["findings", "unknown"] {
        let (then, now) = (entries(then, list), entries(now, list));
        let gone = then.iter().filter(|entry| !now.contains(entry)).map(|entry| format!("{list}, then: {entry}"));
        let new = now.iter().filter(|entry| !then.contains(entry)).map(|entry| format!("{list}, now:  {entry}"));
        differences.extend(gone.chain(new));
        if then.len() != now.len() {
            differences.push(format!("{list}: then {}, now {}", then.len(), now.len()));
        }
    }
    differences
}

/// Fault (operator): after an upgrade, a user has snapshots of earlier versions
/// Does: reads the snapshots, and reports the findings of the earlier version
/// Right again: immediately
/// Lost: nothing
#[test]
fn snapshots_of_earlier_versions_are_judged_as_they_were_then() {
    let mut complaints = Vec::new();
    for name in names() {
        let differences = differences(&recorded(&name), &replayed(&name));
        complaints.extend(differences.into_iter().map(|difference| format!("{name}: {difference}")));
    }
    assert!(
        complaints.is_empty(),
        "\n{}\nWhere this is meant, or a new rule finds it: write it into tests/anywhere/snapshots/v1/NAME.findings.json, \
         and the proof into tests/anywhere/snapshots/README.md.",
        complaints.join("\n")
    );
}

#[test]
fn the_recorded_snapshots_are_of_every_mode_and_of_most_rules() {
    let documents: Vec<Value> = names().iter().map(|name| recorded(name)).collect();
    let modes: BTreeSet<&str> = documents.iter().filter_map(|it| it["proxy"]["mode"].as_str()).collect();
    assert_eq!(modes, BTreeSet::from(["cilium", "iptables", "ipvs", "nftables"]));
    assert!(documents.iter().any(|it| it["proxy"].is_null()), "one of which the mode is not known");
    let findings = documents.iter().filter_map(|it| it["findings"].as_array()).flatten();
    let rules: BTreeSet<&str> = findings.filter_map(|it| it["rule"].as_str()).collect();
    assert!(rules.len() >= 18, "findings of {} rules: {rules:?}", rules.len());
    let unknown = documents.iter().filter_map(|it| it["unknown"].as_array()).map(Vec::len).max();
    assert!(unknown >= Some(10), "gaps: {unknown:?}");
}

#[test]
fn a_verdict_that_changed_is_caught_and_new_words_are_none() {
    let then = recorded("nftables");
    let mut now = then.clone();
    now["findings"][0]["summary"] = "in other words".into();
    now["unknown"][0]["detail"] = "in other words".into();
    assert_eq!(differences(&then, &now), Vec::<String>::new());
    for (list, field, value) in [
        ("findings", "severity", Value::from("none")),
        ("findings", "port", 1.into()),
        ("findings", "affects", Value::Null),
        ("findings", "scope", "cluster".into()),
        ("findings", "outcome", "another".into()),
        ("unknown", "claims", 99.into()),
    ] {
        let mut now = then.clone();
        now[list][0][field] = value;
        assert_eq!(differences(&then, &now).len(), 2, "{field}");
    }
    let mut now = then.clone();
    now["findings"][0]["evidence"][0]["value"] = "another".into();
    assert_eq!(differences(&then, &now).len(), 2, "evidence");
    let gaps = then["unknown"].as_array().map_or(0, Vec::len);
    now["unknown"] = Value::Array(Vec::new());
    assert_eq!(differences(&then, &now).len(), 2 + gaps + 1, "gaps that are gone, and their number");
    let mut now = then.clone();
    let first = now["findings"][0].clone();
    now["findings"].as_array_mut().expect("a list").push(first);
    assert_eq!(differences(&then, &now).len(), 1, "a finding that is there twice");
}
