//! Two verbs never disagree about one port: whom a finding calls a loser, `owner` calls one too.

use crate::named::{is_of, name};
use std::path::Path;

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::{
    cli::{binary, ended},
    snapshots, worlds,
};

/// Rules about a listener that gets no connections.
const LOSES: [&str; 3] =
    ["listener-on-node-port/loses", "host-port-conflict/takes-listener", "external-ip-conflict/node-address"];

fn document(words: &[&str], file: &Path) -> Value {
    let (code, text, error) = ended(binary().args(words).arg(file));
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{words:?} ended with {code}: {error}"))
}

/// The ports of findings above info about a listener that loses, and the rule.
fn lost(file: &Path) -> Vec<(String, String)> {
    let document = document(&["replay", "-o", "json"], file);
    let findings = document["findings"].as_array().expect("findings").iter();
    let of_listeners = findings.filter(|it| LOSES.iter().any(|rule| is_of(it, rule)) && it["severity"] != "info");
    let port = |it: &Value| Some((format!("{}/{}", it["port"].as_u64()?, it["protocol"].as_str()?), name(it)));
    of_listeners.filter_map(port).collect()
}

#[test]
fn whom_a_finding_calls_a_loser_owner_calls_one_too() {
    let worlds = worlds::sick().map(|(name, world)| {
        let file = NamedTempFile::new().expect("a file");
        serde_json::to_writer(&file, &world).expect("a snapshot is JSON");
        (name, file.into_temp_path())
    });
    let worlds: Vec<_> = worlds.collect();
    let recorded: Vec<_> = snapshots::paths().collect();
    let of_worlds = worlds.iter().map(|(name, path)| (name.as_str(), &**path));
    let mut compared = 0;
    for (name, file) in of_worlds.chain(recorded.iter().map(|(name, path)| (name.as_str(), path.as_path()))) {
        for (port, rule) in lost(file) {
            let owner = document(&["owner", &port, "-o", "json", "--snapshot"], file);
            let protocols = owner["protocols"].as_array().expect("protocols").iter();
            let answers: Vec<&Value> = protocols.flat_map(|it| it["answers"].as_array().expect("answers")).collect();
            let loses = answers.iter().any(|it| it["loser"].is_u64());
            // A listener on every address loses on one of them, and which of them a Service has is not known.
            let remote: Vec<_> = answers.iter().filter(|it| it["from"] == "remote").collect();
            let unknown = !remote.is_empty() && remote.iter().all(|it| it["answer"] == "unknown");
            assert!(loses || unknown, "{name}: {rule} {port}, and owner: {owner:#}");
            compared += usize::from(loses);
        }
    }
    assert!(compared >= 20, "{compared} ports compared");
}
