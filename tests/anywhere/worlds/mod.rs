//! Healthy example nodes of many platforms. No rule may report a finding above info for a healthy node.
//!
//! Each file in `platforms` is one example node. A person wrote the file from the documents or the source code of its
//! platform, and the file names these sources. The test makes a snapshot from the file, and runs `check --snapshot`:
//! the output must be the expected output in the file. A *sick twin* is a copy of an example node with one fault. The
//! rules must find the fault of each sick twin, so the test proves that the rules read the input.
//!
//! To add an example node, copy a short file; CONTRIBUTING.md explains the fields.

mod build;
mod form;
mod lines;
mod proxies;

use crate::named;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use portreeve_facts::Snapshot;
use serde_json::Value;
use tempfile::NamedTempFile;

pub(crate) use form::World;

use crate::cli::{binary, ended};

pub(crate) fn all() -> Vec<(String, World)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/anywhere/worlds/platforms");
    let entries = fs::read_dir(folder).expect("the folder of worlds");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| world(path)).collect()
}

pub(crate) fn sick() -> impl Iterator<Item = (String, Snapshot)> {
    all().into_iter().flat_map(|(name, world)| {
        let twin = |sick: &form::Change| {
            let (node, cluster) = world.after(sick);
            (format!("{name}, {}", sick.what), build::snapshot(&node, &cluster))
        };
        world.sick.iter().map(twin).collect::<Vec<_>>()
    })
}

pub(crate) fn later() -> impl Iterator<Item = (String, Snapshot)> {
    all().into_iter().flat_map(|(name, world)| {
        let then = |later: &form::Change| {
            let (node, cluster) = world.after(later);
            (format!("{name}, {}", later.what), build::snapshot(&node, &cluster))
        };
        world.later.iter().map(then).collect::<Vec<_>>()
    })
}

pub(crate) fn snapshots() -> impl Iterator<Item = (String, Snapshot)> {
    all().into_iter().map(|(name, world)| (name, build::snapshot(&world.node, &world.cluster)))
}

fn world(path: &Path) -> (String, World) {
    let text = fs::read_to_string(path).expect("a world is UTF-8");
    let world = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (path.file_stem().expect("a name").display().to_string(), world)
}

/// The findings and unknown results of `check --snapshot`, and the exit code. Each line has the form `warning
/// listener-on-node-port/loses default/web 30080/tcp`, or `unknown proxy-near-fd-limit/near n1 proxy-process
/// unreachable`.
fn reported(snapshot: &Snapshot) -> (Vec<String>, i32) {
    let file = NamedTempFile::new().expect("a file");
    serde_json::to_writer(&file, snapshot).expect("a snapshot is JSON");
    let (code, out, error) = ended(binary().args(["check", "--snapshot"]).arg(file.path()).args(["-o", "json"]));
    let document: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("replay failed: {error}"));
    let entries = |list: &Value| list.as_array().cloned().expect("a list");
    let finding = |entry: &Value| format!("{} {}", word(entry, "severity"), subject(entry));
    let unknown =
        |entry: &Value| format!("unknown {} {} {}", subject(entry), word(entry, "source"), word(entry, "why"));
    let mut reported: Vec<String> = entries(&document["findings"]).iter().map(finding).collect();
    // Unread input that no rule needs is left out: the input is unread only because an example node lacks it.
    reported.extend(entries(&document["unknown"]).iter().filter(|entry| !entry["rule"].is_null()).map(unknown));
    reported.sort();
    (reported, code)
}

fn word(entry: &Value, field: &str) -> String {
    entry[field].as_str().expect("a word").to_owned()
}

fn subject(entry: &Value) -> String {
    let subject = &entry["subject"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let name = text(&subject["name"]).unwrap_or_default();
    let name = text(&subject["namespace"]).map_or(name.clone(), |namespace| format!("{namespace}/{name}"));
    let port = entry["port"].as_u64().zip(text(&entry["protocol"]));
    let port = port.map(|(port, protocol)| format!("{port}/{protocol}")).unwrap_or_default();
    let words = [named::name(entry), name, port];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn alarms(reported: &[String]) -> Vec<&str> {
    let above = |line: &&str| !line.starts_with("info ") && !line.starts_with("unknown ");
    reported.iter().map(String::as_str).filter(above).collect()
}

fn sorted<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut lines: Vec<&str> = lines.collect();
    lines.sort_unstable();
    lines
}

fn differ(place: &str, wanted: &[&str], found: &[&str]) -> Option<String> {
    let minus = |a: &[&str], b: &[&str], sign: &str| {
        a.iter().filter(|line| !b.contains(line)).map(|line| format!("\n  {sign} {line}")).collect::<String>()
    };
    (wanted != found)
        .then(|| format!("{place}:{}{}", minus(wanted, found, "missing:"), minus(found, wanted, "says:   ")))
}

#[test]
fn of_a_healthy_world_nothing_is_said_above_info_and_no_more_is_unknown_than_has_to_be() {
    let mut complaints = Vec::new();
    for (name, world) in all() {
        let expect = |place: &str, snapshot: &Snapshot, says: &form::Lines| {
            let (reported, code) = reported(snapshot);
            let found: Vec<&str> = reported.iter().map(String::as_str).collect();
            // Some input of a healthy platform is missing. The missing input must not lead to exit code 2.
            let wanted = i32::from(!world.wrong.0.is_empty());
            let ends = (code != wanted).then(|| format!("{place}: ends with {code}, wanted {wanted}"));
            differ(place, &sorted(says.iter().chain(world.wrong.iter())), &found).or(ends)
        };
        complaints.extend(expect(&name, &build::snapshot(&world.node, &world.cluster), &world.says));
        for later in &world.later {
            let (node, cluster) = world.after(later);
            let says = later.says.as_ref().unwrap_or(&world.says);
            complaints.extend(expect(&format!("{name}, {}", later.what), &build::snapshot(&node, &cluster), says));
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn what_a_file_expects_of_a_healthy_world_is_no_alarm() {
    for (name, world) in all() {
        let later = world.later.iter().filter_map(|later| later.says.as_ref());
        for says in later.chain([&world.says]) {
            assert_eq!(alarms(&says.0), [""; 0], "{name}: these belong under `wrong`");
        }
        assert_eq!(alarms(&world.wrong.0).len(), world.wrong.0.len(), "{name}: no false alarms, these");
    }
}

#[test]
fn one_thing_broken_in_a_healthy_world_is_found_and_nothing_else() {
    let mut complaints = Vec::new();
    for (name, world) in all() {
        for sick in &world.sick {
            let (node, cluster) = world.after(sick);
            let says = sick.says.as_ref().unwrap_or_else(|| panic!("{name}, {}: what has to be found?", sick.what));
            let (reported, _) = reported(&build::snapshot(&node, &cluster));
            complaints.extend(differ(&format!("{name}, {}", sick.what), &sorted(says.iter()), &alarms(&reported)));
            assert!(!alarms(&says.0).is_empty(), "{name}, {}: a sick twin has an alarm", sick.what);
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn there_are_worlds_and_sick_twins_and_each_world_names_where_its_facts_are_from() {
    let all = all();
    assert!(all.iter().any(|(_, world)| !world.sick.is_empty()), "{} worlds without a sick twin", all.len());
    let names: BTreeSet<&str> = all.iter().map(|(_, world)| world.about.as_str()).collect();
    assert_eq!(names.len(), all.len(), "two worlds are about the same");
    for (name, world) in &all {
        assert!(!world.sources.is_empty(), "{name} has no source");
        for source in &world.sources {
            let repository = source.split_once(' ').is_some_and(|(repository, path)| {
                repository.split('/').count() == 2 && !path.contains(' ') && !path.is_empty()
            });
            assert!(repository || source.starts_with("https://"), "{name}: no source: {source}");
        }
    }
}
