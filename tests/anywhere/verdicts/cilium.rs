//! The recorded answers to test packets on a node with Cilium as the proxy. `tests/lab/behind_cilium` sends the packets
//! again. With `UPDATE=1`, `tests/lab/behind_cilium` also records the answers.

use std::{collections::BTreeSet, fs};

use portreeve_agent::judge;
use portreeve_facts::Snapshot;
use portreeve_rules::Limits;
use serde_json::{Value, json};

use super::{
    judged::{compared, disagreements, listeners},
    recording::{Recording, path, read, whole},
};
use crate::manifests::facts_of;

pub(super) fn recordings() -> Vec<(String, Recording)> {
    let folder = path("cilium/world").parent().expect("a folder").to_owned();
    let names = fs::read_dir(folder).expect("recordings").map(|it| it.expect("an entry").path());
    let mut names: Vec<String> = names
        .map(|it| it.file_stem().expect("a name").to_string_lossy().into_owned())
        .filter(|it| !it.starts_with("world"))
        .collect();
    names.sort();
    names.into_iter().map(|it| (it.clone(), whole(&format!("cilium/{it}")))).collect()
}

fn letters(recording: &Recording, from: &str, to: &[&str], shape: &str) -> BTreeSet<char> {
    let rows = recording.listeners.iter().filter(|row| row.shape == shape);
    let cells = rows.flat_map(|row| recording.every_cell(row));
    cells.filter(|(place, at, _)| *place == from && to.contains(&at.to_string().as_str())).map(|it| it.2).collect()
}

#[test]
fn every_question_has_an_answer() {
    for (name, recording) in recordings() {
        assert!(recording.listeners.iter().all(|row| row.answers.len() == recording.questions.len()), "{name}");
        assert!(!recording.settings.is_empty(), "{name} tells what Cilium was told");
    }
}

#[test]
fn by_default_the_primary_addresses_are_taken_and_those_of_other_devices_are_not() {
    let recordings = recordings();
    let default = &recordings.iter().find(|(name, _)| name == "default").expect("a recording").1;
    let (primary, other) = (["192.0.2.1", "2001:db8::1"], ["10.244.0.1", "fd00:244::1"]);
    assert_eq!(letters(default, "remote", &primary, "ready"), ['P'].into());
    assert_eq!(letters(default, "remote", &primary, "empty"), ['R'].into());
    assert_eq!(letters(default, "remote", &other, "ready"), ['L'].into());
    assert_eq!(letters(default, "node", &primary, "empty"), ['N'].into());
}

pub(super) fn node(recording: &Recording) -> Snapshot {
    let mut world: Value = read(&recording.world);
    for (field, value) in &recording.kernel {
        world["kernel"][field] = value.clone();
    }
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cilium-config", "namespace": "kube-system"},
        "data": recording.settings,
    });
    let mut snapshot: Snapshot = serde_json::from_value(world).expect("a snapshot");
    let facts = facts_of(&[map.to_string()]);
    assert_eq!(facts.rejected, []);
    snapshot.cluster.proxy_config = facts.proxy_config;
    snapshot
}

#[test]
fn every_verdict_is_what_packets_showed() {
    let mut judged = 0;
    let mut unsure = String::new();
    // The recordings `no-replacement` are left out: these nodes had no proxy, but a real node has a proxy.
    for (name, recording) in recordings().into_iter().filter(|(name, _)| !name.starts_with("no-replacement")) {
        let node = node(&recording);
        let wrong = disagreements(&recording, &node);
        if recording.world.ends_with("apart") {
            let board = judge(&node, &Limits::default());
            let cells = listeners(&recording, &node, &board).flat_map(|listener| listener.cells);
            let count = cells.filter(|cell| cell.is_unsure).count();
            unsure.push_str(&format!("{count} of {} of {name}\n", compared(&recording)));
        }
        assert!(wrong.is_empty(), "{name}: {} of {} cells\n{}", wrong.len(), compared(&recording), wrong.join("\n"));
        judged += compared(&recording);
    }
    assert!(judged >= 60_000, "{judged} cells");
    insta::assert_snapshot!(unsure, @"
    346 of 1632 of apart
    346 of 1632 of apart-anywhere
    346 of 1632 of apart-before
    366 of 1632 of apart-host-sockets
    0 of 1632 of apart-named
    ");
}

#[test]
fn a_verdict_of_other_settings_is_told_apart() {
    let mut recordings = recordings();
    // Listeners with one bind address are enough to show a difference.
    for (_, recording) in &mut recordings {
        recording.listeners.retain(|row| row.bind == "0.0.0.0");
    }
    let of = |name: &str| &recordings.iter().find(|(it, _)| it == name).expect("a recording").1;
    for other in ["second", "all", "drop", "not-routable"] {
        assert!(!disagreements(of(other), &node(of("default"))).is_empty(), "{other}");
        assert!(!disagreements(of("default"), &node(of(other))).is_empty(), "{other}");
    }
}
