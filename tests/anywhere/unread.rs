//! What was not read is never nothing: a world with one input taken away is not called clear.

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::{
    cli::{binary, ended},
    worlds,
};

/// Inputs without which a port may have an owner that nobody knows: where they are in a snapshot, and their source.
const CORE: [(&str, &str); 5] = [
    ("/cluster/services", "services"),
    ("/cluster/pods", "pods"),
    ("/kernel/listeners", "listeners"),
    ("/kernel/clients", "clients"),
    ("/kernel/interfaces", "addresses"),
];
/// Failures: no right is missing, and somebody asked.
const FAILED: [&str; 4] = ["unreachable", "timed-out", "malformed", "torn"];
/// No Service and no process has this port in any world.
const PORT: &str = "32123";

fn without(world: &Value, place: &str, source: &str, why: &str) -> NamedTempFile {
    let mut world = world.clone();
    *world.pointer_mut(place).expect("an input") =
        json!({"gap": {"source": source, "why": why, "detail": "it was taken away"}});
    let file = NamedTempFile::new().expect("a file");
    serde_json::to_writer(&file, &world).expect("a snapshot is JSON");
    file
}

/// Every healthy world that has all of them.
fn healthy() -> impl Iterator<Item = (String, Value)> {
    let worlds = worlds::snapshots().map(|(name, world)| (name, serde_json::to_value(&world).expect("JSON")));
    worlds.filter(|(_, world)| CORE.iter().all(|(place, _)| world.pointer(&format!("{place}/seen")).is_some()))
}

#[test]
fn a_world_whose_input_failed_is_not_called_clear() {
    let mut judged = 0;
    for (number, (name, world)) in healthy().enumerate() {
        // Each world has one of the failures, and all together have each of them many times.
        let why = FAILED[number % FAILED.len()];
        for (place, source) in CORE {
            let file = without(&world, place, source, why);
            let case = format!("{name} without {source}: {why}");
            let ask = |words: &[&str]| ended(binary().args(words).arg(file.path()));
            let (code, text, _) = ask(&["replay"]);
            assert_ne!(code, 0, "{case}: {text}");
            assert!(!text.contains(": no port conflicts"), "{case}: {text}");
            let (code, npd, _) = ask(&["replay", "-o", "npd"]);
            assert!(code != 0 && !npd.starts_with("no port conflicts"), "{case}: {npd}");
            let (_, document, _) = ask(&["replay", "-o", "json"]);
            let document: Value = serde_json::from_str(&document).expect("JSON");
            assert_ne!(document["result"], "clear", "{case}");
            // Outgoing connections answer nobody.
            if source != "clients" {
                let (code, owner, _) = ask(&["owner", PORT, "--snapshot"]);
                assert_eq!(code, 2, "{case}: {owner}");
                assert!(!owner.contains("nobody claims it"), "{case}: {owner}");
            }
            judged += 1;
        }
    }
    assert!(judged >= 100, "{judged} worlds without an input");
}
